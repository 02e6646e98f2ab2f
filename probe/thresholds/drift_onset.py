"""The drift onset of a method: where its states first leave what they did inside the window, with an interval."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Annotated

import numpy as np
import xarray as xr
from pydantic.dataclasses import dataclass

from probe.store.result_file import InWords, formerly
from probe.thresholds.drift import FALSE_DETECTIONS, WARM_UP


@dataclass(frozen=True)
class DriftOnset(InWords):
    """Where a method's states begin to drift, by the rule `drift`; positions in tokens. It does not predict failure.

    length: the first run in which any layer is beyond its limit; None: none is. layer: that layer, the lowest of
        several. low, high: the 95% interval of `length` over resampled dims; None where most draws detect none.
    layers: the first run by layer, of those in which drift is detected. before: the first run among the held-out
        positions before M in which one of these layers is beyond its limit: the drift began there; None: it did not.
    untrusted: why drift is not judged, by layer: false detections, a range that no state can leave, or runs beyond the
        limit that chance (heavy tails) or a random walk explains. false_positive_rate: share of (layer,
        pretended window) pairs of the others in which the same rule detects drift where the model works,
        `false_positives` of `tried`; any_false_positive_rate: share of the windows with one in any of them; None where
        none could be evaluated.
    chance: the most chance, over all layers, of so clear a drift where nothing breaks; None: none detected.
    evaluated: captured positions from M on that are no warm-up, where a layer is trusted, of `beyond` from M to the
        captured length; the last of them before `until`. captured: up to which length.
    reason: why nothing was evaluated; else empty. descriptive: the reference's own, on which ranges are read: it comes
        after M by construction.
    """

    method: str
    length: int | None
    low: int | None
    high: int | None
    layer: int | None
    layers: dict[int, int]
    before: int | None
    untrusted: dict[int, str]
    false_positive_rate: Annotated[float | None, formerly("false_alarms", "false_positive_rate")]
    false_positives: Annotated[int, formerly("alarms", "false_positives")]
    tried: int
    any_false_positive_rate: Annotated[float | None, formerly("any_false_alarm", "any_false_positive_rate")]
    judged: int
    beyond: int
    until: int
    captured: int
    reason: str
    descriptive: bool = False
    chance: float | None = None

    def __str__(self) -> str:
        """The onset in words."""
        if self.reason:
            return f"not judged: {self.reason}"
        if self.length is not None:
            return f"{self.length} (descriptive)" if self.descriptive else str(self.length)
        text = f"none up to {self.captured}"
        if self.judged < self.beyond:
            percent = min(99, max(1, round(100 * self.judged / self.beyond)))
            text = f"none up to {self.until} ({percent}% of positions judged)"
        layers = "layers" if len(self.untrusted) > 1 else "layer"
        return f"{text}; {layers} {ranges(self.untrusted)} not judged" if self.untrusted else text


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, runs of them as ranges: '1-3, 7'."""
    ordered = sorted(map(int, numbers))
    runs = [[number for _, number in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def drift_onsets(drift: xr.Dataset) -> list[DriftOnset]:
    """Where states first drift, one onset a method.

    Args:
        drift: One prompt's `find_drift`.

    Returns:
        A list of `DriftOnset`: `length` in tokens (None: not detected), its 95% interval `low` to `high`, `layer`,
        `layers`, `untrusted` and false detections. It predicts no failure.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> drift = probe.find_drift(probe.hook_values(run).sel(prompt="repeated"), run.trained_length)
        >>> [(onset.method, onset.length, onset.layer) for onset in probe.drift_onsets(drift)]
        [('origin', 316, 2), ('rerope', None, None)]
    """
    return [_onset(drift.sel({"method": name})) for name in drift["method"].values.tolist()]


def top_dims(drift: xr.Dataset, top: int) -> list[tuple[int, int]]:
    """Up to `top` (layer, dim) that carry most of the reference's drift, best first; of each dim its best layer only.

    Ranked by the dim's share of its layer's drift, among the layers with drift no later than a run after the first.
    """
    at = drift.sel({"method": drift.attrs["reference"]})
    first = at["first"].values
    if not np.isfinite(first).any():
        return []
    early = first <= np.nanmin(first) + drift.attrs["run"]
    share = np.where(early[:, None], at["share"].values, 0)
    layers, dims = drift["layer"].values, drift["dim"].values
    best = share.argmax(0)
    order = np.argsort(-share.max(0), kind="stable")[:top]
    return [(int(layers[best[dim]]), int(dims[dim])) for dim in order if share[best[dim], dim] > 0]


def _onset(at: xr.Dataset) -> DriftOnset:
    method, layers, first, doubt = str(at["method"].item()), at["layer"].values, at["first"].values, at["doubt"].values
    trusted, doubts = doubt == "", dict(zip(layers.tolist(), doubt.tolist(), strict=True))
    detected = np.flatnonzero(np.isfinite(first))
    row = detected[first[detected].argmin()] if detected.size else None
    ends = [None if row is None else _whole(float(at[name].values[row])) for name in ("first", "low", "high")]
    length, trained_length = int(at.attrs["length"]), int(at.attrs["trained_length"])
    runs = (at["run"].values >= trained_length) & ~at["warm_up"].values
    judged = int(at["captured"].values[runs].sum())
    until = min(length, int(at["run"].values[runs][-1]) + int(at.attrs["run"])) if judged else trained_length
    every_rate, any_rate = at["false_positive_rate"].values, float(at["any_false_positive_rate"])
    rates, windows, began = every_rate[trusted], at["windows"].values[trusted], at["before"].values[detected]
    began = began[np.isfinite(began)]
    untried = "" if np.isfinite(every_rate).any() else " could not be tried"
    reasons = sorted(why + untried * (why == FALSE_DETECTIONS) for why in set(doubts.values()))
    reason = "" if trusted.any() else " or ".join(reasons)
    return DriftOnset(
        method=method,
        length=ends[0],
        low=ends[1],
        high=ends[2],
        layer=None if row is None else int(layers[row]),
        layers={int(layers[number]): int(first[number]) for number in detected},
        before=int(began.min()) if began.size else None,
        untrusted={layer: why for layer, why in doubts.items() if why} if judged else {},
        false_positive_rate=float(np.nanmean(rates)) if np.isfinite(rates).any() else None,
        false_positives=round(float(np.nansum(rates * windows))),
        tried=int(windows.sum()),
        any_false_positive_rate=any_rate if np.isfinite(any_rate) else None,
        chance=float(at["chance"].values[detected].min()) if detected.size else None,
        judged=judged if trusted.any() else 0,
        beyond=length - trained_length,
        until=until,
        captured=length,
        reason=reason if judged else WARM_UP,
        descriptive=method == at.attrs["reference"],
    )


def _whole(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
