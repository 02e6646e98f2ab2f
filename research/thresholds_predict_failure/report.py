"""Writes a study's results, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probe.figures.static import MARKERS
from probe.figures.styles import Look, nth, style
from probe.files import write
from research.thresholds_predict_failure.results import DRIFT, write_results
from research.thresholds_predict_failure.table import (
    RULE,
    arithmetic,
    drifting,
    headline,
    predicted_lengths,
    scores_by_top,
    settings,
    tables,
)
from research.thresholds_predict_failure.variants import REFERENCE


def write_study(results: xr.Dataset, out: Path) -> str:
    """Writes study.json, study.md, lengths.png and dims.png into the folder `out`; returns the tables."""
    write_results(results, out / "study.json")
    text = tables(results)
    if forced := settings(results).get("forced"):
        changed = ", ".join(dict.fromkeys(name for each in forced for name in each))
        text = f"Not all of one run: --force went on with another {changed}.\n\n{text}"
    write(out / "study.md", (text + "\n").encode())
    lengths_figure(results).savefig(out / "lengths.png")
    dims_figure(results).savefig(out / "dims.png")
    return text


def lengths_figure(results: xr.Dataset, narrow: bool = False) -> Figure:
    """Predicted over measured length, one point a config, by thresholds, drift and arithmetic; bars: all seeds.

    narrow: panels below each other over the legend, for a phone.
    """
    prompt = "repeated word" if headline(results) == "repeated" else headline(results)
    panels = {f"hidden states ({prompt})": predicted_lengths(results, rule=RULE)}
    if drifting(results):
        panels = {
            f"thresholds ({prompt})": predicted_lengths(results, rule=RULE),
            f"drift ({prompt})": predicted_lengths(results, rule=DRIFT),
        }
    panels["arithmetic: largest distance reaches M"] = arithmetic(results)
    shape = (len(panels), 1) if narrow else (1, len(panels))
    size = (4.2, 4.2 * len(panels) + 1.6) if narrow else (2.1 + 4.2 * len(panels), 4.8)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    each = figure.subplots(*shape, sharey=True, sharex=not narrow)
    for axes, (title, predicted) in zip(each, panels.items(), strict=True):
        _lengths_panel(axes, results, predicted, title)
    for axes in each if narrow else each[:1]:
        axes.set_ylabel("predicted failure (tokens)")
    handles, labels = each[-1].get_legend_handles_labels()
    _legend(figure, handles, labels, narrow)
    return figure


def dims_figure(results: xr.Dataset, narrow: bool = False) -> Figure:
    """Rank correlation over the number of dims, for every prompt and rule that calls anything; narrow: for a phone."""
    figure = Figure(figsize=(4.2, 5) if narrow else (7.5, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    found = scores_by_top(results)
    prompts = list(dict.fromkeys(prompt for prompt, _ in found))
    for number, ((prompt, rule), scores) in enumerate(found.items()):
        x = np.array(list(scores), dtype=float) * 1.05 ** (number - len(found) / 2)
        value = np.array([one.correlation.value for one in scores.values()])
        ends = np.array([(one.correlation.low, one.correlation.high) for one in scores.values()]).T
        bars = np.abs(ends - value)
        colour, _, symbol = nth(prompts.index(prompt))
        wide = rule != RULE
        look = {"color": colour, "marker": MARKERS[symbol], "ms": 5, "mfc": "none" if wide else colour, "lw": 1.2}
        look["ls"] = "--" if wide else "-"
        axes.errorbar(x, value, bars, capsize=2, label=f"{prompt}, {rule}", **look)
    axes.axhline(0, color="0.6", lw=0.8)
    axes.set(xscale="log", xlabel="dims that a prediction is the median of", ylabel="Spearman, 95% interval")
    tops = results["top"].values
    axes.set_xticks(tops, [str(top) for top in tops], minor=False)
    axes.minorticks_off()
    _legend(figure, *axes.get_legend_handles_labels(), narrow)
    return figure


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], narrow: bool) -> None:
    """The legend at the right, or below in two columns."""
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 2} if narrow else {"loc": "outside right center"}
    if handles:
        figure.legend(handles, labels, frameon=False, fontsize=9, **place)


def _lengths_panel(axes: Axes, results: xr.Dataset, predicted: np.ndarray, title: str) -> None:
    asked = settings(results)
    trained, length = asked["trained_length"], asked["length"]
    none, ends = 1.6 * length, (0.9 * trained, 1.9 * length)
    asides = none * np.geomspace(0.87, 1.15, results.sizes["config"])  # so that configs that never fail stay apart
    measured = results["measured"].sel(criterion="either").transpose("config", "seed").values
    methods = [config.split()[0] for config in results["config"].values.tolist()]
    shown: set[str] = set()
    for method, x, y, aside in zip(methods, measured, predicted, asides, strict=True):
        called = np.where(y > length, none, y)[~np.isnan(y)]
        x = x[~np.isnan(x)]
        if called.size and x.size:
            label = f"{method} (descriptive)" if method == REFERENCE else method
            _point(
                axes, style(method, methods), np.where(x > length, aside, x), called, None if method in shown else label
            )
            shown.add(method)
    axes.plot([trained, length], [trained, length], color="0.7", lw=0.8, zorder=0)
    multiples = (1, 2, 4, 8, 16) if length >= 4 * trained else (1, 1.25, 1.5, 2, 3)
    ticks = [int(multiple * trained) for multiple in multiples if multiple * trained <= length]
    names = [*map(str, ticks), "none"]
    axes.set(xscale="log", yscale="log", title=title, xlabel="measured failure (tokens)", xlim=ends, ylim=ends)
    axes.set_xticks([*ticks, none], names)
    axes.set_yticks([*ticks, none], names)
    axes.minorticks_off()
    for span in (axes.axvspan, axes.axhspan):
        span(1.25 * length, ends[1], color="0.95", zorder=-1)


def _point(axes: Axes, look: Look, x: np.ndarray, y: np.ndarray, label: str | None) -> None:
    """The medians of x and y, with bars from least to most."""
    colour, _, symbol = look
    across, up = ([[np.median(each) - each.min()], [each.max() - np.median(each)]] for each in (x, y))
    axes.errorbar(
        float(np.median(x)),
        float(np.median(y)),
        xerr=across,
        yerr=up,
        marker=MARKERS[symbol],
        color=colour,
        markersize=6,
        linewidth=0.8,
        linestyle="",
        alpha=0.85,
        label=label,
    )
