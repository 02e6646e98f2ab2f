"""The report of a run: one HTML file that opens offline, its numbers as summary.json, its figures as files."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import xarray as xr
from plotly.offline import get_plotlyjs

from mesa.errors import Occupied
from mesa.progress import Bar
from probe.commands.locate.result import LOCATED
from probe.commands.predict.result import PREDICTION
from probe.commands.probe.export import curves_of, drift_section, map_section, threshold_section
from probe.commands.probe.result import SUMMARY, Summary
from probe.commands.probe.sections import Drawn, Figures, sections, title
from probe.commands.probe.verdict import verdict
from probe.figures.drift import drift_layers
from probe.figures.export import SIDE_BY_SIDE, file_name, grids, labelled_numbers, pooled_name, safe_name
from probe.figures.figure_data import Heatmaps, Raster
from probe.figures.heatmap import default_regions, difference, heatmap_grid, layer_limits, pool, regions, survey
from probe.figures.render import page, rendered
from probe.figures.section import Section, figures_of
from probe.figures.section import page as section_page
from probe.figures.static import pictures
from probe.figures.tables import npz_bytes
from probe.files import check_ours, is_ours, write
from probe.layout import REPORTED
from probe.store.cache import DERIVED, save
from probe.store.reader import open_run, store_mark
from probe.thresholds.analysis import Analysis, analyse, plans_of, summarize

_THRESHOLDS = 4  # charts, of the best dims
_PLOTLY = "plotly.min.js"
_FIGURES = """
    heatmaps.png threshold-layer*-dim*.png threshold-layer*-dim*.svg curves.png curves.svg drift.png drift.svg
    drift-map.png drift-map.svg
""".split()
_OF_PAGE = (".png", ".npz", "-pooled-*.npz", ".html")
"""Ends of the files that a heatmap has under the name of its page."""


@dataclass(frozen=True)
class Maps:
    """The headline prompt's heatmaps at the default regions. panel: (method, layer, dim, position), not in memory.

    pooled: by the methods that are drawn together: each alone, as many as stand side by side, and all.
    """

    panel: xr.DataArray
    limits: xr.DataArray
    pooled: dict[tuple[str, ...], xr.DataArray]
    groups: list[tuple[str, ...]]

    @classmethod
    def of(cls, analysis: Analysis) -> Maps:
        """The heatmaps of a run, read once."""
        bounds = default_regions(analysis.hidden["position"].values, analysis.trained_length)
        panel = regions(analysis.hidden.sel(prompt=analysis.prompt), bounds)
        methods = tuple(panel["method"].values.tolist())
        groups = [methods[start : start + SIDE_BY_SIDE] for start in range(0, len(methods), SIDE_BY_SIDE)]
        wanted = list(dict.fromkeys([methods, *groups, *((method,) for method in methods)]))
        *pooled, limits = survey(panel, wanted)
        return cls(panel, limits, dict(zip(wanted, pooled, strict=True)), groups)


def write_report(run_dir: str | os.PathLike[str], by: str = "drift") -> Summary:
    """Writes a run's report.html, summary.json, figures/ and derived/ again, in place of former ones once all is drawn.

    Args:
        run_dir: The run's folder.
        by: The rule that onsets are read by, 'drift' or 'paper'; default 'drift'.

    Returns:
        The summary, as in summary.json.

    Raises:
        FileNotFoundError: No run is there.
        Refused: The store is damaged, or too few positions were captured.

    Examples:
        >>> summary = probe.write_report("runs/example", by="paper")
        >>> summary.onset_by
        'paper'
    """
    run, derived = open_run(run_dir), {}
    with Bar(total=1, desc="finding thresholds", unit="search") as bar:
        analysis = analyse(run, by=by, work=lambda name, make: derived.setdefault(name, make()))
        bar.update()
    folder = run.folder
    summary, former = whole_summary(analysis), report_files(folder)
    maps, drawn = Maps.of(analysis), drawn_sections(analysis, summary)
    unfinished = folder / ".report.partial"
    shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
    try:
        unfinished.mkdir()
        write_figures(analysis, unfinished / "figures", maps, drawn)
        write(unfinished / "report.html", render(analysis, summary, maps, drawn).encode())
        files = {file: folder / file.relative_to(unfinished) for file in unfinished.rglob("*") if file.is_file()}
        (folder / "figures").mkdir(exist_ok=True)
        for file, target in files.items():
            file.replace(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    SUMMARY.write(folder, summary)
    kept = {*files.values(), folder / SUMMARY.path, *(save(run, name, data) for name, data in derived.items())}
    for path in former - kept:
        path.unlink()
    return summary


def whole_summary(analysis: Analysis) -> Summary:
    """The summary as summary.json has it: with the verdict, and the mark of the store that it is of."""
    evidence, run = summarize(analysis), analysis.run
    answer = verdict(evidence, LOCATED.find(run.folder), PREDICTION.find(run.folder))
    return Summary(**vars(evidence), verdict=answer, store=store_mark(run.hidden.attrs))


def check_report(folder: Path) -> None:
    """Raises FileExistsError, naming it, for a file that `write_report` would replace and did not write."""
    check_ours(folder, REPORTED)
    names = (*_FIGURES, *(f"heatmap-*{end}" for end in _OF_PAGE))
    figures = [path for name in names for path in folder.glob(f"figures/{name}")]
    if figures and not (folder / "figures" / _PLOTLY).exists():  # which is written first, and stays
        raise Occupied(
            f"{figures[0]} is not a file that a run wrote, and this one would remove it; name another --out, or use "
            "--overwrite"
        )


def remove_report(folder: Path) -> None:
    """Removes what `write_report` wrote for a former run, and nothing else."""
    for path in report_files(folder):
        path.unlink()


def report_files(folder: Path) -> set[Path]:
    """What `write_report` wrote, but for what a heatmap's page loads."""
    pages = [page for page in folder.glob("figures/heatmap-*.html") if is_ours(page)]
    figures = (*_FIGURES, *(f"{page.stem}{end}" for page in pages for end in _OF_PAGE))
    derived = (f"{DERIVED}/*-{name}.npz" for name in ("thresholds", "control", "drift"))
    patterns = (*REPORTED, *(f"figures/{name}" for name in figures), *derived)
    return {path for pattern in patterns for path in folder.glob(pattern)}


