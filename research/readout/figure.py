"""Draws picture.png of results/default*.csv: what is lost and moved, what probes read by length, where loss arises.

python research/readout/figure.py
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2]))

from research.figure_numbers import write_numbers

HERE, M = Path(__file__).parent, 256
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
READ, ORIGIN = "previous-1", "origin"


def rows(name: str, **labels: Any) -> list[dict[str, str]]:
    """The rows of results/NAME.csv with these labels."""
    with (HERE / "results" / f"{name}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == str(value) for key, value in labels.items())]


def ends(row: dict[str, str], name: str) -> list[float]:
    """A score of a row with its 95% interval."""
    return [float(row[name + end]) for end in ("", "_low", "_high")]


def parts(panel: Axes) -> list[dict[str, Any]]:
    """Lost and moved by property under Origin at 4 M; hollow: not claimed."""
    at, drawn = rows("default", method=ORIGIN, length=4 * M), []
    for name, colour, shift in (("lost", ORANGE, -0.12), ("moved", BLUE, 0.12)):
        for number, row in enumerate(at):
            value, low, high = ends(row, name)
            filled = colour if row[f"is_{name}"] == "True" else "white"
            panel.plot([low, high], [number + shift] * 2, color=colour, lw=1.5)
            panel.plot(value, number + shift, "o", color=colour, mfc=filled, label=name if not number else None)
            drawn.append(
                {"panel": "parts", "series": name, "place": row["probe"], "y": value, "low": low, "high": high}
            )
    panel.axvline(0, color=GREY, lw=0.8)
    panel.set_yticks(range(len(at)), [row["probe"] for row in at])
    panel.invert_yaxis()
    panel.set(
        title="Unmodified model at 4 M:\nlost and moved (hollow: not claimed)", xlabel="accuracy (R2 of position)"
    )
    panel.legend(frameon=False, fontsize=8)
    return drawn


def by_length(panel: Axes) -> list[dict[str, Any]]:
    """What probes read of the token before, by prompt length."""
    drawn = []
    for method, colour in ((ORIGIN, ORANGE), ("rerope", BLUE)):
        table = rows("default", probe=READ, method=method)
        for name, dash in (("refit", "--"), ("transfer", "-")):
            points = [[M, *ends(table[0], "inside")], *([int(row["length"]), *ends(row, name)] for row in table)]
            x, y, low, high = map(list, zip(*points, strict=True))
            panel.plot(
                x,
                y,
                dash,
                color=colour,
                marker="o",
                ms=4,
                label=f"{method}, probe of {'M' if name == 'transfer' else 'that length'}",
            )
            panel.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
            labels = {"panel": "length", "series": f"{method} {name}"}
            drawn += [labels | {"place": a, "y": b, "low": c, "high": d} for a, b, c, d in points]
    control = ends(rows("default", probe=READ, method=ORIGIN)[0], "control")[0]
    panel.axhline(control, color=GREY, lw=1, ls=":", label="control")
    panel.set_xscale("log", base=2)
    panel.set_xticks([M, 2 * M, 4 * M, 8 * M], ["M", "2 M", "4 M", "8 M"])
    panel.set(
        title="The token before, read by a linear probe", xlabel="prompt length", ylabel="accuracy", ylim=(0, 1.02)
    )
    panel.legend(frameon=False, fontsize=8)
    return drawn


def by_layer(panel: Axes) -> list[dict[str, Any]]:
    """The lens' loss above that at M, by layer."""
    drawn = []
    for length, colour in ((2 * M, GREEN), (4 * M, BLUE), (8 * M, ORANGE)):
        table = rows("default-lens", method=ORIGIN, length=length)
        layers = [int(row["layer"]) for row in table]
        y, low, high = zip(*(ends(row, "excess") for row in table), strict=True)
        panel.plot(layers, y, color=colour, marker="o", ms=4, label=f"{length // M} M")
        panel.fill_between(layers, low, high, color=colour, alpha=0.15, lw=0)
        labels = {"panel": "lens", "series": f"{length} tokens"}
        drawn += [
            labels | {"place": a, "y": b, "low": c, "high": d} for a, b, c, d in zip(layers, y, low, high, strict=True)
        ]
    panel.set_xticks(layers)
    panel.axhline(0, color=GREY, lw=0.8)
    panel.set(title="Unmodified model through the lens:\nloss above that at M", xlabel="layer", ylabel="nats/token")
    panel.legend(frameon=False, fontsize=8)
    return drawn


def main() -> None:
    """Draws the three panels, and writes their numbers."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    panels = figure.subplots(1, 3)
    numbers = [row for draw, panel in zip((parts, by_length, by_layer), panels, strict=True) for row in draw(panel)]
    figure.savefig(HERE / "picture.png", dpi=110)
    write_numbers(HERE / "picture.png", numbers)


if __name__ == "__main__":
    main()
