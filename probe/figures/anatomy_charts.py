"""The inside as charts: the logit lens by layer and position, from the summary of `mesa-lens anatomy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from probe.figures.anatomy import triple
from probe.figures.marks import Chart, Line, Panel, Rule, trained_rule
from probe.figures.mechanism import at_length
from probe.figures.mechanism_charts import moved_aside, ticks_of
from probe.figures.styles import GREY, style
from probe.store.results import Anatomy, Row, having, ranged

_NATS = "NLL (nats/token)"


def lens_chart(found: Anatomy, length: int, methods: Sequence[str], layer: int | None = None) -> Chart | None:
    """What each layer would say next: NLL by layer at the end, what methods lower it by, and NLL by position.

    layer: that NLL by position is read after; None: the last.
    """
    summary = found.summary
    rows = having(summary["lens"], length=length)
    own = {name: each for name in methods if (each := having(rows, method=name))}
    if not own:
        return None
    reference, trained = summary["reference"], summary["trained_length"]
    begin, end = (max(row[side] for row in rows) for side in ("begin", "end"))
    panels = [_layers(f"tokens {begin} to {end}: read after each layer", _NATS, _at_end(own, end), summary["layers"])]
    less = {row["method"]: row for row in having(summary["lens_differs"], length=length) if row["method"] in own}
    if less:
        lowered = [_lowered(less[name], summary["layers"], n, list(less)) for n, name in enumerate(less)]
        rules = (Rule(0, "", GREY, dash="dot"),)
        title = f"the same: lower than {reference} by"
        panels.append(_layers(title, "nats/token, paired by prompt", lowered, summary["layers"], rules))
    layer = max(summary["layers"]) if layer is None else layer
    by_end = [_by_end(name, having(each, layer=layer), own) for name, each in own.items()]
    ticks = tuple(sorted({row["end"] for row in rows}))
    rules = (trained_rule(trained),) if length > trained else ()
    panels.append(
        Panel(
            f"after layer {layer}: by position",
            "tokens up to (position)",
            _NATS,
            tuple(by_end),
            (),
            rules,
            value_range(by_end),
            ticks,
            log_x=True,
        )
    )
    return Chart(
        f"Logit lens: the next token read from the states after each layer. {at_length(summary, length)}", tuple(panels)
    )


def value_range(lines: Sequence[Line], rules: Sequence[float] = ()) -> tuple[float, float]:
    """Ends of a y axis that holds all values, intervals and level rules."""
    ends = [end for line in lines for end in line.interval or ()]
    values = np.concatenate([*(line.y for line in lines), *ends, np.array(rules, float)])
    low, high = (float(each(values)) for each in (np.nanmin, np.nanmax))
    pad = 0.08 * (high - low or 1)
    return low - pad, high + pad


def _layers(
    title: str, y_title: str, lines: Sequence[Line], layers: Sequence[int], rules: tuple[Rule, ...] = ()
) -> Panel:
    ticks = tuple(layers[at] for at in ticks_of(len(layers), last=False))
    y_range = value_range(lines, [rule.at for rule in rules])
    return Panel(title, "layer", y_title, tuple(lines), (), rules, y_range, ticks)


def _at_end(own: Mapping[str, Sequence[Row]], end: int) -> list[Line]:
    ended = {name: having(rows, end=end) for name, rows in own.items()}
    return [
        _line(name, rows, [row["layer"] + moved_aside(n, len(own)) for row in rows], own)
        for n, (name, rows) in enumerate(ended.items())
    ]


def _line(method: str, rows: Sequence[Row], x: Sequence[float], methods: Iterable[str], band: bool = False) -> Line:
    y, low, high = (np.array([triple(row, "nll")[side] for row in rows]) for side in ("share", "low", "high"))
    texts = tuple(
        f"{method}, layer {row['layer']}, tokens {row['begin']} to {row['end']}: {ranged(*row['nll'])} nats/token"
        for row in rows
    )
    interval = (low, high) if np.isfinite(low).any() else None
    return Line(method, np.array(x, float), y, *style(method, methods), interval, band, texts)


def _by_end(method: str, rows: Sequence[Row], methods: Iterable[str]) -> Line:
    rows = sorted(rows, key=lambda row: row["end"])
    return _line(method, rows, [row["end"] for row in rows], methods, band=True)


def _lowered(row: Mapping[str, Any], layers: Sequence[int], number_: int, methods: Sequence[str]) -> Line:
    y, low, high = np.array(row["by_layer"], float).T
    method = row["method"]
    texts = tuple(
        f"{method}, layer {layer}: lower by {ranged(*each)} nats/token"
        for layer, each in zip(layers, row["by_layer"], strict=True)
    )
    x = np.array(layers) + moved_aside(number_, len(methods))
    return Line(method, x, y, *style(method, methods), (low, high), texts=texts)
