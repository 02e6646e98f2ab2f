"""Where inside: charts by layer, by number of heads, of clamps and of attribution, from `mesa-lens locate`'s summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from probe.figures.marks import BLACK, GREY, RED, Chart, Line, Panel, Point, Rule, style
from probe.figures.mechanism import WAYS, about, broken_name
from probe.store.located import Located, Row, having, number, percent

ENOUGH = 0.9
"""Restored by a set of heads that is enough."""
_ZERO, _ALL = Rule(0, "", GREY, dash="dot"), Rule(1, "", GREY, dash="dot")
_CLAMPS = {"at-M": "held at their values at M", "range": "held within their range", "shift": "positional vector moved"}
_HELD = {"observable": ("#0072B2", "circle"), "random": (GREY, "square")}
_TICKS = 12


def layer_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Chart | None:
    """What each method restores at one layer alone ("enough") and what is lost without it there ("needed")."""
    layers, panels = summary["layers"], []
    for way, word in WAYS.items():
        rows = having(summary["effects"], kind="weave", way=way, length=length, measure=measure, head=None)
        own = {name: each for name in methods if (each := having(rows, method=name))}
        lines = [_by_layer(each, layers, name, _aside(n, len(own))) for n, (name, each) in enumerate(own.items())]
        says = "restored by that layer alone" if way == "only" else "lost again without that layer"
        if lines:
            panels.append(_panel(f"{word}: {says}", "layer", lines, layers, rules=(_ZERO, _ALL)))
    title = f"One layer at a time. {about(summary, length, measure)}; share of {broken_name(summary)}'s loss, 95% intervals"
    return _chart(title, panels)


def smallest_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Chart | None:
    """Share restored over the number of heads, added greedily, beside random sets of the same size; a panel a method."""
    found = having(summary["smallest"], length=length, measure=measure)
    panels = [_smallest(row) for name in methods for row in having(found, method=name) if row["heads"]]
    title = f"Heads added one by one, scored on items they were not chosen on. {about(summary, length, measure)}"
    return _chart(title, panels)


def clamp_chart(summary: Located, method: str, length: int, measure: str) -> Chart | None:
    """What holding the observable dims restores, beside as many random ones: by layer, and in all layers at once."""
    rows = having(summary["effects"], kind="clamp", method=method, length=length, measure=measure)
    panels = []
    for way, says in _CLAMPS.items():
        own = having(rows, way=way)
        places = [place for place in (*summary["layers"], None) if having(own, layer=place)]
        kinds = list(dict.fromkeys(row.get("which") for row in own))
        lines = [_clamped(having(own, which=kind), places, kind, _aside(n, 2)) for n, kind in enumerate(kinds)]
        if lines:
            names = ["all" if place is None else str(place) for place in places]
            panels.append(_panel(says, "layer", lines, range(len(places)), names, rules=(_ZERO,)))
    what = f"Dims held in {broken_name(summary)}'s run: share of its loss to {method} restored"
    return _chart(f"{what}. {about(summary, length, measure)}", panels)


def attribution_chart(summary: Located, method: str, length: int, measure: str) -> Chart | None:
    """Attribution of each place against what was measured there, with their rank correlation; a panel a measurement."""
    labels = {"method": method, "length": length, "measure": measure}
    given = having(summary["attribution"], **labels)
    panels = []
    for hook in dict.fromkeys(row["hook"] for row in given):
        own = having(given, hook=hook)
        patched = having(summary["effects"], **labels, kind="patch", way="mend", hook=hook, span="all")
        woven = having(summary["effects"], **labels, kind="weave", way="only")
        for says, exact in (("patched", patched), (f"{method} there alone", woven)):
            pairs = _paired(own, exact)
            if len(pairs) > 2:
                panels.append(_scatter(pairs, f"{hook}: {says}", style(method)[0]))
    return Chart(f"Attribution against exact. {about(summary, length, measure)}", tuple(panels)) if panels else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, ties averaged; NaN where one side is constant."""
    ranks = [pd.Series(values).rank() for values in (first, second)]
    return float(np.corrcoef(ranks)[0, 1]) if all(rank.nunique() > 1 for rank in ranks) else float("nan")


def _chart(title: str, panels: Sequence[Panel]) -> Chart | None:
    """The panels over the same range of y, so that they compare; None where there is none."""
    if not panels:
        return None
    y_range = (min(panel.y_range[0] for panel in panels), max(panel.y_range[1] for panel in panels))
    return Chart(title, tuple(replace(panel, y_range=y_range) for panel in panels))


