"""The numbers of a picture, as a csv of its name beside it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probe.figures.figure_data import Chart


def write_numbers(picture: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes the rows beside `picture`, numbers to five digits; a missing one is an empty field, unless all are."""
    rows = [{name: _text(value) for name, value in row.items()} for row in rows]
    names = [
        name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) != "" for row in rows)
    ]
    with picture.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def of_chart(chart: Chart) -> Iterator[dict[str, Any]]:
    """A row a value of the chart's lines, with its 95% interval where the line has one."""
    for panel in chart.panels:
        for line in panel.lines:
            low, high = line.interval or np.full((2, len(line.x)), np.nan)
            for x, y, *ends in zip(line.x, line.y, low, high, strict=True):
                labels = {"panel": panel.title, "series": line.label}
                yield labels | {"x": x, "y": y, "low": ends[0], "high": ends[1]}


def of_table(path: Path, wanted: Mapping[str, Iterable[str]], columns: Iterable[str]) -> Iterator[dict[str, str]]:
    """These columns of a table's rows, of those whose other columns have one of the wanted texts."""
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if all(row[name] in texts for name, texts in wanted.items()):
                yield {name: row[name] for name in columns}


def of_drift(path: Path, wanted: Mapping[str, Iterable[str]]) -> Iterator[dict[str, Any]]:
    """Of a `levels` table: rms distance from the in-window range in units of the layer's limit; warm-up is empty."""
    for row in of_table(path, wanted, ("method", "layer", "run", "level", "warm_up", "limit")):
        level = np.nan if row["warm_up"] == "True" else float(row["level"] or "nan") / float(row["limit"] or "nan")
        labels = {"method": row["method"], "layer": row["layer"], "position": row["run"]}
        yield labels | {"distance_in_limits": float(f"{np.sqrt(level):.3g}")}


def _text(value: Any) -> Any:
    if not isinstance(value, float | np.floating):
        return value
    return "" if np.isnan(value) else f"{value:.5g}" if abs(value) < 1e5 else f"{value:.0f}"
