"""Means and confidence intervals of scores, by task, metric, method and length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from probe.tasks.base import Metric, Task

_Z = 1.959964  # of 95%
_RESAMPLED = 2000
_BY_LENGTH = {"tail_nll": Metric("nll", "nats/token"), "passkey": Metric("accuracy", "share found", binary=True)}


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share.

    >>> [round(end, 3) for end in wilson(10, 10)]
    [0.722, 1.0]
    """
    share, z2 = hits / count, _Z**2 / count
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z / (1 + z2) * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """95% percentile interval of the mean over resampled values; seeded."""
    array = np.asarray(values)
    picked = np.random.default_rng(0).integers(0, len(array), (_RESAMPLED, len(array)))
    low, high = np.quantile(array[picked].mean(1), [0.025, 0.975])
    return float(low), float(high)


def interval(values: Sequence[float], metric: Metric) -> tuple[float, float]:
    """95% interval of the mean: Wilson's for 0 and 1, else by bootstrap."""
    return wilson(round(sum(values)), len(values)) if metric.binary else bootstrap(values)


def intervals(scores: xr.Dataset) -> dict[str, list[float]]:
    """`tail_nll_interval` and `passkey_interval`, [low, high], of one method's scores at one length."""
    return {
        f"{name}_interval": list(interval(scores[name].values.tolist(), metric))
        for name, metric in _BY_LENGTH.items()
        if name in scores
    }


def summarize(rows: Sequence[Mapping[str, Any]], tasks: Mapping[str, Task]) -> list[dict[str, Any]]:
    """One entry a (task, metric, method, length): unit, mean, low, high and n, lengths in order."""
    grouped: dict[tuple[str, str, str, int], list[float]] = {}
    for row in rows:
        key = (row["task"], row["metric"], row["method"], row["length"])
        grouped.setdefault(key, []).append(row["score"])
    entries = []
    for (task, name, method, length), values in sorted(grouped.items(), key=lambda item: item[0][3]):
        metric = next(metric for metric in tasks[task].metrics if metric.name == name)
        low, high = interval(values, metric)
        entries.append(
            {
                "task": task,
                "metric": name,
                "unit": metric.unit,
                "method": method,
                "length": length,
                "mean": float(np.mean(values)),
                "low": low,
                "high": high,
                "n": len(values),
            }
        )
    return entries


def tables(cells: Sequence[Mapping[str, Any]]) -> str:
    """Plain text: a table a task and metric, methods down, lengths across; mean and 95% interval."""
    parts = []
    for task, metric in dict.fromkeys((cell["task"], cell["metric"]) for cell in cells):
        own = [cell for cell in cells if (cell["task"], cell["metric"]) == (task, metric)]
        lengths = sorted({cell["length"] for cell in own})
        rows = [["", *map(str, lengths)]]
        for method in dict.fromkeys(cell["method"] for cell in own):
            by = {cell["length"]: cell for cell in own if cell["method"] == method}
            rows.append([method, *(_shown(by.get(length)) for length in lengths)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(lengths) + 1)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        counts = sorted({cell["n"] for cell in own})
        shown = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0]
        parts.append("\n".join([f"{task}, {metric} ({own[0]['unit']}); mean of {shown} [95% interval]", *lines]))
    return "\n\n".join(parts)


def _shown(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    return f"{cell['mean']:.3g} [{cell['low']:.3g}, {cell['high']:.3g}]"
