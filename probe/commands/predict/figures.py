"""Excess loss by length: predicted and measured; and of one method, beside its distances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import xarray as xr

from mesa.methods import Method
from mesa.plan import relative_positions
from probe.commands.predict.formula import Law, far_keys_by_length, length_grid
from probe.commands.predict.result import AtLength, Prediction
from probe.figures.export import Export
from probe.figures.figure_data import Chart, Line, Panel, Rule, axis_range, grouped, log_ticks, same_range, trained_rule
from probe.figures.styles import RED, STYLES, Look, nth, style
from probe.thresholds.stated_window import NATS_ABOVE

_EXCESS = "excess loss (nats/token)"
_QUERIES = 8
_METHODS = 6  # at most in a panel
_FAILS = Rule(NATS_ABOVE, f"fails: {NATS_ABOVE} nats", RED)


def prediction_chart(prediction: Prediction) -> Chart:
    """Excess by length: predicted as lines with bands, measured as markers with intervals; a few methods a panel."""
    methods = {name: row for name, row in prediction.methods.items() if row.failure}
    origin, others = methods.pop("origin", None), [name for name in methods if name != "lm-infinite"]
    names = itertools.count()
    looks = {name: STYLES.get(name) or nth(next(names)) for name in others}
    count = max(1, math.ceil(len(others) / _METHODS))
    panels = []
    rules = (trained_rule(prediction.trained_length), _FAILS)
    for part in np.array_split(others, count):
        shown = ({"origin": origin} if origin else {}) | {name: methods[name] for name in part.tolist()}
        lines = tuple(
            _line(name, entries, looks.get(name, style(name)), side)
            for side in ("measured", "predicted")
            for name, row in shown.items()
            if (entries := getattr(row, side)) and (name, side) != ("origin", "predicted")
        )
        failures = ((name, at.length) for name in part.tolist() if (at := methods[name].failure))
        failing = grouped((name, str(length or f"none up to {prediction.longest}")) for name, length in failures)
        panels.append(
            Panel(
                ", ".join(dict.fromkeys(name.split(":")[0] for name in part.tolist())),
                "length (tokens)",
                _EXCESS,
                lines,
                axis_range(lines, rules[1:]),
                rules=rules,
                x_ticks=log_ticks(prediction.lengths),
                log_x=True,
                seen=f"Failure is predicted at, in tokens: {failing}",
            )
        )
    title = f"{prediction.model}: loss over lm-infinite by length; lines: predicted"
    if any(methods[name].measured for name in others):
        title += ", markers: measured"
    return Chart(title, same_range(panels))


def prediction_export(prediction: Prediction) -> Export:
    """The chart, and a table: excess (nats/token) by method and length with 95% ends, and failure lengths by method.

    NaN: not predicted, not measured, or no failure up to the longest length; `refusal` says why nothing is predicted.
    """
    if prediction.refusal:
        return Export({}, {})
    methods, lengths = prediction.methods.values(), prediction.lengths
    none = [(math.nan,) * 3] * len(lengths)
    variables: dict[str, tuple] = {}
    for side in ("predicted", "measured"):
        values = np.array([[entry.with_ends for entry in getattr(row, side)] or none for row in methods])
        for number, end in enumerate(("", "_low", "_high")):
            attrs = {"long_name": f"{side} excess over lm-infinite", "units": "nats/token"}
            variables[f"{side}{end}"] = (("method", "length"), values[..., number], attrs)
    failures = [(at.length, *at.ends) if (at := row.failure) else (None,) * 3 for row in methods]
    for end, column in zip(("", "_low", "_high"), np.array(failures, float).T, strict=True):
        variables[f"predicted_failure{end}"] = ("method", column, {"units": "tokens"})
    variables["refusal"] = ("method", [row.refusal for row in methods])
    attrs = {"model": prediction.model, "trained_length": prediction.trained_length}
    numbers = xr.Dataset(variables, {"method": list(prediction.methods), "length": lengths}, attrs)
    return Export({"prediction": prediction_chart(prediction)}, {"prediction": numbers})


def method_chart(law: Law, method: Method, lengths: Sequence[int], cost: float) -> Chart:
    """The distances that the last query of the longest prompt gives its keys, and the predicted excess by length."""
    trained, longest, look = method.trained_length, max(lengths), style(method.name)
    keys = np.arange(longest)
    distances = relative_positions(method.plan(longest), np.array([longest - 1]), keys)[0][::-1]
    seen = Line(method.name, keys.astype(float), np.where(distances < 0, np.nan, distances), *look)
    grid = length_grid(lengths, trained)
    excess = law.at(far_keys_by_length(method, grid, _QUERIES)) + cost
    line = Line(method.name, np.array(grid, float), excess, *look)
    curve = Line("origin", *_origin(law, grid), *style("origin"))
    rule = Rule(float(trained), "M", RED)
    panels = (
        Panel(
            "distances of the last query",
            "true distance (tokens)",
            "distance given",
            (seen,),
            axis_range([seen], [rule]),
            rules=(rule,),
        ),
        Panel(
            "predicted loss",
            "length (tokens)",
            _EXCESS,
            (curve, line),
            axis_range([curve, line], [_FAILS]),
            rules=(trained_rule(trained), _FAILS),
            x_ticks=log_ticks(lengths),
            log_x=True,
            seen=f"At {longest} tokens its predicted excess loss over lm-infinite is {excess[-1]:z.2f} nats/token.",
        ),
    )
    return Chart(f"{method.name}: distances, and the loss that they predict", panels)


def _origin(law: Law, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    places = np.clip(np.array(lengths) - law.trained_length, 0, len(law.excess) - 1)
    return np.array(lengths, float), law.excess[places]


def _line(name: str, entries: Sequence[AtLength], look: Look, side: str) -> Line:
    x = np.array([entry.length for entry in entries], float)
    y, low, high = np.array([entry.with_ends for entry in entries]).T
    colour, dash, symbol = look
    if side == "predicted":
        return Line(name, x, y, colour, dash, "none", interval=(low, high), band=True)
    return Line(name, x, y, colour, dash if name == "origin" else "none", symbol, interval=(low, high))
