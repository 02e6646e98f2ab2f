"""A first answer of `search`, many times sooner: the same rule on the means of short blocks of positions."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import xarray as xr

from probe.thresholds.search import CrossingRule, at_once, check_positions, search

STEP = "step"
"""Attribute of a first answer: at every how many positions it was read."""
_PARTS, _LEAST = 8, 8  # of a mean; positions of a block
_LARGE = 2**24  # values of the reference: fewer are searched as they are


def first_answer(
    hidden: xr.DataArray, trained_length: int, rule: CrossingRule, reference: str = "origin"
) -> xr.Dataset | None:
    """`search` of one prompt's `hidden` (method, layer, position, dim) as it is read at every `step`-th position.

    A step is an eighth of `smoothing`, 8 positions at least; M is one of those that are read. Only `reference` is
    judged, as without `every` and `others`. None where the states are few, or not of consecutive positions, or the step
    leaves too few. Raises ValueError where `search` does.
    """
    position = hidden["position"].values
    check_positions(position.tolist(), trained_length, rule)
    step = max(_LEAST, rule.smoothing // _PARTS)
    size = hidden.sizes["layer"] * hidden.sizes["position"] * hidden.sizes["dim"]
    if size < _LARGE or (np.diff(position) != 1).any():
        return None
    skipped = int(trained_length + 1 - position[0]) % step
    first = int(position[skipped]) + step - 1  # the last position of the first block
    means = _means(hidden.sel({"method": [reference]}), skipped, step, min(step, rule.smoothing))
    own = replace(
        rule,
        smoothing=max(1, round(rule.smoothing / step)),
        sustained=max(1, round(rule.sustained / step)),
        burn_in=max(0, -(-(rule.burn_in - first) // step)),
    )
    try:
        found = search(means, (trained_length - first) // step, own, reference, every=False, others=False)
    except ValueError:  # so few blocks do not do
        return None
    for name in ("crossing", "earliest"):
        found[name] = found[name].copy(data=found[name].values * step + first)
    asked = {
        **asdict(rule),
        "trained_length": trained_length,
        "length": int(position[-1]) + 1,
        "inside_positions": int(((position >= rule.burn_in) & (position < trained_length)).sum()),
        STEP: step,
    }
    return found.reindex({"method": hidden["method"].values}).assign_attrs(asked)


def _means(hidden: xr.DataArray, skipped: int, step: int, width: int) -> xr.DataArray:
    """Means over the last `width` of each `step` positions, the first `skipped` left out; positions are numbers."""
    count = (hidden.sizes["position"] - skipped) // step
    stored = hidden.isel(method=0, position=slice(skipped, skipped + count * step)).transpose(
        "layer", "position", "dim"
    )

    def read(layer: int) -> np.ndarray:
        values = stored.isel(layer=layer).values.astype(np.float32)
        return values.reshape(count, step, -1)[:, step - width :].mean(axis=1)

    means = np.stack(at_once(read, range(hidden.sizes["layer"])))[None]
    labels = {name: each.values for name, each in hidden.coords.items() if each.dims in ((), (name,))}
    labels["position"] = range(count)
    return xr.DataArray(means, labels, ("method", "layer", "position", "dim"), hidden.name, hidden.attrs)
