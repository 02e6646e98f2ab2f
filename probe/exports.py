"""Writes a run's figures as files: native-resolution heatmaps, interactive heatmaps, threshold plots, curves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure
from tqdm import tqdm

from probe.analysis import Analysis
from probe.figures import heatmap_figure
from probe.heatmap import default_regions, layer_limits, pool, regions, write_npz, write_png
from probe.static import static_curves, static_heatmap, static_threshold

THRESHOLDS = 4
"""Threshold plots written: of the best dims."""


def panel(analysis: Analysis) -> xr.DataArray:
    """The headline prompt's hidden states at the default regions: (method, layer, dim, position), in memory."""
    bounds = default_regions(analysis.hidden["position"].values, analysis.trained_length)
    return regions(analysis.hidden.sel(prompt=analysis.prompt), bounds).load()


def write_figures(analysis: Analysis, folder: Path) -> None:
    """Writes into `folder`, for the headline prompt and on one colour scale a layer:

    heatmap-METHOD.png (one pixel a cell), .html (interactive, with plotly.min.js beside it) and .npz (pooled values
    with labels); heatmaps.png (all methods, with axes); threshold-layerL-dimD and curves as .png and .svg.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = panel(analysis)
    limits = layer_limits(shown)
    for method in tqdm(shown["method"].values.tolist(), desc="drawing heatmaps", unit="method"):
        one, stem = shown.sel({"method": method}), folder / f"heatmap-{_file_name(method)}"
        write_png(one, stem.with_suffix(".png"), limits)
        write_npz(pool(one), stem.with_suffix(".npz"))
        figure = heatmap_figure(one, analysis.trained_length, limits)
        figure.write_html(stem.with_suffix(".html"), include_plotlyjs="directory")
    static_heatmap(pool(shown), analysis.trained_length, limits).savefig(folder / "heatmaps.png")
    for name, figure in tqdm(list(_charts(analysis)), desc="drawing charts", unit="figure"):
        for suffix in ("png", "svg"):
            figure.savefig(folder / f"{name}.{suffix}")


def _charts(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    hidden, found = analysis.hidden.sel(prompt=analysis.prompt), analysis.found.sel(prompt=analysis.prompt)
    for layer, dim in analysis.best[:THRESHOLDS]:
        yield f"threshold-layer{layer}-dim{dim}", static_threshold(hidden, found, layer, dim)
    evaluation, measured = analysis.run.evaluation, analysis.measured
    if evaluation is not None and measured is not None:
        predictions = analysis.predictions[analysis.prompt]
        yield "curves", static_curves(evaluation, measured, analysis.trained_length, predictions)


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]", "-", label)
