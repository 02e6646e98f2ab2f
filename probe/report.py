"""The report of a run: one HTML file that opens offline, its numbers as summary.json, its figures as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import xarray as xr
from plotly.offline import get_plotlyjs
from tqdm import tqdm

from probe import glossary
from probe.figures.curves import curves_chart, parted
from probe.figures.drift import drift_chart, drift_layers, drift_map
from probe.figures.export import SIDE_BY_SIDE, safe_name
from probe.figures.figure_data import Chart, Drawable, Heatmaps, Raster
from probe.figures.heatmap import (
    OPENING,
    default_regions,
    difference,
    heatmap_grid,
    layer_limits,
    opening,
    pool,
    regions,
    survey,
)
from probe.figures.render import html_embed, page, rendered
from probe.figures.tables import npz_bytes
from probe.figures.thresholds import threshold_chart
from probe.figures.token_views import token_views
from probe.files import write, write_json
from probe.mechanism_report import anatomy_section, located_section, template
from probe.store.cache import DERIVED, Derived, save
from probe.store.location import Remote
from probe.store.reader import Run, open_run, store_mark
from probe.store.results import MARK, REPORTED, VERDICT, find_located, find_prediction, find_tokens
from probe.thresholds.analysis import Analysis, analyse, summarize
from probe.thresholds.predict import LEAST, TOP
from probe.verdict.rows import predicted_failures
from probe.verdict.tables import difference_table, drift_table, score_text, threshold_doubt
from probe.verdict.verdict import html, verdict

_THRESHOLDS = 4  # charts, of the best dims
_PROVENANCE = (
    "model",
    "model_revision",
    "model_type",
    "left_out",
    "source_dtype",
    "quantization",
    "created",
    "executor",
    "word",
    "first_token",
    "text",
    "seed",
)

_WRITTEN = (
    *REPORTED,
    "figures/heatmap*.*",
    "figures/threshold-layer*.*",
    "figures/curves.*",
    "figures/drift*.*",
    f"{DERIVED}/*.npz",
)


@dataclass(frozen=True)
class Maps:
    """The headline prompt's heatmaps at the default regions. panel: (method, layer, dim, position), not in memory.

    single, together: pooled, a method each and all methods. groups: pooled, as many methods as stand side by side.
    """

    panel: xr.DataArray
    limits: xr.DataArray
    single: list[xr.DataArray]
    groups: list[xr.DataArray]
    together: xr.DataArray

    @classmethod
    def of(cls, analysis: Analysis) -> Maps:
        """The heatmaps of a run, read once."""
        bounds = default_regions(analysis.hidden["position"].values, analysis.trained_length)
        panel = regions(analysis.hidden.sel(prompt=analysis.prompt), bounds)
        methods = panel["method"].values.tolist()
        groups = [tuple(methods[start : start + SIDE_BY_SIDE]) for start in range(0, len(methods), SIDE_BY_SIDE)]
        wanted = list(dict.fromkeys([tuple(methods), *groups, *((method,) for method in methods)]))
        *pooled, limits = survey(panel, wanted)
        by_methods = dict(zip(wanted, pooled, strict=True))
        single = [by_methods[method,].isel({"method": 0}) for method in methods]
        return cls(panel, limits, single, [by_methods[group] for group in groups], by_methods[tuple(methods)])


def write_report(run_dir: str | os.PathLike[str], by: str = "drift") -> dict[str, Any]:
    """Analyses the run in the folder `run_dir` and writes report.html, summary.json, figures/ and derived/ there.

    by: the rule that failures are predicted by, as for `analyse`. Returns the summary. Raises what `open_run` and
    `analyse` raise.
    """
    run, derived = open_run(run_dir), {}
    with tqdm(total=1, desc="finding thresholds", unit="search") as bar:
        analysis = analyse(run, by=by, work=lambda name, make: derived.setdefault(name, make()))
        bar.update()
    folder = run.folder
    if isinstance(folder, Remote):
        raise ValueError(
            f"{folder} is a URL; a report is written into the folder that `mesa-lens probe` was given as --out"
        )
    summary = whole_summary(analysis)
    remove_report(folder)
    for name, datasets in {**derived, **_openings(analysis)}.items():
        save(run, name, datasets)
    maps = Maps.of(analysis)
    write_figures(analysis, summary, folder / "figures", maps)
    write(folder / "report.html", render(analysis, summary, maps).encode())
    write_json(folder / "summary.json", summary, 2)
    return summary


def _openings(analysis: Analysis) -> dict[str, Derived]:
    """What the dashboard's pages open with, beside the analysis: of the headline prompt, by the name it is kept by."""
    hidden, trained = analysis.hidden.sel(prompt=analysis.prompt), analysis.trained_length
    name = f"{hidden.name}-{analysis.prompt}"
    return {f"{name}-{OPENING}": {OPENING: opening(hidden, trained)}}


