"""What observed thresholds say: a predicted failure length for each method, and how much of it a control would give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from probe.thresholds.search import CrossingRule, search


@dataclass(frozen=True)
class Prediction:
    """A method's predicted failure length, in tokens: what its crossings at the best dims say.

    length: median crossing over the judged dims; None if not more than half of them cross.
    earliest: the same median of the first positions the crossings may really be at; below `length` where positions
        just before were not captured.
    judged: best dims at which the method keeps to the safe side inside the window, as Origin does; others are left out.
    crossed: how many of the judged cross. chosen: how many best dims there were. captured: up to which length.
    """

    method: str
    length: int | None
    earliest: int | None
    judged: int
    crossed: int
    chosen: int
    captured: int

    def __str__(self) -> str:
        """The prediction in words."""
        if not self.chosen:
            return "no observable dim"
        if not self.judged:
            return "beyond the thresholds already inside the window"
        if self.length is None or self.earliest is None:
            return f"none up to {self.captured}"
        return str(self.length) if self.earliest == self.length else f"between {self.earliest} and {self.length}"


def best(found: xr.Dataset, top: int) -> list[tuple[int, int]]:
    """Up to `top` observable (layer, dim) of one prompt's `search`, best first; of each dim its best layer only.

    The residual stream carries a dim's value from layer to layer: two layers of one dim are no two witnesses.
    """
    if "prompt" in found.dims:
        raise ValueError(f"choose one of the prompts {found['prompt'].values.tolist()}, e.g. found.isel(prompt=0)")
    rank = found["rank"].stack(pair=("layer", "dim"))
    ranked = rank[rank > 0].sortby(rank[rank > 0])
    pairs: dict[int, tuple[int, int]] = {}
    for layer, dim in ranked["pair"].values.tolist():
        pairs.setdefault(dim, (layer, dim))
    return list(pairs.values())[:top]


def predict(found: xr.Dataset, top: int = 10) -> list[Prediction]:
    """One prediction a method, from one prompt's `search` and its `best` dims (fewer than `top` if no more qualify)."""
    pairs = best(found, top)
    return [_predict(found, method, pairs) for method in found["method"].values.tolist()]


def _predict(found: xr.Dataset, method: str, pairs: list[tuple[int, int]]) -> Prediction:
    at = [found.sel({"method": method, "layer": layer, "dim": dim}) for layer, dim in pairs]
    judged = [one for one in at if float(one["inside"]) <= 1 - found.attrs["share"]]
    crossing, earliest = (np.array([float(one[name]) for one in judged]) for name in ("crossing", "earliest"))
    crossed = int(np.isfinite(crossing).sum())
    fails = 2 * crossed > len(judged)
    return Prediction(
        method=method,
        length=_median(crossing) if fails else None,
        earliest=_median(earliest) if fails else None,
        judged=len(judged),
        crossed=crossed,
        chosen=len(pairs),
        captured=int(found.attrs["length"]),
    )


def _median(positions: np.ndarray) -> int:
    """The median position, where NaN stands for beyond all others."""
    return int(np.median(np.where(np.isnan(positions), np.inf, positions)))


def negative_control(
    hidden: xr.DataArray,
    trained_length: int,
    control_length: int,
    rule: CrossingRule,
    reference: str = "origin",
    known: xr.Dataset | None = None,
) -> xr.Dataset:
    """How many (layer, dim) pairs qualify at M, and at `control_length`, where the model still works.

    The control search takes `control_length` for M and sees the positions up to M only. It has fewer positions on
    either side than the search at M, so the fair partner is `matched`: M with as many positions before and beyond as
    the control has. Returned by `comparison`, in this order: `control`, `matched`, `all` (M with every position):
    `at`, `first`, `last` (positions), `searched`, `qualified` and `share` (both also by prompt, if there are several).
    known: the search at M with every position, where it has been made.
    A share at M that is not above the control's means that the dims found show no more than usual drift.

    Raises ValueError when the positions it needs were not captured.
    """
    if not rule.burn_in < control_length < trained_length:
        raise ValueError(f"control_length={control_length} is not within ({rule.burn_in}, {trained_length})")
    before, beyond = control_length - rule.burn_in, trained_length - control_length
    captured = int(hidden["position"][-1])
    if captured < trained_length + beyond:
        raise ValueError(
            f"a fair partner at {trained_length} takes positions up to {trained_length + beyond}, captured up to "
            f"{captured}; capture with --length {trained_length + beyond + 1} or more"
        )
    spans = {
        "control": (control_length, rule.burn_in, trained_length),
        "matched": (trained_length, trained_length - before, trained_length + beyond),
        "all": (trained_length, rule.burn_in, captured),
    }
    rows = []
    for name, (at, first, last) in spans.items():
        if name == "all" and known is not None:
            found = known
        else:  # other methods do not decide what qualifies
            part = hidden.sel({"method": [reference], "position": slice(None, last)})
            found = search(part, at, replace(rule, burn_in=first), reference)
        searched, qualified = found.attrs["searched"], found["qualified"]
        row = xr.Dataset({"at": at, "first": first, "last": last, "searched": searched, "qualified": qualified})
        rows.append(row.assign(share=qualified / searched))
    return xr.concat(rows, dim="comparison").assign_coords(comparison=list(spans))