def _panel(
    title: str, x_title: str, lines: Sequence[Line], at: Sequence[int], names: Sequence[str] = (), **more: Any
) -> Panel:
    """Axes whose x stands for labelled places; y holds 0 and all that is drawn, short of intervals out of measure."""
    step = -(-len(at) // _TICKS)
    shown = [each for line in lines for each in (line.y, *(line.interval or ()))]
    ends = [rule.at for rule in more.get("rules", ()) if not rule.vertical]
    values = np.clip(np.concatenate([*shown, ends]), -1, 2)
    low, high = np.nanmin(values), np.nanmax(values)
    pad = 0.08 * (high - low or 1)
    ticks = [*range(0, len(at), step)]
    if names and len(at) - 1 not in ticks:  # the last name, "all", stands
        ticks = [*(tick for tick in ticks if len(at) - 1 - tick >= step), len(at) - 1]
    x_ticks = tuple(int(at[tick]) for tick in ticks)
    labels = tuple(names[tick] for tick in ticks) if names else ()
    y_range = (float(low - pad), float(high + pad))
    return Panel(title, x_title, "share", tuple(lines), y_range=y_range, x_ticks=x_ticks, x_labels=labels, **{"points": (), **more})  # fmt: skip


def _aside(number_: int, of: int) -> float:
    """How far a line's markers are moved aside, so that intervals do not lie on each other."""
    return 0.14 * (number_ - (of - 1) / 2)


def _columns(rows: Sequence[Row]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    share, low, high = (np.array([number(row[name]) for row in rows]) for name in ("share", "low", "high"))
    return share, (low, high)


def _told(row: Row) -> str:
    return percent(row["share"], row["low"], row["high"])


def _by_layer(rows: Sequence[Row], layers: Sequence[int], method: str, aside: float) -> Line:
    rows = sorted((row for row in rows if row["layer"] in layers), key=lambda row: row["layer"])
    share, interval = _columns(rows)
    x = np.array([row["layer"] + aside for row in rows])
    texts = tuple(f"{method}, layer {row['layer']}: {_told(row)}" for row in rows)
    return Line(method, x, share, *style(method), interval=interval, texts=texts)


def _smallest(row: Row) -> Panel:
    sizes = np.arange(1, len(row["heads"]) + 1, dtype=float)
    columns = {name: np.array([number(each) for each in row[name]]) for name in ("share", "low", "high")}
    random = [np.array([number(each) for each in row[name]]) for name in ("random", "random_low", "random_high")]
    colour, dash, symbol = style(row["method"])
    each = zip(row["heads"], row["share"], row["low"], row["high"], strict=True)
    texts = tuple(
        f"{n} heads, {layer}.{head} added: {percent(*ends)}" for n, ((layer, head), *ends) in enumerate(each, 1)
    )
    chosen = Line(row["method"], sizes, columns["share"], colour, dash, symbol, (columns["low"], columns["high"]), True, texts)  # fmt: skip
    others = Line("random sets: median and 95%", sizes, random[0], GREY, "dot", "square", (random[1], random[2]), True)
    rules = (_ZERO, Rule(ENOUGH, f"{ENOUGH:.0%}", RED))
    points, enough = (), row["enough"]
    if enough:
        names = ", ".join(f"{layer}.{head}" for layer, head in row["heads"][:enough])
        told = f"{row['method']}: {enough} {'head is' if enough == 1 else 'heads are'} enough ({names})"
        points = (Point(told, enough, float(columns["share"][enough - 1]), colour if colour != BLACK else RED),)
    return _panel(row["method"], "number of heads", [chosen, others], [int(n) for n in sizes], rules=rules, points=points)


def _clamped(rows: Sequence[Row], places: Sequence[int | None], which: str | None, aside: float) -> Line:
    share, interval = _columns(rows)
    colour, symbol = _HELD.get(which or "", ("#009E73", "diamond"))
    x = np.array([places.index(row["layer"]) + aside for row in rows])
    name = f"{which} dims" if which else "all dims"
    texts = tuple(
        f"{row.get('dims') or 'all'} {which or ''} dims, {'all layers' if row['layer'] is None else row['layer']}: {_told(row)}"
        for row in rows
    )
    return Line(name, x, share, colour, "none", symbol, interval, False, texts)


def _paired(given: Sequence[Row], exact: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows of the same place, both with a number."""
    by_place = {(row["layer"], row["head"]): row for row in exact if np.isfinite(number(row["share"]))}
    places = [(row, by_place.get((row["layer"], row["head"]))) for row in given if np.isfinite(number(row["value"]))]
    return [(row, other) for row, other in places if other is not None]


def _scatter(pairs: Sequence[tuple[Row, Row]], title: str, colour: str) -> Panel:
    x = np.array([number(row["value"]) for row, _ in pairs])
    exact = [row for _, row in pairs]
    share, interval = _columns(exact)
    texts = tuple(f"{_place(row)}: attribution {value:.3g}, exact {_told(row)}" for value, row in zip(x, exact, strict=True))  # fmt: skip
    line = Line("one place, exact with 95% interval", x, share, colour, "none", "circle", interval, False, texts)
    values = np.clip(np.concatenate([share, *interval, [0]]), -1, 2)
    low, high = np.nanmin(values), np.nanmax(values)
    pad = 0.08 * (high - low or 1)
    rank = f"rank correlation {rank_correlation(x.tolist(), share.tolist()):.2f}, {len(pairs)} places"
    rules = (_ZERO, Rule(0, "", GREY, dash="dot", vertical=True))
    return Panel(f"{title}\n{rank}", "attribution", "share restored", (line,), (), rules, (low - pad, high + pad))


def _place(row: Row) -> str:
    return f"layer {row['layer']}" if row["head"] is None else f"head {row['layer']}.{row['head']}"