def render(analysis: Analysis, summary: Summary, maps: Maps, drawn: Drawn) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. drawn: `drawn_sections`."""
    grids = [heatmap_grid(maps.pooled[group], analysis.trained_length, maps.limits) for group in maps.groups]
    differences = {f"less-{number}": grid for number, grid in enumerate(_differences(analysis, maps))}
    raw = {f"heatmaps-{number}": grid for number, grid in enumerate(grids)}
    return section_page(title(summary), sections(summary, analysis.run, drawn, differences, raw))


def write_figures(analysis: Analysis, folder: Path, maps: Maps, drawn: Drawn) -> None:
    """Writes into `folder`, for the headline prompt and on one colour scale a layer:

    heatmap-METHOD.png (one pixel a cell), .html (interactive, with plotly.min.js beside it) and, with labels,
    heatmap-METHOD[-pooled-DIMSxPOSITIONS].npz; heatmaps.png (all methods, with axes); threshold-layerL-dimD and curves
    as .png and .svg.
    """
    folder.mkdir(parents=True, exist_ok=True)
    methods: list[str] = maps.panel["method"].values.tolist()
    stems = {method: folder / f"heatmap-{safe_name(method)}" for method in methods}

    def write_raster(method: str) -> None:
        raster = Raster(maps.panel.sel({"method": method}), maps.limits)
        write(stems[method].with_name(f"{stems[method].name}.png"), rendered(raster, "png"))

    def grid(values: xr.DataArray) -> Heatmaps:
        return heatmap_grid(values, analysis.trained_length, maps.limits)

    write(folder / _PLOTLY, get_plotlyjs().encode())
    with ThreadPoolExecutor(1) as beside:  # of the rest, which is Python's work
        rasters = beside.map(write_raster, methods)
        for method, stem in stems.items():
            pooled = maps.pooled[method,].isel({"method": 0})
            numbers = npz_bytes(labelled_numbers(pooled, analysis.trained_length))
            write(stem.with_name(f"{stem.name}{pooled_name(pooled)}.npz"), numbers)
            write(stem.with_name(f"{stem.name}.html"), page(grid(pooled), "directory"))
        write(folder / "heatmaps.png", rendered(grid(maps.pooled[tuple(methods)]), "png"))
        list(Bar(rasters, desc="drawing heatmaps", total=len(methods), unit="method"))
    charts = figures_of([section for shown in drawn for section in shown[:1]])
    of_prompt = file_name("", analysis.hidden.sel(prompt=analysis.prompt))
    for name, chart in Bar(charts.items(), desc="drawing charts", unit="figure"):
        for form, content in pictures(chart, ("png", "svg")).items():
            write(folder / f"{name.replace(of_prompt, '')}.{form}", content)


def drawn_sections(analysis: Analysis, summary: Summary) -> Drawn:
    """What the report draws of an analysis, heatmaps aside."""
    prompt, run = analysis.prompt, analysis.run
    hidden, search = analysis.hidden.sel(prompt=prompt), analysis.crossings.sel(prompt=prompt)
    drifts = {} if isinstance(analysis.drifts, str) else analysis.drifts
    pairs = analysis.best[:_THRESHOLDS]
    return Drawn(
        thresholds=[threshold_section(hidden, search, pairs, plans_of(run, hidden))] if pairs else [],
        curves=[] if run.evaluation is None else [Section(figures=cast(Figures, curves_of(run, summary).figures))],
        drift=[drift_section(drift, name) for name, drift in drifts.items()],
        map=[map_section(drifts[prompt], prompt)] if drifts else [],
    )


def _differences(analysis: Analysis, maps: Maps) -> list[Heatmaps]:
    """Heatmaps less the reference's, at the layer where drift begins; none of a single method, or without drift."""
    if len(maps.panel["method"]) < 2 or isinstance(analysis.drifts, str):
        return []
    layer = drift_layers(analysis.drifts[analysis.prompt])[-1]
    less = difference(maps.panel.sel(layer=[layer]).load(), analysis.reference)
    return grids(pool(less), analysis.trained_length, layer_limits(less))
