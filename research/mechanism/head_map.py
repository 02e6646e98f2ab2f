"""Draws head_map.png: what ReRoPE in one head alone recovers, patched and to first order.

python research/mechanism/head_map.py
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.commands.locate.interventions import Head
from probe.options import head_name
from research.correlation import rank_correlation
from research.figure_numbers import write_numbers
from research.mechanism.picture import BLUE, GREY, HERE, rows
from research.real_model.run import RESULTS as REAL_MODEL, located

TEXT = 0
"""The text of SmolLM2 that was estimated."""


def gap(name: str = "rerope") -> float:
    """What a method recovers on that text, nats/token."""
    lines = (REAL_MODEL / "locate-12k" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    losses = {tuple(row["cell"]): np.mean(row["nll"]) for row in map(json.loads, lines) if "nll" in row}
    return float(losses["nll", 12288, "origin", TEXT, "run"] - losses["nll", 12288, name, TEXT, "run"])


def estimates(model: str) -> dict[Head, float]:
    """Nats/token that a head recovers to first order, mean over texts."""
    by_head: dict[Head, list[float]] = {}
    for row in rows("attribution.csv"):
        if row["model"] == model:
            by_head.setdefault((int(row["layer"]), int(row["head"])), []).append(float(row["restored"]))
    return {head: float(np.mean(values)) for head, values in by_head.items()}


def patched(model: str) -> dict[Head, float]:
    """Shares that heads recover when patched: all heads of the shipped model and of SmolLM2."""
    if model == "smollm2":
        return {place: share for place, share in located(TEXT).items() if place[1] >= 0} | other_heads()
    wanted = {"method": "rerope", "length": "1024", "measure": "nll", "kind": "patch", "way": "only"}
    table = [row for row in rows("effects.csv") if wanted.items() <= row.items() and row["head"]]
    return {(int(row["layer"]), int(row["head"])): float(row["share"]) for row in table}


def other_heads() -> dict[Head, float]:
    """Shares that SmolLM2's heads outside layers 16 and 19 recover."""
    return {place: share for place, (share, _, _) in intervals().items()}


def intervals() -> dict[Head, tuple[float, float, float]]:
    """The same with their 95% intervals over parts of the text."""
    table = ((row["heads"].split(":"), row) for row in rows("head_sets/smollm2/sets.csv"))
    return {
        (int(layer), int(head)): (float(row["share"]), float(row["low"]), float(row["high"]))
        for (layer, head), row in table
    }


def correlation_with(name: str, span: str, less: str | None = None) -> tuple[float | None, float | None, float | None]:
    """Spearman's correlation, over these heads, of shares with a column of Origin's attention; less: its span less."""
    with (REAL_MODEL / "locate-12k" / "heads.csv").open(encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if (row["method"], row["length"]) == ("origin", "12288")]
    values = {(int(row["layer"]), int(row["head"]), row["span"]): float(row[name]) for row in table}
    shares = other_heads()
    lost = [values[*head, span] - (values[*head, less] if less else 0) for head in shares]
    return rank_correlation(lost, [*shares.values()])


def agreement(model: str) -> tuple[float | None, float | None, float | None]:
    """Spearman's correlation over heads of estimated with patched, and its 95% interval."""
    estimated, shares = estimates(model), patched(model)
    return rank_correlation([estimated[head] for head in shares], [*shares.values()])


def by_layer() -> tuple[float | None, float | None, float | None]:
    """The same over SmolLM2's layers: the sum of a layer's estimates, and ReRoPE in the layer alone."""
    estimated = estimates("smollm2")
    layers = {layer: share for (layer, head), share in located(TEXT).items() if head < 0}
    sums = [sum(value for (at, _), value in estimated.items() if at == layer) for layer in layers]
    return rank_correlation(sums, [*layers.values()])


def signs(model: str, least: float = 0.01) -> tuple[int, int]:
    """Of the heads that recover or cost a share of `least` or more: how many are estimated with that sign; all."""
    estimated, shares = estimates(model), patched(model)
    right = [(share > 0) == (estimated[head] > 0) for head, share in shares.items() if abs(share) >= least]
    return sum(right), len(right)


def shared_top(number: int = 10) -> int:
    """How many of SmolLM2's `number` heads of highest estimate are among the `number` that recover most."""
    best = [
        sorted(table, key=lambda head: -table[head])[:number] for table in (estimates("smollm2"), patched("smollm2"))
    ]
    return len(set(best[0]) & set(best[1]))


def head_map(panel: Axes) -> None:
    """What every head recovers, as a share of the gap."""
    values = patched("smollm2")
    shares = np.zeros((1 + max(layer for layer, _ in values), 1 + max(head for _, head in values)))
    for place, value in values.items():
        shares[place] = 100 * value
    most = abs(shares).max()
    image = panel.imshow(shares, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    for layer, head in sorted(values, key=lambda place: -abs(shares[place]))[:12]:
        colour = "white" if shares[layer, head] > 0.6 * most else "black"
        panel.text(head, layer, f"{shares[layer, head]:.0f}", ha="center", va="center", fontsize=7, color=colour)
    panel.set(xlabel="head", ylabel="layer", title="SmolLM2, 12k tokens of one text:\nReRoPE in one head alone")
    panel.set_xticks(range(shares.shape[1]))
    panel.set_yticks(range(0, len(shares), 2))
    panel.figure.colorbar(image, ax=panel, label="loss recovered (%)")


def against(panel: Axes, model: str, size: float, title: str) -> None:
    """Patched over estimated share, head by head; size: the gap, nats/token."""
    estimated, shares = estimates(model), patched(model)
    x, y = ([100 * value for value in part] for part in ([estimated[head] / size for head in shares], shares.values()))
    panel.scatter(x, y, s=18, color=BLUE)
    for (layer, head), at, value in zip(shares, x, y, strict=True):
        if value >= 10 or value <= -5 or (at >= 10 and value < 0):
            name = head_name(layer, head)
            panel.annotate(name, (at, value), xytext=(-4, 3), textcoords="offset points", ha="right", fontsize=8)
    ends = [min(0.0, *y), max(y)]
    panel.plot(ends, ends, color=GREY, lw=1, ls="--", label="equal")
    panel.set(xlabel="estimated (% of the loss)", ylabel="patched (% of the loss)", title=title)
    panel.legend(frameon=False, fontsize=8, loc="lower right")


def main() -> None:
    """Draws the picture and writes its numbers: shares of the loss in percent."""
    figure = Figure(figsize=(11, 5.6), layout="constrained", dpi=150)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    head_map(left)
    against(middle, "smollm2", gap(), "SmolLM2, 12k tokens of one text:\nall 270 heads")
    (size,) = {
        float(row["baseline"]) - float(row["patched"])
        for row in rows("loss_gaps.csv")
        if (row["method"], row["length"], row["measure"]) == ("rerope", "1024", "nll")
    }
    against(right, "default", size, "Shipped model, 1024 tokens:\nall 32 heads")
    for panel in (middle, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "head_map.png", metadata={"Software": None})
    shown = []
    for model, loss in (("smollm2", gap()), ("default", size)):
        shares = patched(model)
        for (layer, head), value in sorted(estimates(model).items()):
            labels = {"model": model, "layer": layer, "head": head, "estimated": 100 * value / loss}
            shown.append(labels | {"patched": 100 * shares.get((layer, head), np.nan)})
    write_numbers(HERE / "head_map.png", shown)


if __name__ == "__main__":
    main()