def whole_summary(analysis: Analysis) -> dict[str, Any]:
    """The summary as summary.json has it: with the verdict, and the mark of the store that it is of."""
    summary, run = summarize(analysis), analysis.run
    return {
        VERDICT: verdict(summary, find_located(run.folder), find_prediction(run.folder)),
        **summary,
        MARK: store_mark(run.hidden.attrs),
    }


def provenance(run: Run) -> dict[str, Any]:
    """Where a store's numbers come from: model, prompt, seed."""
    attrs = run.hidden.attrs
    return {name: attrs[name] for name in _PROVENANCE if name in attrs}


def remove_report(folder: Path) -> None:
    """Removes what `write_report` wrote for a former run, and nothing else."""
    for pattern in _WRITTEN:
        for path in folder.glob(pattern):
            path.unlink()


def render(analysis: Analysis, summary: dict[str, Any], maps: Maps | None = None) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. maps: default those of the run."""
    maps = maps or Maps.of(analysis)
    return template("report.html").render(
        summary=summary,
        verdict=html(summary[VERDICT], _opening(analysis, summary)),
        terms=glossary.TERMS,
        drift_table=drift_table,
        threshold_doubt=threshold_doubt(summary),
        differences=difference_table(summary),
        score_text=score_text,
        median=median,
        top=TOP,
        least=LEAST,
        drift_map=_html(_drift_map(analysis)),
        located=located_section(analysis.run.folder),
        anatomy=anatomy_section(analysis.run.folder),
        token_views=token_views(find_tokens(analysis.run.folder)),
        drift=_html(_drift(analysis)),
        thresholds=_html([_threshold(analysis, layer, dim) for layer, dim in _best(analysis)]),
        differences_drawn=_html(_differences(analysis, maps)),
        heatmaps=_html([heatmap_grid(group, analysis.trained_length, maps.limits) for group in maps.groups]),
        provenance=provenance(analysis.run),
        plotly_js=get_plotlyjs(),
    )


def write_figures(analysis: Analysis, summary: Mapping[str, Any], folder: Path, maps: Maps) -> None:
    """Writes into `folder`, for the headline prompt and on one colour scale a layer:

    heatmap-METHOD.png (one pixel a cell), .html (interactive, with plotly.min.js beside it) and .npz (pooled values
    with labels); heatmaps.png (all methods, with axes); threshold-layerL-dimD and curves as .png and .svg.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trained, limits = analysis.trained_length, maps.limits
    write(folder / "plotly.min.js", get_plotlyjs().encode())
    with ThreadPoolExecutor(1) as beside:  # of the rest, which is Python's work
        rasters = [beside.submit(_write_raster, maps, str(pooled["method"].item()), folder) for pooled in maps.single]
        for pooled in maps.single:
            stem = _stem(str(pooled["method"].item()))
            write(folder / f"{stem}.npz", npz_bytes(pooled.to_dataset(name=str(pooled.name))))
            write(folder / f"{stem}.html", page(heatmap_grid(pooled, trained, limits), "directory"))
        write(folder / "heatmaps.png", rendered(heatmap_grid(maps.together, trained, limits), "png"))
        for raster in tqdm(rasters, desc="drawing heatmaps", unit="method"):
            raster.result()
    charts: dict[str, Drawable] = {
        f"threshold-layer{layer}-dim{dim}": _threshold(analysis, layer, dim) for layer, dim in _best(analysis)
    }
    charts |= dict(zip(("curves",), _curves(analysis, summary), strict=False))
    charts |= dict(zip(("drift",), _drift(analysis), strict=False))
    charts |= dict(zip(("drift-map",), _drift_map(analysis), strict=False))
    for name, chart in tqdm(charts.items(), desc="drawing charts", unit="figure"):
        for form in ("png", "svg"):
            write(folder / f"{name}.{form}", rendered(chart, form))


