"""How fast a method's positions go beyond the window: the slope of the most alike in-window position."""

from __future__ import annotations

import numpy as np
import xarray as xr

_LEAST_BLOCKS = 4


def interpolation(near: xr.Dataset, *, blocks: int = 32, draws: int = 500, seed: int = 0) -> xr.Dataset:
    """Slope of t' on t, by layer, where `near` (of `positional.nearest`) says that position t is most like t'.

    1: positions go on as inside; 1/s: a method slows them s times; 0: they stand still, or `cosine` (the median of the
    largest ones) is low and t' means nothing. Robust: medians of `blocks` runs of positions, then the median slope
    over pairs of them (Theil-Sen); `low`, `high`: 95% interval over blocks drawn anew. `at`: t' at the first t.
    Raises ValueError for fewer positions than four.
    """
    position = near["position"].values.astype(float)
    count = min(blocks, len(position))
    if count < _LEAST_BLOCKS:
        raise ValueError(f"{len(position)} positions are too few for a slope; give at least {_LEAST_BLOCKS}")
    parts = np.array_split(np.arange(len(position)), count)
    time = np.array([position[part].mean() for part in parts])
    rng = np.random.default_rng(seed)
    drawn = [np.sort(rng.integers(count, size=count)) for _ in range(draws)]
    rows = []
    for values in near["nearest"].transpose("layer", "position").values:
        place = np.array([np.median(values[part]) for part in parts])
        slope = _slope(time, place)
        low, high = np.nanquantile([_slope(time[each], place[each]) for each in drawn], [0.025, 0.975])
        rows.append((slope, low, high, np.median(place - slope * (time - position[0]))))
    columns = dict(zip(("slope", "low", "high", "at"), np.array(rows).T, strict=True))
    found = xr.Dataset(
        {name: ("layer", each) for name, each in columns.items()},
        {"layer": near["layer"].values},
        {"trained_length": near.attrs["trained_length"]},
    )
    found["cosine"] = near["cosine"].median("position")
    found["slope"].attrs.update(long_name="in-window tokens for one token beyond", units="1")
    return found


def _slope(time: np.ndarray, place: np.ndarray) -> float:
    """The median slope over pairs; NaN where all are at one time."""
    first, second = np.triu_indices(len(time), 1)
    apart = time[second] - time[first]
    used = apart > 0
    return float(np.median((place[second] - place[first])[used] / apart[used])) if used.any() else np.nan
