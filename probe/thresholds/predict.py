"""What observed thresholds say: a predicted failure length for each method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

TOP = 10
"""Dims that a prediction is the median of."""
LEAST = 5
"""Fewer judged dims predict nothing."""
_PAIR = ("layer", "dim")


@dataclass(frozen=True)
class Prediction:
    """A method's predicted failure length, in tokens: what its crossings at the best dims say.

    length: median crossing over the judged dims; None if not more than half of them cross, or if it is not `known`.
    earliest: the same median of the first positions the crossings may really be at; below `length` where positions
        just before were not captured.
    judged: best dims at which the method keeps to the safe side inside the window, as Origin does; others are left out.
    crossed: how many of the judged cross. chosen: how many best dims there were.
    captured: up to which length. descriptive: the reference's own: dims are chosen on it, so its length follows the
        stated M by construction and is no prediction to score.
    """

    method: str
    length: int | None
    earliest: int | None
    judged: int
    crossed: int
    chosen: int
    least: int
    captured: int
    descriptive: bool = False

    @property
    def known(self) -> bool:
        """Whether `least` dims are judged, so that no length means none."""
        return self.judged >= self.least

    def __str__(self) -> str:
        """The prediction in words."""
        if not self.chosen:
            return "no observable dim"
        if self.chosen < self.least:
            return f"too few observable dims: {self.chosen}, {self.least} are needed"
        if not self.judged:
            return "beyond the thresholds already inside the window"
        if not self.known:
            return f"cannot tell: {self.judged} of {self.chosen} dims can be judged, {self.least} are needed"
        if self.length is None or self.earliest is None:
            return f"none up to {self.captured}"
        length = str(self.length) if self.earliest == self.length else f"between {self.earliest} and {self.length}"
        return f"{length} (descriptive)" if self.descriptive else length


def best(crossings: xr.Dataset, top: int) -> list[tuple[int, int]]:
    """Up to `top` observable (layer, dim) of one prompt's `search`, best first; of each dim its best layer only.

    The residual stream carries a dim's value from layer to layer: two layers of one dim are no two witnesses.
    """
    if "prompt" in crossings.dims:
        raise ValueError(
            f"choose one of the prompts {crossings['prompt'].values.tolist()}, e.g. crossings.isel(prompt=0)"
        )
    rank = crossings["rank"].transpose(*_PAIR).values
    layers, dims = (crossings[name].values.tolist() for name in _PAIR)
    ranked = sorted((int(rank[at]), *at) for at in zip(*np.nonzero(rank), strict=True))
    pairs: dict[int, tuple[int, int]] = {}
    for _, layer, dim in ranked:
        pairs.setdefault(dims[dim], (layers[layer], dims[dim]))
    return list(pairs.values())[:top]


def excluded(crossings: xr.Dataset) -> xr.DataArray:
    """Where a method is beyond the line inside the window too often for its crossing to be counted."""
    return crossings["inside"] > 1 - crossings.attrs["share"]


def crossing_texts(crossings: xr.Dataset) -> xr.DataArray:
    """Where each method crosses the line: a position, 'never', or 'excluded'."""
    texts = [
        "excluded" if out else "never" if np.isnan(at) else f"{at:.0f}"
        for at, out in zip(crossings["crossing"].values.flat, excluded(crossings).values.flat, strict=True)
    ]
    return crossings["crossing"].copy(data=np.reshape(np.array(texts, object), crossings["crossing"].shape))


def predict(crossings: xr.Dataset, top: int = TOP, least: int = LEAST) -> list[Prediction]:
    """One prediction a method, from one prompt's `search` and its `best` dims (fewer than `top` if no more qualify).

    least: fewer judged dims than that, or than `top`, predict nothing.
    """
    pairs = best(crossings, top)
    layer, dim = (
        crossings.get_index(name).get_indexer([pair[part] for pair in pairs]) for part, name in enumerate(_PAIR)
    )
    read = {
        name: crossings[name].transpose("method", *_PAIR).values[:, layer, dim]
        for name in ("inside", "crossing", "earliest")
    }
    return [
        _predict(crossings, method, {name: values[row] for name, values in read.items()}, min(top, least))
        for row, method in enumerate(crossings["method"].values.tolist())
    ]


def _predict(crossings: xr.Dataset, method: str, at: dict[str, np.ndarray], least: int) -> Prediction:
    chosen = len(at["inside"])
    safe = at["inside"] <= 1 - crossings.attrs["share"]
    crossing, earliest = at["crossing"][safe], at["earliest"][safe]
    crossed = int(np.isfinite(crossing).sum())
    fails = 2 * crossed > len(crossing) and len(crossing) >= least
    return Prediction(
        method=method,
        length=_median(crossing) if fails else None,
        earliest=_median(earliest) if fails else None,
        judged=len(crossing),
        crossed=crossed,
        chosen=chosen,
        least=least,
        captured=int(crossings.attrs["length"]),
        descriptive=method == crossings.attrs["reference"],
    )


def _median(positions: np.ndarray) -> int:
    """The median position, where NaN stands for beyond all others."""
    return int(np.median(np.where(np.isnan(positions), np.inf, positions)))
