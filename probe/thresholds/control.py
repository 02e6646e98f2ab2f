"""The negative control of the rule `paper`: the same search and prediction at places inside the window, and at M."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from probe.thresholds.predict import LEAST, TOP, predict
from probe.thresholds.search import CrossingRule, SearchWindow, check_window, searches

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

    At a place p the search takes p for M and sees [warm_up, p) as its window and positions up to M beyond, fewer if
    fewer were captured beyond M. That is less than it sees at M, so each place has a partner `matched`: M with as many
    positions before and beyond. Places are spread evenly from 2 `sustained` behind warm_up to 2 `sustained` before M,
    both no less than the search needs. By `place`, and by prompt if there are several:

    - `first`, `last`, `matched_first`, `matched_last`: positions seen
    - `qualified`, `matched`: observable (layer, dim) pairs at the place, and at M; of the attribute `searched`
    - `called` (method): the failure length that `predict` gives there, by `top` and `least` dims; NaN: none. Every one
      is false, since it lies inside the window. The reference's says that dims qualify, and no more: they are chosen
      on it

    Raises ValueError when nowhere the positions it needs were captured.
    """
    pairs = _pairs(hidden["position"].values, trained_length, rule, count)
    windows, partners = zip(*pairs, strict=True)
    searched = searches(hidden, [*windows, *partners], rule, reference, observable_only=True)
    several = ["prompt"] if "prompt" in hidden.dims else []
    variables: dict[str, Any] = {}
    for name, part in (("qualified", searched[: len(pairs)]), ("matched", searched[len(pairs) :])):
        variables[name] = (["place", *several], np.stack([at["qualified"].values for at in part]))
    lengths = np.array([_lengths(at, top, least) for at in searched[: len(pairs)]])
    lengths = lengths.reshape(*variables["qualified"][1].shape, -1)
    variables["called"] = (["place", *several, "method"], lengths, {"units": "position"})
    for prefix, part in (("", windows), ("matched_", partners)):
        variables[f"{prefix}first"] = ("place", [window.first for window in part])
        variables[f"{prefix}last"] = ("place", [window.last for window in part])
    return xr.Dataset(
        variables,
        {"place": [window.at for window in windows], **{name: hidden[name].values for name in ("method", *several)}},
        {
            "trained_length": trained_length,
            "reference": reference,
            "searched": searched[0].attrs["searched"],
            "top": top,
            "least": min(top, least),
        },
    )


def false_predictions(control: xr.Dataset) -> xr.DataArray:
    """By method, the share of the places at which a failure is predicted though it lies inside the window."""
    return control["called"].notnull().mean("place")


def as_many(control: xr.Dataset) -> xr.DataArray:
    """The share of the places at which pairs qualify, no fewer than at M with as many positions."""
    qualified = control["qualified"]
    return ((qualified > 0) & (qualified >= control["matched"])).mean("place")


def _pairs(
    position: np.ndarray, trained: int, rule: CrossingRule, count: int
) -> list[tuple[SearchWindow, SearchWindow]]:
    """Of `count` places inside the window, those that can be searched, with their partners at M; ValueError if none."""
    margin = max(8, rule.smoothing, 2 * rule.sustained)
    low, high = rule.warm_up + margin, trained - margin
    if low > high:
        raise ValueError(
            f"places inside the window lie {margin} positions behind the {rule.warm_up} left out at the start "
            f"and as many before {trained}; there is no room"
        )
    pairs, reason = [], ""
    for at in np.unique(np.linspace(low, high, count).round().astype(int)).tolist():
        before, beyond = at - rule.warm_up, min(trained - at, int(position[-1]) - trained)
        pair = (
            SearchWindow(at, rule.warm_up, at + beyond),
            SearchWindow(trained, trained - before, trained + beyond),
        )
        try:
            for window in pair:
                check_window(position, window, rule)
        except ValueError as error:
            reason = reason or str(error)
        else:
            pairs.append(pair)
    if not pairs:
        raise ValueError(reason)
    return pairs


def _lengths(searched: xr.Dataset, top: int, least: int) -> list[list[float]]:
    """The predicted lengths by prompt, one without any, and by method."""
    prompts = searched["prompt"].values.tolist() if "prompt" in searched.dims else [None]
    by_prompt = [searched if name is None else searched.sel(prompt=name) for name in prompts]
    return [[np.nan if p.length is None else p.length for p in predict(at, top, least)] for at in by_prompt]
