"""`make pictures`: draws the pictures of docs/ and research/ anew, each by the command named here, from runs.

`python research/pictures.py RUNS` takes runs from RUNS: `demo` (`make demo`) and `real` (`make real`). A picture whose
run is not there stays as it is, and is named. The numbers of a picture are a csv of its name beside it.
docs/app-*.png are screenshots of the dashboard over RUNS (playwright and Chromium: `make .venv/browser`).
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from textwrap import wrap

import xarray as xr
from matplotlib.figure import Figure
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).parents[1]))

from mesa_lens.cli import main
from probe.commands.locate.page import recovery_map
from probe.commands.locate.result import Effect, Located, Loss
from probe.figures.export import rendered
from research.figure_numbers import of_drift, of_table, write_numbers
from research.thresholds_predict_failure.figures import write_study
from research.thresholds_predict_failure.results import read_results
from theory.bounds import first_failure, stair_failure, step_failure
from theory.claims import VerifyOptions
from theory.figures import STYLES, curve_end
from theory.report import curves

ROOT = Path(__file__).parents[1]
RESEARCH = ROOT / "research"
GEMMA = str(RESEARCH / "gemma3" / "run")  # absolute, so not below RUNS
Exports = tuple[tuple[str, str, dict[str, str]], ...]
REGION = "origin_dynamic-ntk_mesa-layers2-3-positions7168-16383"
EXPORTS: dict[str, Exports] = {  # run: arguments of `mesa-lens export`, and which file is which picture
    GEMMA: (("drift", "", {"docs/gemma3-drift": "drift-resid_post-repeated"}),),
    "demo": (
        ("curves", "", {"docs/demo-curves": "curves"}),
        ("drift", "", {"docs/demo-drift-map": "drift-resid_post-repeated-map"}),
        ("thresholds", "--pairs 3:150", {"docs/demo-threshold": "threshold-resid_post-repeated-layer3-dim150"}),
    ),
    "real": (
        ("drift", "--layers 1,7", {"research/real_model/drift": "drift-resid_post-repeated"}),
        ("drift", "--methods origin,mesa,stair", {"research/real_model/map": "drift-resid_post-repeated-map"}),
        (
            "heatmap",
            "--minus rerope --layers 2-3 --positions 7168-16383 --methods origin,dynamic-ntk,mesa",
            {"research/real_model/heatmap": "heatmap-resid_post-repeated-minus-rerope-" + REGION},
        ),
    ),
}
SHOTS = {"app-overview": ("", 1350), "app-tokens": ("tokens", 900)}
"""Screenshots: the dashboard's page, and how many pixels of it are seen from the top."""


def draw(runs: Path, root: Path) -> list[str]:
    """Draws below `root`, and writes the numbers; returns the pictures that stayed, with the reason."""
    stayed = [line for run, exports in EXPORTS.items() for line in export(run, exports, runs, root)]
    levels = RESEARCH / "real_model" / "results" / "drift-16k" / "levels.csv"
    write_numbers(root / "research/real_model/drift", of_drift(levels, {"layer": ("1", "7")}))
    for study, names in {
        "default": {"lengths": "docs/findings_lengths", "dims": "research/thresholds_predict_failure/dims"},
        "smollm2": {"lengths": "research/thresholds_predict_failure/smollm2"},
    }.items():
        with tempfile.TemporaryDirectory() as scratch:
            write_study(
                read_results(RESEARCH / "thresholds_predict_failure" / "results" / f"{study}.json"),
                Path(scratch),
            )
            for name, drawn in names.items():
                for form in ("png", "csv"):
                    shutil.copyfile(Path(scratch) / f"{name}.{form}", root / f"{drawn}.{form}")
    draw_recovery_map(root / "docs" / "mechanism-map.png")
    draw_theory(root)
    return stayed + shoot(runs, root / "docs")


