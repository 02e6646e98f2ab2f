"""Where inside: charts by layer, by number of heads, and of clamps, from the summary of `mesa-lens locate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probe.figures.marks import Chart, Line, Panel, Point, Rule
from probe.figures.mechanism import WAYS, about, broken_name, share_range
from probe.figures.styles import GREY, RED, style
from probe.store.results import Located, Row, having, number, percent

ENOUGH = 0.9
"""Restored by a set of heads that is enough."""
_ZERO, _ALL = Rule(0, "", GREY, dash="dot"), Rule(1, "", GREY, dash="dot")
_CLAMPS = {
    "at-M": "held at their values at M",
    "range": "held within their range",
}
_HELD = {"observable": ("#0072B2", "circle"), "random": (GREY, "square")}
_TICKS = 12


def layer_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Chart | None:
    """What each method restores at one layer alone ("enough") and what is lost without it there ("needed")."""
    layers, panels = summary["layers"], []
    for way, word in WAYS.items():
        rows = having(summary["effects"], kind="weave", way=way, length=length, measure=measure, head=None)
        own = {name: each for name in methods if (each := having(rows, method=name))}
        names = list(own)
        lines = [_by_layer(own[name], layers, n, names) for n, name in enumerate(names)]
        says = "restored by that layer alone" if way == "only" else "lost again without that layer"
        if lines:
            panels.append(_panel(f"{word}: {says}", "layer", lines, layers, rules=(_ZERO, _ALL)))
    what = f"One layer at a time: share of {broken_name(summary)}'s loss, 95% intervals"
    return _chart(f"{what}. {about(summary, length, measure)}", panels)


def smallest_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Chart | None:
    """Share restored by heads added one by one, beside random sets of the same size; a panel a method."""
    found = having(summary["smallest"], length=length, measure=measure)
    panels = [_smallest(row, methods) for name in methods for row in having(found, method=name) if row["heads"]]
    title = f"Heads added one by one, scored on other items. {about(summary, length, measure)}"
    return _chart(title, panels)


def clamp_chart(summary: Located, method: str, length: int, measure: str, rule: str | None = None) -> Chart | None:
    """What holding the observable dims restores, beside as many random ones: by layer, and in all layers at once.

    rule: by which the dims are observable, of those in the summary.
    """
    labels = {"method": method, "length": length, "measure": measure, "rule": rule}
    rows = having(summary["effects"], kind="clamp", **labels)
    panels = []
    for way in dict.fromkeys(row["way"] for row in rows):
        own = having(rows, way=way)
        places = [place for place in (*summary["layers"], None) if having(own, layer=place)]
        kinds = dict.fromkeys(_dims(row) for row in own)
        lines = [
            _clamped([row for row in own if _dims(row) == kind], places, kind, moved_aside(n, len(kinds)))
            for n, kind in enumerate(kinds)
        ]
        names = ["all" if place is None else str(place) for place in places]
        panels.append(
            _panel(_CLAMPS.get(str(way), str(way)), "layer", lines, range(len(places)), names, rules=(_ZERO,))
        )
    by = f" by the rule “{rule}”" if rule else ""
    what = f"Dims{by} held in {broken_name(summary)}'s run beyond M: share of its loss to {method} restored"
    return _chart(f"{what}. {about(summary, length, measure)}", panels)


def _chart(title: str, panels: Sequence[Panel]) -> Chart | None:
    """The panels over the same range of y, so that they compare; None where there is none."""
    if not panels:
        return None
    y_range = (min(panel.y_range[0] for panel in panels), max(panel.y_range[1] for panel in panels))
    return Chart(title, tuple(replace(panel, y_range=y_range) for panel in panels))


def _panel(
    title: str,
    x_title: str,
    lines: Sequence[Line],
    at: Sequence[int],
    names: Sequence[str] = (),
    rules: tuple[Rule, ...] = (),
    points: tuple[Point, ...] = (),
) -> Panel:
    """Axes whose x stands for labelled places."""
    ticks = ticks_of(len(at), bool(names))
    x_ticks, labels = tuple(at[tick] for tick in ticks), tuple(names[tick] for tick in ticks) if names else ()
    return Panel(
        title,
        x_title,
        "share of the loss",
        tuple(lines),
        points,
        rules,
        share_range(lines, rules),
        x_ticks,
        x_labels=labels,
    )


def ticks_of(places: int, last: bool) -> list[int]:
    """Numbers of the places that are labelled, so that labels do not touch; the last one too where it matters."""
    step = -(-places // _TICKS)
    ticks = [*range(0, places, step)]
    if last and places - 1 not in ticks:
        ticks = [*(tick for tick in ticks if places - 1 - tick >= step), places - 1]
    return ticks


def moved_aside(number_: int, of: int) -> float:
    """How far a line's markers are moved aside, so that intervals do not lie on each other."""
    return 0.14 * (number_ - (of - 1) / 2)