def _stem(method: str) -> str:
    return f"heatmap-{safe_name(method)}"


def _write_raster(maps: Maps, method: str, folder: Path) -> None:
    raster = Raster(maps.panel.sel({"method": method}), maps.limits)
    write(folder / f"{_stem(method)}.png", rendered(raster, "png"))


def _curves(analysis: Analysis, summary: Mapping[str, Any]) -> list[Chart]:
    evaluation, measured = analysis.run.evaluation, analysis.measured
    if evaluation is None or measured is None:
        return []
    return [curves_chart(evaluation, measured, analysis.trained_length, predicted_failures(summary[VERDICT]))]


def _opening(analysis: Analysis, summary: Mapping[str, Any]) -> str:
    """What M and origin are, and the scores by length, side by side where there is room."""
    charts = [html_embed(part) for chart in _curves(analysis, summary) for part in parted(chart)]
    return f"<p>{glossary.explained(summary[VERDICT]['about'])}</p><div class='beside'>{''.join(charts)}</div>"


def _drift(analysis: Analysis) -> list[Chart]:
    """The layer where drift begins, by prompt; none where drift could not be judged."""
    drifts = {} if isinstance(analysis.drifts, str) else analysis.drifts
    return [drift_chart(drift, prompt=name) for name, drift in drifts.items()]


def _best(analysis: Analysis) -> list[tuple[int, int]]:
    return analysis.best[:_THRESHOLDS]


def _threshold(analysis: Analysis, layer: int, dim: int) -> Chart:
    hidden, search = analysis.hidden.sel(prompt=analysis.prompt), analysis.crossings.sel(prompt=analysis.prompt)
    return threshold_chart(hidden, search, layer, dim)


def _drift_map(analysis: Analysis) -> list[Heatmaps]:
    """The headline prompt's map; none where drift could not be judged."""
    return [] if isinstance(analysis.drifts, str) else [drift_map(analysis.drifts[analysis.prompt], analysis.prompt)]


def _differences(analysis: Analysis, maps: Maps) -> list[Heatmaps]:
    """Heatmaps less the reference's, at the layer where drift begins; none of a single method, or without drift."""
    methods = [name for name in maps.panel["method"].values.tolist() if name != analysis.reference]
    if not methods or isinstance(analysis.drifts, str):
        return []
    layer = drift_layers(analysis.drifts[analysis.prompt])[-1]
    less = difference(maps.panel.sel(layer=[layer]).load(), analysis.reference)
    starts = range(0, len(methods), SIDE_BY_SIDE)
    pooled, limits = pool(less), layer_limits(less)
    groups = [pooled.isel({"method": slice(start, start + SIDE_BY_SIDE)}) for start in starts]
    return [heatmap_grid(group, analysis.trained_length, limits) for group in groups]


def _html(figures: Iterable[Drawable]) -> list[str]:
    """Each figure's HTML, without plotly.js."""
    return [html_embed(figure) for figure in figures]
