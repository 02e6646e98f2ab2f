"""Draws docs/mechanism.png: what two heads attend to and restore, and what an injected drift costs.

python research/mechanism/picture.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#888888"
MODELS = {"default": "shipped,\nReRoPE", "former": "earlier,\nReRoPE", "nope": "no positions,\nMesa"}


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
    """The gap, what the two sharpest local heads restore, and mean and most of 20 random pairs of other heads."""
    table = rows(f"head_sets/{model}/sets.csv")
    two = next(row for row in table if row["set"] == "sharpest")
    others = [float(row["share"]) for row in table if row["set"].startswith("others")]
    names = ("gap", "gap_low", "gap_high", "share", "low", "high")
    return {name: float(two[name]) for name in names} | {"mean": sum(others) / len(others), "most": max(others)}


def attention(panel: Axes) -> None:
    """Attention of heads 0.7 and 2.0 to the last 32 tokens: inside M, and at 4 M under three methods."""
    places = {
        ("origin", "inside M"): "inside M",
        ("origin", "beyond M"): "Origin,\nbeyond M",
        ("rerope", "beyond M"): "ReRoPE",
        ("mesa", "beyond M"): "Mesa",
    }
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
        panel.bar(at, middle, 0.38, color=color, label=f"head {layer}.{head}")
        panel.errorbar(at, middle, ends, fmt="none", ecolor="black", lw=1)
    panel.set_xticks(range(len(places)), places.values(), fontsize=8)
    panel.set(ylabel="attention to the last 32 tokens (%)", title="Two heads lose the near past", ylim=(0, 108))
    panel.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)


def restored(panel: Axes) -> None:
    """What a method in the two sharpest local heads alone restores, beside 20 random pairs of other heads."""
    for number, model in enumerate(MODELS):
        table = rows(f"head_sets/{model}/sets.csv")
        two = next(row for row in table if row["set"] == "sharpest")
        others = [100 * float(row["share"]) for row in table if row["set"].startswith("others")]
        value, low, high = (100 * float(two[name]) for name in ("share", "low", "high"))
        panel.scatter(
            [number + 0.12] * len(others), others, s=14, color=GREY, label=None if number else "20 random pairs"
        )
        panel.errorbar([number - 0.12], [value], [[value - low], [high - value]], fmt="o", color=ORANGE, capsize=3)
        heads = " and ".join(
            f"{part.split(':')[0]}.{head}" for part in two["heads"].split(";") for head in part.split(":")[1].split(",")
        )
        panel.annotate(
            heads, (number - 0.18, value), ha="right", va="bottom" if value < 5 else "center", fontsize=8, color=ORANGE
        )
    panel.axhline(0, color="black", lw=0.6)
    panel.set_xticks(range(len(MODELS)), MODELS.values(), fontsize=8)
    panel.set(
        ylabel="loss restored at 4 M (%)",
        title="The method in two local heads alone",
        xlim=(-0.9, 2.5),
        ylim=(-12, 100),
    )
    panel.legend(frameon=False, fontsize=8, loc="upper right")


def injected(panel: Axes) -> None:
    """What the drift beyond M costs where it is put into one layer inside M."""
    kinds = {
        "whole drift": ("all of it", ORANGE, "o"),
        "mean drift": ("its mean over texts", BLUE, "s"),
        "word": ("in threshold dims", "#009E73", "^"),
        "rerope's states": ("ReRoPE's states", GREY, "D"),
    }
    for shift, (kind, (label, color, marker)) in zip((-0.24, -0.08, 0.08, 0.24), kinds.items(), strict=True):
        at = costs(kind)
        values, lows, highs = ([100 * row[name] for row in at] for name in ("share", "share_low", "share_high"))
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
        title="The drift at 4 M, put in inside M",
        ylim=(-12, 165),
    )
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def main() -> None:
    """Draws the picture."""
    figure = Figure(figsize=(14, 4.4), layout="constrained", dpi=120)
    for draw, panel in zip((attention, restored, injected), figure.subplots(1, 3), strict=True):
        draw(panel)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(PAGE / "mechanism.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