def _columns(rows: Sequence[Row]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    share, low, high = (np.array([number(row[name]) for row in rows]) for name in ("share", "low", "high"))
    return share, (low, high)


def _told(row: Row) -> str:
    return percent(row["share"], row["low"], row["high"])


def _by_layer(rows: Sequence[Row], layers: Sequence[int], number_: int, methods: Sequence[str]) -> Line:
    method, aside = methods[number_], moved_aside(number_, len(methods))
    rows = sorted((row for row in rows if row["layer"] in layers), key=lambda row: row["layer"])
    share, interval = _columns(rows)
    x = np.array([row["layer"] + aside for row in rows])
    texts = tuple(f"{method}, layer {row['layer']}: {_told(row)}" for row in rows)
    return Line(method, x, share, *style(method, methods), interval=interval, texts=texts)


def _smallest(row: Row, methods: Sequence[str]) -> Panel:
    lists = ("share", "low", "high", "random", "random_low", "random_high")
    share, low, high, *random = (np.array([number(each) for each in row[name]]) for name in lists)
    sizes = [*range(1, len(share) + 1)]
    x, look = np.array(sizes, float), style(row["method"], methods)
    each = zip(sizes, row["heads"], share, low, high, strict=True)
    texts = tuple(f"{n} heads, {layer}.{head} added: {percent(*ends)}" for n, (layer, head), *ends in each)
    chosen = Line(row["method"], x, share, *look, (low, high), True, texts)
    others = Line("random sets: median and 95%", x, random[0], GREY, "dot", "square", (random[1], random[2]), True)
    points, enough = (), row["enough"]
    if enough:
        names = ", ".join(f"{layer}.{head}" for layer, head in row["heads"][:enough])
        told = f"{row['method']}: {enough} {'head is' if enough == 1 else 'heads are'} enough ({names})"
        points = (Point(told, enough, float(share[enough - 1]), look[0]),)
    rules = (_ZERO, Rule(ENOUGH, f"{ENOUGH:.0%}", RED))
    return _panel(row["method"], "number of heads", [chosen, others], sizes, rules=rules, points=points)


def _dims(row: Row) -> str:
    """Which dims are held: all random sets bear one name."""
    return str(row.get("which") or "all").partition(" ")[0]


def _clamped(rows: Sequence[Row], places: Sequence[int | None], which: str, aside: float) -> Line:
    """By place: the share with its interval, or of several sets the mean with the least and the largest."""
    by_place = {place: own for place in places if (own := [row for row in rows if row["layer"] == place])}
    sets = max(map(len, by_place.values()))
    told, points = [], []
    for place, own in by_place.items():
        share, (low, high) = _columns(own)
        points.append((share.mean(), share.min(), share.max()) if sets > 1 else (share[0], low[0], high[0]))
        told.append(
            f"{which} dims, {'all layers' if place is None else f'layer {place}'}: {', '.join(map(_told, own))}"
        )
    share, low, high = np.array(points).T
    colour, symbol = _HELD.get(which, _HELD["observable"])
    x = np.array([places.index(place) + aside for place in by_place])
    name = f"{which} dims: mean and range of {sets} sets" if sets > 1 else f"{which} dims, 95% interval"
    return Line(name, x, share, colour, "none", symbol, (low, high), texts=tuple(told))
