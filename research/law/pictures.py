"""Draws docs/law-curve.png and gaps.png from results/default.json, and writes their numbers beside them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from probe.figures.export import rendered  # noqa: E402
from probe.figures.figure_data import BLACK, RED, Chart, Line, Panel, Rule, axis_range, nth, style, trained_rule  # noqa: E402  # noqa: E402
from probe.files import write  # noqa: E402
from probe.thresholds.stated_window import NATS_ABOVE  # noqa: E402
from research.figure_numbers import of_chart, write_numbers  # noqa: E402

_EXCESS = "excess loss (nats/token)"
_FAILS = Rule(NATS_ABOVE, f"fails: {NATS_ABOVE} nats", RED)


def main() -> None:
    """Writes both pictures and their numbers."""
    result = json.loads((Path(__file__).parent / "results" / "default.json").read_text())
    here = Path(__file__).parent
    for path, chart in (
        (ROOT / "docs" / "law-curve.png", curve_chart(result)),
        (here / "gaps.png", gap_chart(result)),
    ):
        write(path, rendered(by_family(chart), "png"))
        write_numbers(path, of_chart(chart))


def by_family(chart: Chart) -> Chart:
    """The chart with a config's line named by its method."""
    panels = [
        replace(panel, lines=tuple(replace(line, label=line.label.split(":")[0]) for line in panel.lines))
        for panel in chart.panels
    ]
    return replace(chart, panels=tuple(panels))


def curve_chart(result: dict[str, Any]) -> Chart:
    """Origin's excess by position; and every config's measured excess over its Z, on Origin's."""
    trained, rule = result["trained_length"], result["rules"]["p by gaps"]
    position = np.array(result["curve"]["position"], float)
    excess = np.array(result["curve"]["excess"])[: len(position)]
    by_position = Line("origin", position, excess, BLACK, "solid", "circle")
    sums = np.cumsum(np.arange(1.0, len(excess)) ** rule["power"])
    on_z = Line("origin", np.log10(sums), excess[1:], BLACK, "solid", "circle")
    configs = tuple(
        Line(name, np.log10(np.maximum(row["z"], 1.0)), np.array(row["measured"]), *_marker(name))
        for name, row in result["configs"].items()
    )
    first = Panel(
        "the unmodified model beyond M", "position (tokens)", _EXCESS, (by_position,),
        axis_range([by_position], [_FAILS]), rules=(trained_rule(trained), replace(_FAILS, text="")),
    )  # fmt: skip
    ticks = tuple(range(int(np.log10(sums[-1])) + 1))
    second = Panel(
        f"{len(configs)} configs at {len(result['lengths'])} lengths, by Z",
        "Z (weighted count of keys that are too far)", _EXCESS, (on_z, *configs),
        axis_range([on_z, *configs], [_FAILS]), rules=(_FAILS,), x_ticks=ticks,
        x_labels=tuple(f"1e{tick}" if tick else "none" for tick in ticks),
    )  # fmt: skip
    methods = {name.split(":")[0] for name in result["configs"]}
    return Chart(f"Loss over LM-Infinite: {len(methods)} methods near the unmodified model's curve", (first, second))


def gap_chart(result: dict[str, Any]) -> Chart:
    """What a gap costs on prompts of M tokens, with what is predicted; and predicted against measured excess."""
    boundaries = sorted({row["boundary"] for row in result["gaps"]})
    lines = []
    for number, boundary in enumerate(boundaries):
        rows = [row for row in result["gaps"] if row["boundary"] == boundary]
        x = np.array([row["gap"] for row in rows], float)
        value, low, high = np.array([row["over_no_gap"] for row in rows]).T
        colour, _, symbol = nth(number)
        lines += [
            Line(f"J = {boundary}", x, value, colour, "none", symbol, interval=(low, high)),
            Line(f"J = {boundary}, predicted", x, np.array([row["predicted"] for row in rows]), colour, "dash", "none"),
        ]
    gaps = sorted({row["gap"] for row in result["gaps"]})
    first = Panel(
        f"prompts of {result['trained_length']}; the first J tokens moved G away", "G (tokens)",
        "loss over no gap (nats/token)", tuple(lines), axis_range(lines), x_ticks=tuple(gaps), log_x=True,
    )  # fmt: skip
    scatter = [
        Line(name, np.array(row["measured"]), np.array(row["predicted"]), *_marker(name))
        for name, row in result["configs"].items()
    ]
    ends = np.array([0.0, max(float(line.x.max()) for line in scatter)])
    diagonal = Line("equal", ends, ends, BLACK, "dash", "none")
    second = Panel(
        "configs and texts not used in fitting", "measured excess (nats/token)", "predicted excess (nats/token)",
        (diagonal, *scatter), axis_range([diagonal, *scatter]),
    )  # fmt: skip
    return Chart("A gap at fixed length; predicted against measured", (first, second))


def _marker(name: str) -> tuple[str, str, str]:
    """A config's look: its method's, without a line."""
    colour, _, symbol = style(name.split(":")[0])
    return colour, "none", symbol


if __name__ == "__main__":
    main()
