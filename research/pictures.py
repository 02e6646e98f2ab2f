"""`make pictures`: draws the pictures of docs/ anew, each by the command named here, from the runs that are there.

`python research/pictures.py RUNS` takes runs from RUNS: `demo` (`make demo`), `mechanism` (`make mechanism`) and
`real` (`make real`). A picture whose run is not there stays as it is, and is named.
The screenshots docs/app-*.png are `make test-browser`'s.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from textwrap import wrap

import xarray as xr
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from mesa_lens.cli import main
from research.thresholds_predict_failure.figures import write_study
from research.thresholds_predict_failure.results import read_results
from theory.claims import Settings
from theory.figures import STYLES, curve_end
from theory.report import curves

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "research" / "thresholds_predict_failure" / "results"
Exports = tuple[tuple[str, str, dict[str, str]], ...]
EXPORTS: dict[str, Exports] = {  # run: arguments of `mesa-lens export`, and which file is which picture
    "demo": (
        ("drift", "", {"demo-drift": "drift-resid_post-repeated", "demo-drift-map": "drift-resid_post-repeated-map"}),
        (
            "heatmap",
            "--minus origin --methods rerope,dynamic-ntk,mesa",
            {"demo-heatmaps": "heatmap-resid_post-repeated-minus-origin"},
        ),
        ("thresholds", "--pairs 3:150", {"demo-threshold": "threshold-resid_post-repeated-layer3-dim150"}),
    ),
    "mechanism": (
        (
            "locate",
            "--methods rerope --lengths 1024 --measures nll",
            {"mechanism-map": "locate-map-rerope-1024-nll"},
        ),
    ),
    "real": (
        ("drift", "--layers 1,7", {"real-model-drift": "drift-resid_post-repeated"}),
        ("drift", "--methods origin,mesa,stair", {"real-model-map": "drift-resid_post-repeated-map"}),
        (
            "heatmap",
            "--minus rerope --layers 2-3 --positions 7168-16383 --methods origin,dynamic-ntk,mesa",
            {"real-model-heatmap": "heatmap-resid_post-repeated-minus-rerope"},
        ),
    ),
}


def draw(runs: Path, docs: Path) -> list[str]:
    """Draws into `docs`; returns the pictures that stayed, with the reason."""
    stayed = [line for run, exports in EXPORTS.items() for line in export(run, exports, runs, docs)]
    for study, names in {
        "default": {"lengths": "findings_lengths", "dims": "findings_dims"},
        "smollm2": {"lengths": "findings_smollm2"},
    }.items():
        with tempfile.TemporaryDirectory() as scratch:
            write_study(
                read_results(ROOT / "research" / "thresholds_predict_failure" / "results" / f"{study}.json"),
                Path(scratch),
            )
            for name, drawn in names.items():
                shutil.copyfile(Path(scratch) / f"{name}.png", docs / f"{drawn}.png")
    draw_theory(docs)
    return stayed


def draw_theory(docs: Path) -> None:
    """Draws the constructions' curves over the position."""
    data = curves(Settings())
    excess = data.excess.clip(max=4).assign_attrs(long_name="o_t - H (cut at 4)")
    for name, values, level in (("crossing", excess, 0.0), ("position", data.position, None)):
        draw_curves(values.assign_attrs(data.attrs), level, docs / f"theory_{name}.png")


def draw_curves(values: xr.DataArray, level: float | None, path: Path) -> None:
    """Draws a quantity (construction, t) of the theory over t; `level`: where success ends."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name in values["construction"].values.tolist():
        axes.plot(values["t"], values.sel(construction=name), label=name, **STYLES[name])
    if level is not None:
        axes.axhline(level, color="black", lw=0.8)
    for name, colour in (("M", "#D55E00"), ("T_stair", "#009E73"), ("T_weave", "#0072B2")):
        at = values.attrs[name]
        axes.axvline(at, color=colour, ls=":", label=f"{name.replace('T_', 'T* ')} = {at:.5g}")
    axes.set(xscale="log", xlabel="position t (tokens)", ylabel=values.attrs["long_name"])
    if float(values.min()) > 0:
        axes.set_yscale("log")
    axes.set_title("\n".join(wrap(curve_end(values), 75)), fontsize=8, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=200)


def export(run: str, exports: Exports, runs: Path, docs: Path) -> list[str]:
    """Draws the pictures of one run into `docs`; returns those that stayed, with the reason."""
    stayed = []
    for kind, options, pictures in exports:
        with tempfile.TemporaryDirectory() as scratch:
            done = (runs / run).is_dir() and main(
                ["export", kind, str(runs / run), *options.split(), "--out", scratch]
            ) == 0
            for picture, name in pictures.items():
                if done:
                    shutil.copyfile(Path(scratch) / f"{name}.png", docs / f"{picture}.png")
                else:
                    stayed.append(f"{picture}.png: {runs / run} cannot be exported")
    return stayed


if __name__ == "__main__":
    print("\n".join(draw(Path(sys.argv[1]), ROOT / "docs")))
