"""What `mesa-lens locate` measured: maps of heads, effects by layer, smallest sets, clamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probe.commands.locate.result import DIMS, PATCH, Effect, Located, SmallestSet
from probe.figures.figure_data import (
    Chart,
    Heatmaps,
    Line,
    Panel,
    Point,
    Rule,
    at_length,
    axis_range,
    offset,
    same_range,
    spaced_ticks,
    tile_map,
    tiles,
)
from probe.figures.styles import GREY, RED, Look, style
from probe.heads import head_name
from probe.store.result_file import having
from probe.store.results import percent

MEASURES = {"nll": "tail NLL", "passkey": "passkey answer"}
SUFFICIENT = 0.9
"""Share of the excess loss that a sufficient set of heads recovers."""
_WAYS = {
    "only": "enough: loss recovered in that layer alone",
    "without": "needed: loss that returns without that layer",
}
_CLAMPS = {"at-M": "clamped at their values at M", "range": "clamped to their range inside M"}
_CLAMPED_LOOKS: dict[str, Look] = {"threshold": ("#0072B2", "none", "circle"), "random": (GREY, "none", "square")}
_SHARE_ENDS = 2.0  # of what intervals of shares are drawn
_ZERO, _ALL = Rule(0, "", GREY, dash="dot"), Rule(1, "", GREY, dash="dot")


def baseline_name(summary: Located) -> str:
    """The method of the baseline run: the first."""
    return next(iter(summary.methods))


def about(summary: Located, length: int, measure: str) -> str:
    """Model, length, measure and number of items, as in every title."""
    items = max((gap.items for gap in having(summary.loss_gaps, length=length, measure=measure)), default=0)
    counted = f", {items} item{'s' * (items > 1)}" if items else ""
    return f"{at_length(summary.model, summary.trained_length, length)}, {MEASURES.get(measure, measure)}{counted}"


def triple(row: Effect) -> list[float]:
    """A row's share with the ends of its interval; NaN for missing ones."""
    return [row.share, row.low, row.high]


def recovery_map(summary: Located, method: str, length: int, measure: str, way: str = "only") -> Heatmaps | None:
    """Layers x heads: what the method in that place alone recovers, or what is lost without it there; None if not run.

    Whole layers stand in a column beside their heads. way: "only" or "without".
    """
    rows = having(summary.effects, kind=PATCH, way=way, method=method, length=length, measure=measure)
    baseline = baseline_name(summary)
    text = f"{method} in one place only, {baseline} elsewhere: share of {baseline}'s excess loss recovered"
    if way == "without":
        text = f"{method} everywhere except in one place: share of {baseline}'s excess loss that returns"
    layers, heads = summary.layers, [str(head) for head in range(summary.heads)]
    whole = {(row.layer, 0): triple(row) for row in rows if row.head is None and row.layer is not None}
    single = {(row.layer, row.head): triple(row) for row in rows if row.layer is not None and row.head is not None}
    blocks = [tiles("layer", ["all"], layers, whole, named="all heads")] if whole else []
    blocks += [tiles("head", heads, layers, single)] if single else []
    colour_title = "share of the loss that returns" if way == "without" else "share of the loss recovered"
    return tile_map(f"{text}. {about(summary, length, measure)}", colour_title, blocks) if blocks else None


def layer_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Chart | None:
    """What each method recovers at one layer alone ("enough") and what is lost without it there ("needed")."""
    layers, panels = summary.layers, []
    for way, title in _WAYS.items():
        rows = having(summary.effects, kind=PATCH, way=way, length=length, measure=measure, head=None)
        by_method = {name: subset for name in methods if (subset := having(rows, method=name))}
        lines = []
        for index, (name, subset) in enumerate(by_method.items()):
            ordered = [row for layer in layers for row in having(subset, layer=layer)]
            x = [float(row.layer or 0) + offset(index, len(by_method)) for row in ordered]
            texts = [f"{name}, layer {row.layer}: {percent(*triple(row))}" for row in ordered]
            lines.append(_line(name, x, [triple(row) for row in ordered], style(name), texts))
        if lines:
            panels.append(_panel(title, "layer", lines, layers, rules=(_ZERO, _ALL)))
    title = f"One layer at a time: share of {baseline_name(summary)}'s excess loss, 95% intervals"
    return _chart(f"{title}. {about(summary, length, measure)}", panels)


def smallest_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Chart | None:
    """Share recovered by heads added one by one, beside random sets of the same size; a panel a method."""
    rows = having(summary.smallest, length=length, measure=measure)
    panels = [_smallest(row) for name in methods for row in having(rows, method=name) if row.heads]
    title = f"Heads added one by one, scored on held-out items. {about(summary, length, measure)}"
    return _chart(title, panels)


