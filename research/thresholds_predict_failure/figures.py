"""Writes a study's results, tables and figures, with the figures' numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probe.figures.figure_data import nth, style
from probe.figures.static import MARKERS
from probe.files import write
from research.figure_numbers import write_numbers
from research.thresholds_predict_failure.results import DRIFT, REFERENCE, write_results
from research.thresholds_predict_failure.tables import (
    RULE,
    arithmetic,
    headline,
    measured_lengths,
    onset_lengths,
    scores_by_top,
    settings,
    tables,
)


def write_study(results: xr.Dataset, out: Path) -> str:
    """Writes study.json, study.md, and lengths and dims as png and csv into the folder `out`; returns the tables."""
    text = tables(results)
    write_results(results, out / "study.json")
    write(out / "study.md", (text + "\n").encode())
    lengths_figure(results).savefig(out / "lengths.png")
    dims_figure(results).savefig(out / "dims.png")
    write_numbers(out / "lengths.png", length_numbers(results))
    write_numbers(out / "dims.png", dim_numbers(results))
    return text


def lengths_figure(results: xr.Dataset) -> Figure:
    """Onset over measured length, one point a config, by thresholds, drift and arithmetic; bars: all seeds."""
    panels = _length_panels(results)
    figure = Figure(figsize=(2.1 + 3 * len(panels), 3.8), dpi=160, layout="constrained")
    for axes, (title, onsets) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        _lengths_panel(axes, results, onsets, title)
    figure.axes[0].set_ylabel("onset (tokens)")
    _legend(figure)
    return figure


def length_numbers(results: xr.Dataset) -> Iterator[dict[str, Any]]:
    """A row a config and panel: median, least and most over the seeds; inf: none up to the longest."""
    for title, onsets in _length_panels(results).items():
        for config, y, x in zip(results["config"].values, onsets, measured_lengths(results), strict=True):
            row = {"panel": title, "config": config}
            for name, values in (("measured", x), ("onset", y)):
                values = np.where(values > settings(results)["length"], np.inf, values)[~np.isnan(values)]
                if values.size:
                    row |= {name: np.median(values), f"{name}_least": values.min(), f"{name}_most": values.max()}
            if {"measured", "onset"} <= row.keys():
                yield row


def _length_panels(results: xr.Dataset) -> dict[str, np.ndarray]:
    """Onsets (config, seed) by the panel's title."""
    prompt = "repeated word" if headline(results) == "repeated" else headline(results)
    return {
        f"thresholds ({prompt})": onset_lengths(results, rule=RULE),
        f"drift ({prompt})": onset_lengths(results, rule=DRIFT),
        "arithmetic: largest distance reaches M": arithmetic(results),
    }


def dim_numbers(results: xr.Dataset) -> Iterator[dict[str, Any]]:
    """A row a prompt, rule and number of dims: the rank correlation and its 95% interval."""
    for (prompt, rule), scores in scores_by_top(results).items():
        for top, one in scores.items():
            yield {"prompt": prompt, "rule": rule, "dims": top, "spearman": one.correlation.value} | {
                end: float(getattr(one.correlation, end)) for end in ("low", "high")
            }


def dims_figure(results: xr.Dataset) -> Figure:
    """Rank correlation over the number of dims, for every prompt and rule that calls anything."""
    figure = Figure(figsize=(7.5, 4), dpi=160, layout="constrained")
    axes, by_kind = figure.subplots(), scores_by_top(results)
    prompts = list(dict.fromkeys(prompt for prompt, _ in by_kind))
    for number, ((prompt, rule), scores) in enumerate(by_kind.items()):
        x = np.array(list(scores), dtype=float) * 1.05 ** (number - len(by_kind) / 2)
        value = np.array([one.correlation.value for one in scores.values()])
        ends = np.array([(one.correlation.low, one.correlation.high) for one in scores.values()]).T
        colour, _, symbol = nth(prompts.index(prompt))
        look = {"color": colour, "marker": MARKERS[symbol], "ms": 5, "lw": 1.2}
        look |= {"mfc": colour, "ls": "-"} if rule == RULE else {"mfc": "none", "ls": "--"}
        axes.errorbar(x, value, np.abs(ends - value), capsize=2, label=f"{prompt}, {rule}", **look)
    axes.axhline(0, color="0.6", lw=0.8)
    axes.set(xscale="log", xlabel="dims that an onset is the median of", ylabel="Spearman, 95% interval")
    tops = results["top"].values
    axes.set_xticks(tops, [str(top) for top in tops], minor=False)
    axes.minorticks_off()
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside right center")


def _lengths_panel(axes: Axes, results: xr.Dataset, onsets: np.ndarray, title: str) -> None:
    trained, length = (settings(results)[name] for name in ("trained_length", "length"))
    none, ends = 1.6 * length, (0.9 * trained, 1.9 * length)
    asides = none * np.geomspace(0.87, 1.15, results.sizes["config"])  # so that configs that never fail stay apart
    methods = [config.split()[0] for config in results["config"].values.tolist()]
    labelled: set[str] = set()
    for method, x, y, aside in zip(methods, measured_lengths(results), onsets, asides, strict=True):
        y, x = np.where(y > length, none, y)[~np.isnan(y)], x[~np.isnan(x)]
        if not y.size or not x.size:
            continue
        x = np.where(x > length, aside, x)
        label = f"{method} (not scored)" if method == REFERENCE else method
        colour, _, symbol = style(method)
        bars = {
            name: [[np.median(values) - values.min()], [values.max() - np.median(values)]]
            for name, values in (("xerr", x), ("yerr", y))
        }
        look = {"marker": MARKERS[symbol], "color": colour, "ms": 6, "lw": 0.8, "ls": "", "alpha": 0.85}
        point = float(np.median(x)), float(np.median(y))
        axes.errorbar(*point, **bars, **look, label=None if method in labelled else label)
        labelled.add(method)
    if not labelled:
        axes.text(0.35, 0.75, "nothing detected", ha="center", transform=axes.transAxes)
    axes.plot([trained, length], [trained, length], color="0.7", lw=0.8, zorder=0)
    multiples = (1, 2, 4, 8, 16) if length >= 4 * trained else (1, 1.5, 2, 3)
    ticks = [int(multiple * trained) for multiple in multiples if multiple * trained <= length]
    axes.set(xscale="log", yscale="log", xlabel="measured failure (tokens)", xlim=ends, ylim=ends)
    axes.set_title(title, fontsize=10)
    axes.set_xticks([*ticks, none], [*map(str, ticks), "none"])
    axes.set_yticks([*ticks, none], [*map(str, ticks), "none"])
    axes.minorticks_off()
    for span in (axes.axvspan, axes.axhspan):
        span(1.25 * length, ends[1], color="0.95", zorder=-1)
