"""What `drift` says of each method: where its states first leave what they did inside the window, and how surely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from probe.thresholds.findings import ranges

SATURATED = 10
"""Times the motion of the layers in which a break shows: a layer that moves so much inside its window hides it."""
WITH_FACTOR = "with log n"


@dataclass(frozen=True)
class Call:
    """A method's call by the rule `drift`; positions in tokens.

    length: the first run in which any layer is beyond its limit; None: none is. layer: that layer, the lowest of
        several. low, high: the 95% interval of `length` over resampled dims; None where most draws call nothing.
    layers: the first run by layer, of those that are called. before: the first run among the held-out positions before
        M in which one of these layers is beyond its limit: the break began there; None: it did not. follows: all of
        these layers go evenly with the growing factor on the queries (log n scaling), which may be all there is.
    untrusted: layers with too many false alarms, which are not called. false_alarms: share of (layer, pretended window)
        pairs of the others in which the same rule calls a break where the model works, `alarms` of `tried`;
        any_false_alarm: share of the windows with one in any of them; None where none could be judged.
    judged: captured positions from M on that are not settling, where a layer is trusted, of `beyond` from M to the
        captured length; the last of them before `until`. captured: up to which length.
    reason: why nothing was judged; else empty. descriptive: the reference's own, on which ranges are read: it comes
        after the stated M by construction and is no prediction to score.
    """

    method: str
    length: int | None
    low: int | None
    high: int | None
    layer: int | None
    layers: dict[int, int]
    before: int | None
    follows: bool
    untrusted: tuple[int, ...]
    false_alarms: float | None
    alarms: int
    tried: int
    any_false_alarm: float | None
    judged: int
    beyond: int
    until: int
    captured: int
    reason: str
    descriptive: bool = False

    @property
    def earliest(self) -> int | None:
        """The lower end of the interval."""
        return self.low

    def __str__(self) -> str:
        """The call in words."""
        if self.reason:
            return f"not judged: {self.reason}"
        if self.length is None:
            left_out = f"; layer{'s' * (len(self.untrusted) > 1)} {ranges(self.untrusted)} not judged"
            return f"{self._none}{left_out if self.untrusted else ''}"
        notes = [note for note, is_so in ((WITH_FACTOR, self.follows), ("descriptive", self.descriptive)) if is_so]
        return f"{self.length} ({', '.join(notes)})" if notes else str(self.length)

    @property
    def _none(self) -> str:
        """That nothing was called, of what was judged."""
        if self.judged >= self.beyond:
            return f"none up to {self.captured}"
        percent = min(99, max(1, round(100 * self.judged / self.beyond)))
        return f"not called on the {percent}% judged, up to {self.until}"


def drift_calls(found: xr.Dataset) -> list[Call]:
    """One call a method, from `find_drift`."""
    return [_call(found.sel({"method": name})) for name in found["method"].values.tolist()]


def saturated(found: xr.Dataset) -> list[int]:
    """Layers in which the reference is not called though others are, and which move far more inside the window."""
    at = found.sel({"method": found.attrs["reference"]})
    called = np.isfinite(at["first"].values)
    if not called.any():
        return []
    hidden = ~called & (at["motion"].values >= SATURATED * np.median(at["motion"].values[called]))
    return at["layer"].values[hidden].tolist()


def carriers(found: xr.Dataset, top: int) -> list[tuple[int, int]]:
    """Up to `top` (layer, dim) that carry most of the reference's drift, best first; of each dim its best layer only.

    Ranked by the dim's share of its layer's drift, among the layers called no later than a run after the first.
    """
    at = found.sel({"method": found.attrs["reference"]})
    first = at["first"].values
    if not np.isfinite(first).any():
        return []
    early = first <= np.nanmin(first) + found.attrs["run"]
    share = np.where(early[:, None], at["share"].values, 0)
    layers, dims = found["layer"].values, found["dim"].values
    best = share.argmax(0)
    order = np.argsort(-share.max(0), kind="stable")[:top]
    return [(int(layers[best[dim]]), int(dims[dim])) for dim in order if share[best[dim], dim] > 0]


def _call(at: xr.Dataset) -> Call:
    first, trusted = at["first"].values, at["trusted"].values
    called = np.flatnonzero(np.isfinite(first))
    length, trained_length = int(at.attrs["length"]), int(at.attrs["trained_length"])
    runs = (at["run"].values >= trained_length) & ~at["settling"].values
    judged = int(at["captured"].values[runs].sum())
    until = min(length, int(at["run"].values[runs][-1]) + int(at.attrs["run"])) if judged else trained_length
    row = called[first[called].argmin()] if called.size else None
    low, high = (None, None) if row is None else (_whole(at[name].values[row]) for name in ("low", "high"))
    tried = np.isfinite(at["false_alarms"].values).any()
    windows = at["windows"].values
    alarms = np.nansum(at["false_alarms"].values * np.where(trusted, windows, 0))
    reason = "" if trusted.any() else "false alarms" if tried else "false alarms could not be tried"
    return Call(
        method=str(at["method"].item()),
        length=None if row is None else int(first[row]),
        low=low,
        high=high,
        layer=None if row is None else int(at["layer"].values[row]),
        layers={int(at["layer"].values[each]): int(first[each]) for each in called},
        before=_earliest(at["before"].values[called]),
        follows=bool(called.size and at["follows"].values[called].all()),
        untrusted=tuple(at["layer"].values[~trusted].tolist()) if judged else (),
        false_alarms=_number(at["false_alarms"].where(at["trusted"]).mean()) if trusted.any() else None,
        alarms=round(float(alarms)),
        tried=int(windows[trusted].sum()),
        any_false_alarm=_number(at["any_false_alarm"]),
        judged=judged if trusted.any() else 0,
        beyond=length - trained_length,
        until=until,
        captured=length,
        reason=reason if judged else "settling all the time",
        descriptive=str(at["method"].item()) == at.attrs["reference"],
    )


def _earliest(positions: np.ndarray) -> int | None:
    known = positions[np.isfinite(positions)]
    return int(known.min()) if known.size else None


def _whole(value: Any) -> int | None:
    return int(value) if np.isfinite(value) else None


def _number(value: xr.DataArray) -> float | None:
    return float(value) if np.isfinite(value) else None
