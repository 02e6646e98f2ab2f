"""The negative control of the rule `paper`: the same search and prediction at places inside the window, and at M."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from probe.thresholds.predict import LEAST, TOP, predict
from probe.thresholds.search import CrossingRule, Place, check_place, searches

PLACES = 16
"""Positions inside the window at which the search is put."""
ALPHA = 0.05
"""With more of the places like M than this, M is not told from them."""


def negative_control(
    hidden: xr.DataArray,
    trained_length: int,
    rule: CrossingRule,
    reference: str = "origin",
    *,
    count: int = PLACES,
    top: int = TOP,
    least: int = LEAST,
) -> xr.Dataset:
    """What the search finds, and `predict` predicts, at up to `count` places inside the window, where the model works.

    At a place p the search takes p for M and sees [burn_in, p) as its window and positions up to M beyond, fewer if
    fewer were captured beyond M. That is less than it sees at M, so each place has a partner `matched`: M with as many
    positions before and beyond. Places are spread evenly from 2 `sustained` behind burn_in to 2 `sustained` before M,
    both no less than the search needs. By `place`, and by prompt if there are several:

    - `first`, `last`, `matched_first`, `matched_last`: positions seen
    - `qualified`, `matched`: observable (layer, dim) pairs at the place, and at M; of the attribute `searched`
    - `called` (method): the failure length that `predict` gives there, by `top` and `least` dims; NaN: none. Every one
      is false, since it lies inside the window. The reference's says that dims qualify, and no more: they are chosen
      on it

    Raises ValueError when nowhere the positions it needs were captured.
    """
    spans = _spans(hidden["position"].values, trained_length, rule, count)
    places = [*(span.inside for span in spans), *(span.matched for span in spans)]
    found = searches(hidden, places, rule, reference, every=False)
    there, matched = found[: len(spans)], found[len(spans) :]
    several = ["prompt"] if "prompt" in hidden.dims else []
    counts = {
        name: (["place", *several], np.stack([one["qualified"].values for one in each]))
        for name, each in (("qualified", there), ("matched", matched))
    }
    called = np.array([_calls(one, top, least) for one in there]).reshape(
        len(spans), *counts["qualified"][1].shape[1:], -1
    )
    seen = {
        "first": [span.inside.first for span in spans],
        "last": [span.inside.last for span in spans],
        "matched_first": [span.matched.first for span in spans],
        "matched_last": [span.matched.last for span in spans],
    }
    return xr.Dataset(
        {
            **{name: ("place", values) for name, values in seen.items()},
            **counts,
            "called": (["place", *several, "method"], called, {"units": "position"}),
        },
        {"place": [span.inside.at for span in spans], **{name: hidden[name].values for name in ("method", *several)}},
        {
            "trained_length": trained_length,
            "reference": reference,
            "searched": there[0].attrs["searched"],
            "top": top,
            "least": min(top, least),
        },
    )


def false_predictions(control: xr.Dataset) -> xr.DataArray:
    """By method, the share of the places at which a failure is predicted though it lies inside the window."""
    return control["called"].notnull().mean("place")


def as_many(control: xr.Dataset) -> xr.DataArray:
    """The share of the places at which pairs qualify, no fewer than at M with as many positions."""
    found = control["qualified"]
    return ((found > 0) & (found >= control["matched"])).mean("place")


@dataclass(frozen=True)
class _Span:
    """A place inside the window, and its partner at M."""

    inside: Place
    matched: Place


def _spans(position: np.ndarray, trained: int, rule: CrossingRule, count: int) -> list[_Span]:
    """Those of the `count` places at which the search can be put, with their partners; ValueError if there are none."""
    margin = max(8, rule.smoothing, 2 * rule.sustained)
    low, high = rule.burn_in + margin, trained - margin
    if low > high:
        raise ValueError(
            f"places inside the window lie {margin} positions behind the {rule.burn_in} left out at the start "
            f"and as many before {trained}; there is no room"
        )
    spans, reason = [], ""
    for at in np.unique(np.linspace(low, high, count).round().astype(int)).tolist():
        before, beyond = at - rule.burn_in, min(trained - at, int(position[-1]) - trained)
        span = _Span(Place(at, rule.burn_in, at + beyond), Place(trained, trained - before, trained + beyond))
        lacking = _lacking(position, rule, span)
        reason = reason or lacking
        if not lacking:
            spans.append(span)
    if not spans:
        raise ValueError(reason)
    return spans


def _lacking(position: np.ndarray, rule: CrossingRule, span: _Span) -> str:
    """Why the search cannot be put at a place, or at its partner; empty if it can."""
    try:
        for place in (span.inside, span.matched):
            check_place(position, place, rule)
    except ValueError as error:
        return str(error)
    return ""


def _calls(found: xr.Dataset, top: int, least: int) -> list[list[float]]:
    """The predicted lengths by prompt, one without any, and by method."""
    prompts = [found.isel(prompt=row) for row in range(found.sizes["prompt"])] if "prompt" in found.dims else [found]
    made = [predict(each, top, least) for each in prompts]
    return [[np.nan if one.length is None else one.length for one in each] for each in made]