def clamp_chart(summary: Located, method: str, length: int, measure: str, rule: str | None = None) -> Chart | None:
    """What clamping the dims of a rule recovers, next to as many random ones: by layer, and in all layers at once.

    rule: by which the dims are chosen, of those in the summary.
    """
    labels = {"method": method, "length": length, "measure": measure, "rule": rule}
    rows = having(summary.effects, kind="clamp", **labels)
    panels = []
    for way in dict.fromkeys(row.way for row in rows):
        subset = having(rows, way=way)
        places = [place for place in (*summary.layers, None) if having(subset, layer=place)]
        kinds: dict[str, list[Effect]] = {}
        for row in subset:  # all random sets share one name
            kinds.setdefault(str(row.which or "all").partition(" ")[0], []).append(row)
        lines = [_clamped(kinds[kind], places, kind, offset(n, len(kinds)), DIMS[rule]) for n, kind in enumerate(kinds)]
        names = ["all" if place is None else str(place) for place in places]
        title = _CLAMPS.get(str(way), str(way))
        panels.append(_panel(title, "layer", lines, range(len(places)), names, rules=(_ZERO,)))
    dims, run = DIMS[rule].capitalize(), f"{baseline_name(summary)}'s run beyond M"
    title = f"{dims} clamped in {run}: share of its excess loss over {method} recovered"
    return _chart(f"{title}. {about(summary, length, measure)}", panels)


def _chart(title: str, panels: Sequence[Panel]) -> Chart | None:
    texts = [
        (line.y[at], line.texts[at])
        for panel in panels
        for line in panel.lines
        if line.texts
        for at in np.flatnonzero(np.isfinite(line.y))
    ]
    if texts and panels:
        seen = f"Largest: {max(texts, key=lambda pair: pair[0])[1]}."
        panels = [replace(panels[0], seen=seen), *panels[1:]]
    return Chart(title, same_range(panels)) if panels else None


def _panel(
    title: str,
    x_title: str,
    lines: Sequence[Line],
    places: Sequence[int],
    names: Sequence[str] = (),
    rules: tuple[Rule, ...] = (),
    points: tuple[Point, ...] = (),
) -> Panel:
    """Axes whose x stands for labelled places."""
    ticks = spaced_ticks(len(places), last=bool(names))
    return Panel(
        title,
        x_title,
        "share of the excess loss",
        tuple(lines),
        axis_range(lines, rules, _SHARE_ENDS),
        points,
        rules,
        x_ticks=tuple(places[tick] for tick in ticks),
        x_labels=tuple(names[tick] for tick in ticks) if names else (),
    )


def _line(
    label: str,
    x: Sequence[float],
    triples: Sequence[Sequence[float]],
    look: Look,
    texts: Sequence[str] = (),
    band: bool = False,
) -> Line:
    y, low, high = np.array(triples, float).T
    return Line(label, np.array(x, float), y, *look, interval=(low, high), band=band, texts=tuple(texts))


def _smallest(row: SmallestSet) -> Panel:
    method, sizes = row.method, [*range(1, len(row.share) + 1)]
    triples = [*zip(row.share, row.low, row.high, strict=True)]
    look = style(method)
    texts = [
        f"{size} heads, {head_name(layer, head)} added: {percent(*values)}"
        for size, (layer, head), values in zip(sizes, row.heads, triples, strict=True)
    ]
    lines = [
        _line(method, sizes, triples, look, texts, band=True),
        _line(
            "random sets: median and 95%",
            sizes,
            [*zip(row.random, row.random_low, row.random_high, strict=True)],
            (GREY, "dot", "square"),
            band=True,
        ),
    ]
    points, enough = (), row.enough
    if enough:
        names = ", ".join(head_name(*head) for head in row.heads[:enough])
        text = f"{method}: {enough} {'head is' if enough == 1 else 'heads are'} enough ({names})"
        points = (Point(text, enough, row.share[enough - 1], look[0]),)
    rules = (_ZERO, Rule(SUFFICIENT, f"{SUFFICIENT:.0%}", RED))
    return _panel(method, "number of heads", lines, sizes, rules=rules, points=points)


def _clamped(rows: Sequence[Effect], places: Sequence[int | None], kind: str, shift: float, dims: str) -> Line:
    """By place: the share with its interval, or of several sets the mean with the least and the largest.

    dims: what those of the rule are called.
    """
    dims = dims if kind == "threshold" else f"{kind} dims"
    by_place = {place: subset for place in places if (subset := having(rows, layer=place))}
    sets = max(map(len, by_place.values()))
    texts, triples = [], []
    for place, subset in by_place.items():
        shares = [triple(row) for row in subset]
        values = [share for share, *_ in shares]
        triples.append((np.mean(values), np.min(values), np.max(values)) if sets > 1 else shares[0])
        where = "all layers" if place is None else f"layer {place}"
        texts.append(f"{dims}, {where}: {', '.join(percent(*share) for share in shares)}")
    x = [places.index(place) + shift for place in by_place]
    label = f"{dims}: mean and range of {sets} sets" if sets > 1 else f"{dims}, 95% interval"
    return _line(label, x, triples, _CLAMPED_LOOKS.get(kind, _CLAMPED_LOOKS["threshold"]), texts)