def draw_recovery_map(path: Path) -> None:
    """Draws what ReRoPE in one layer or head alone recovers of the shipped model's loss at 1024 tokens, from tables."""
    tables = RESEARCH / "mechanism" / "results"
    wanted = {"method": ("rerope",), "length": ("1024",), "measure": ("nll",)}

    def read(name: str, kind: type[Loss | Effect]) -> list[dict[str, str | None]]:
        rows = of_table(tables / f"{name}.csv", wanted, kind.__dataclass_fields__)
        return [{column: value or None for column, value in row.items()} for row in rows]

    effects = TypeAdapter(list[Effect]).validate_python(read("effects", Effect))
    summary = Located(
        model="default",
        trained_length=256,
        seed=0,
        executor="",
        versions={},
        methods={"origin": {}, "rerope": {}},
        layers=sorted({row.layer for row in effects if row.layer is not None}),
        heads=len({row.head for row in effects if row.head is not None}),
        tasks_left=0,
        loss_gaps=TypeAdapter(list[Loss]).validate_python(read("loss_gaps", Loss)),
        effects=effects,
        smallest=[],
    )
    drawn = recovery_map(summary, "rerope", 1024, "nll")
    assert drawn is not None, "effects.csv has no row of rerope"
    path.write_bytes(rendered(drawn, "png"))
    alone = wanted | {"kind": ("patch",), "way": ("only",)}
    write_numbers(path, of_table(tables / "effects.csv", alone, ("layer", "head", "share", "low", "high")))


def draw_theory(root: Path) -> None:
    """Draws the constructions' curves over the position."""
    data = curves(VerifyOptions())
    excess = data.excess.clip(max=4).assign_attrs(long_name="o_t - H (cut at 4)")
    for name, values, level in (("crossing", excess, 0.0), ("position", data.position, None)):
        draw_curves(values.assign_attrs(data.attrs), level, root / f"research/theorems/{name}.png")
    draw_reach(root / "docs" / "theory_reach.png")


def draw_reach(path: Path) -> None:
    """Draws where theorem 3.3 and the corollary first fail beyond M, as far as 2e7 tokens, over M."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes, rows = figure.subplots(), []
    lines: dict[str, tuple[int, Callable[[int, int], int | None], str]] = {  # with 3.2's own weights: K = M - 1
        "3.3, N = 4, 3.2's own weights": (4, lambda M, N: step_failure(M, N, M - 1), "-"),
        "3.3, N = 2, 3.2's own weights": (2, lambda M, N: step_failure(M, N, M - 1), "-"),
        "corollary, N = 4, E = 2, recovering T / 2": (4, lambda M, N: first_failure(M, N, 2), "--"),
        "corollary, N = 4, E = 2, 3.2's own weights": (4, lambda M, N: stair_failure(M, N, 2), "-"),
        "3.3, N = 4, recovering N + 1": (4, first_failure, "--"),
        "3.3, N = 2, recovering N + 1": (2, first_failure, "--"),
    }
    for name, (N, of, style) in lines.items():
        known = {M: fails for M in range(2 * N, 33, 2) if (fails := of(M, N)) is not None}
        colour = "#009E73" if "corollary" in name else {2: "#56B4E9", 4: "#0072B2"}[N]
        axes.plot(list(known), list(known.values()), style, color=colour, label=name, marker=".")
        rows += [{"line": name, "M": M, "first_failure": fails} for M, fails in known.items()]
    axes.plot(range(4, 33), range(5, 34), color="#D55E00", label="3.2 (no remap)")
    axes.set(yscale="log", ylim=(4, 2e7), xlabel="window M (tokens)", ylabel="first failure (tokens)")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=200)
    write_numbers(path, rows)


def draw_curves(values: xr.DataArray, level: float | None, path: Path) -> None:
    """Draws a quantity (construction, t) of the theory over t; `level`: where success ends."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name in values.dropna("construction", how="all")["construction"].values.tolist():
        axes.plot(values["t"], values.sel(construction=name), label=name, **STYLES[name])
    if level is not None:
        axes.axhline(level, color="black", lw=0.8)
    for name, label, colour in (
        ("M", "M", "#D55E00"),
        ("T_stair", "T* stair", "#009E73"),
        ("T_weave", "T* remap", "#0072B2"),
    ):
        at = values.attrs[name]
        axes.axvline(at, color=colour, ls=":", label=f"{label} = {at:.5g}")
    axes.set(xscale="log", xlabel="position t (tokens)", ylabel=values.attrs["long_name"])
    if float(values.min()) > 0:
        axes.set_yscale("log")
    axes.set_title("\n".join(wrap(curve_end(values), 75)), fontsize=8, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=200)
    rows = (
        {"construction": name, "t": t, "value": float(value)}
        for name in values["construction"].values.tolist()
        for t, value in zip(values["t"].values.tolist(), values.sel(construction=name).values, strict=True)
        if value == value  # no position is read without positions
    )
    write_numbers(path, rows)


