"""Draws picture.png, its numbers beside it: what two heads attend to and recover, what an injected drift costs.

python research/mechanism/picture.py
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.options import head_name
from research.figure_numbers import write_numbers

HERE = Path(__file__).parent
Numbers = list[dict[str, Any]]
"""What a panel shows: its title, series, place, value and 95% interval, in percent."""
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#888888"
MODELS = {"default": "shipped", "seed1": "seed 1", "seed2": "seed 2", "former": "earlier", "nope": "NoPE"}


def rows(name: str) -> list[dict[str, str]]:
    """A table below results/."""
    with (HERE / "results" / name).open(encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def costs(kind: str) -> list[dict[str, float]]:
    """By layer: what an injected drift costs, as a `share` of the loss beyond M with its ends.

    kind: an edit, or a kind of dims. chance: the mean of random sets of as many dims.
    """
    table, result = rows("inject.csv"), []
    for row in table:
        kinds, _, count = row["edit"].partition(", ")
        if row["edit"] == kind or (kinds == kind and count.endswith("dims")):
            sets = [
                float(other["share"])
                for other in table
                if other["layer"] == row["layer"]
                and other["edit"].startswith("random")
                and other["edit"].endswith(f", {count}")
            ]
            numbers = {name: float(row[name]) for name in ("layer", "share", "share_low", "share_high")}
            result.append(numbers | ({"chance": sum(sets) / len(sets)} if sets else {}))
    return result


def pairs(model: str) -> dict[str, float]:
    """The gap, what the two sharpest local heads recover, and mean and most of 20 random pairs of other heads."""
    table = rows(f"head_sets/{model}/sets.csv")
    two = next(row for row in table if row["set"] == "sharpest")
    others = [float(row["share"]) for row in table if row["set"].startswith("others")]
    names = ("gap", "gap_low", "gap_high", "share", "low", "high")
    return {name: float(two[name]) for name in names} | {"mean": sum(others) / len(others), "most": max(others)}


def numbers(title: str, series: str, places: Iterable[Any], *columns: Iterable[float]) -> Numbers:
    """Rows of a panel; columns: value, low and high of its 95% interval, or the value alone."""
    names = ("panel", "series", "at", "value", "low", "high")
    return [dict(zip(names, (title, series, *row), strict=False)) for row in zip(places, *columns, strict=True)]


def attention(panel: Axes) -> Numbers:
    """Attention of L0H7 and L2H0 to the last 32 tokens: inside M, and at 4x M under three methods."""
    places = {
        ("origin", "inside M"): "inside M",
        ("origin", "beyond M"): "Origin,\nbeyond M",
        ("rerope", "beyond M"): "ReRoPE",
        ("mesa", "beyond M"): "Mesa",
    }
    title, shown = "Two heads lose the near past", []
    table = {
        (row["layer"], row["head"], row["method"], row["span"]): row
        for row in rows("heads.csv")
        if row["length"] == "1024"
    }
    for (layer, head, color), shift in zip((("0", "7", BLUE), ("2", "0", ORANGE)), (-0.2, 0.2), strict=True):
        values = [table[layer, head, *place] for place in places]
        middle = [100 * float(row["mass_near"]) for row in values]
        ends = [
            [100 * abs(float(row[f"mass_near_{end}"]) - float(row["mass_near"])) for row in values]
            for end in ("low", "high")
        ]
        at = [number + shift for number in range(len(places))]
        panel.bar(at, middle, 0.38, color=color, label=head_name(layer, head))
        panel.errorbar(at, middle, ends, fmt="none", ecolor="black", lw=1)
        limits = ([100 * float(row[f"mass_near_{end}"]) for row in values] for end in ("low", "high"))
        where = (name.replace("\n", " ") for name in places.values())
        shown += numbers(title, head_name(layer, head), where, middle, *limits)
    panel.set_xticks(range(len(places)), places.values(), fontsize=8)
    panel.set(ylabel="attention to the last 32 tokens (%)", title=title, ylim=(0, 118))
    panel.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    return shown


def recovered(panel: Axes) -> Numbers:
    """What a method in the two sharpest local heads alone recovers, beside 20 random pairs of other heads."""
    title, shown, ticks = "ReRoPE (NoPE: Mesa) in two heads alone", [], []
    for number, (model, name) in enumerate(MODELS.items()):
        table = rows(f"head_sets/{model}/sets.csv")
        two = next(row for row in table if row["set"] == "sharpest")
        others = [100 * float(row["share"]) for row in table if row["set"].startswith("others")]
        value, low, high = (100 * float(two[name]) for name in ("share", "low", "high"))
        panel.scatter(
            [number + 0.12] * len(others),
            others,
            s=14,
            color=GREY,
            label=None if number else "20 random pairs of heads",
        )
        panel.errorbar([number - 0.12], [value], [[value - low], [high - value]], fmt="o", color=ORANGE, capsize=3)
        heads = ", ".join(
            head_name(layer, head)
            for layer, heads in (part.split(":") for part in two["heads"].split(";"))
            for head in heads.split(",")
        )
        ticks.append("\n".join((name, *heads.split(", "))))
        shown += numbers(title, heads, [name], [value], [low], [high])
        shown += numbers(title, "random pair", [name] * len(others), others)
    panel.axhline(0, color="black", lw=0.6)
    panel.set_xticks(range(len(MODELS)), ticks, fontsize=8)
    panel.set(ylabel="loss recovered at 4x M (%)", title=title, ylim=(-12, 108))
    panel.legend(frameon=False, fontsize=8, loc="upper right")
    return shown


def injected(panel: Axes) -> Numbers:
    """What the drift beyond M costs where it is put into one layer inside M."""
    kinds = {
        "whole drift": ("all of it", ORANGE, "o"),
        "mean drift": ("its mean over texts", BLUE, "s"),
        "word": ("in threshold dims", "#009E73", "^"),
        "rerope's states": ("ReRoPE's states", GREY, "D"),
    }
    title, shown = "The drift at 4x M, put in inside M", []
    for shift, (kind, (label, color, marker)) in zip((-0.24, -0.08, 0.08, 0.24), kinds.items(), strict=True):
        at = costs(kind)
        values, lows, highs = ([100 * row[name] for row in at] for name in ("share", "share_low", "share_high"))
        shown += numbers(title, label, (f"layer {row['layer']:.0f}" for row in at), values, lows, highs)
        ends = [[value - low for value, low in zip(values, lows, strict=True)]]
        ends += [[high - value for value, high in zip(values, highs, strict=True)]]
        panel.errorbar(
            [row["layer"] + shift for row in at],
            values,
            ends,
            fmt=marker,
            color=color,
            ms=5,
            capsize=2,
            label=label,
        )
    panel.axhline(0, color="black", lw=0.6)
    panel.set_xticks(range(4))
    panel.set(
        xlabel="after layer",
        ylabel="share of the loss beyond M (%)",
        title=title,
        ylim=(-12, 175),
    )
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    return shown


def main() -> None:
    """Draws the picture and writes its numbers."""
    figure = Figure(figsize=(10.5, 3.6), layout="constrained", dpi=180)
    shown = []
    for draw, panel in zip((attention, recovered, injected), figure.subplots(1, 3), strict=True):
        shown += draw(panel)
        panel.spines[["top", "right"]].set_visible(False)
        panel.title.set_fontsize(10)
        panel.yaxis.label.set_fontsize(9)
    figure.savefig(HERE / "picture.png", metadata={"Software": None})
    write_numbers(HERE / "picture.png", shown)


if __name__ == "__main__":
    main()