def export(run: str, exports: Exports, runs: Path, root: Path) -> list[str]:
    """Draws the pictures of one run below `root`; returns those that stayed, with the reason."""
    stayed = []
    for kind, options, pictures in exports:
        with tempfile.TemporaryDirectory() as scratch:
            done = (runs / run).is_dir() and main(
                ["export", kind, str(runs / run), *options.split(), "--format", "png,csv", "--out", scratch]
            ) == 0
            if done and run == "demo":
                demo_numbers(kind, Path(scratch), root / "docs")
            if done and run == GEMMA:
                levels = Path(scratch) / "drift-resid_post-repeated-levels.csv"
                write_numbers(root / "docs" / "gemma3-drift", of_drift(levels, {}))
            for picture, name in pictures.items():
                if done:
                    shutil.copyfile(Path(scratch) / f"{name}.png", root / f"{picture}.png")
                else:
                    stayed.append(f"{picture}.png: {runs / run} cannot be exported")
    return stayed


def demo_numbers(kind: str, exported: Path, docs: Path) -> None:
    """Writes what a picture of the demo shows, from the tables that the export wrote."""
    if kind == "drift":
        write_numbers(docs / "demo-drift-map", of_drift(exported / "drift-resid_post-repeated-levels.csv", {}))
    elif kind == "curves":
        scores = (("tail_nll", "window"), ("passkey", "sample"))
        columns = ("method", "length", "prompt", "score", "value")
        rows: Iterator[dict[str, str]] = (
            dict(zip(columns, (row["method"], row["length"], row[prompt], score, row[score]), strict=True))
            for score, prompt in scores
            for row in of_table(exported / f"curves-{score}.csv", {}, ("method", "length", prompt, score))
        )
        write_numbers(docs / "demo-curves", rows)
    else:
        values = exported / "threshold-resid_post-repeated-values.csv"
        write_numbers(docs / "demo-threshold", of_table(values, {}, ("method", "layer", "position", "smoothed")))


def shoot(runs: Path, docs: Path) -> list[str]:
    """Takes the screenshots of `SHOTS` with Chromium; returns those that stayed, with the reason."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or find_spec("playwright") is None or not (runs / "demo").is_dir():
        reason = f"{runs / 'demo'}, playwright and Chromium are needed"
        return [f"{name}.png: {reason}" for name in SHOTS]
    from playwright.sync_api import sync_playwright

    drawn = """() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
        && document.querySelector("h1") && !document.querySelector("[data-stale=true], [data-testid=stSkeleton]")"""
    with dashboard(runs) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (page_name, height) in SHOTS.items():
            page = chromium.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
            page.goto(f"{address}/{page_name}?run=demo")
            page.wait_for_function(drawn, timeout=120_000)
            page.wait_for_timeout(3000)  # plotly draws
            page.screenshot(path=docs / f"{name}.png")
    return []


@contextmanager
def dashboard(runs: Path) -> Iterator[str]:
    """The address of a dashboard over the runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mesa_lens", "app", "--no-browser", "--store", str(runs), "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        for tries in count():
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1)
                break
            except OSError:
                if tries == 120:
                    raise
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(20)


if __name__ == "__main__":
    print("\n".join(draw(Path(sys.argv[1]), ROOT)))
