"""The measured failure length of each method, from its scores by length."""

from __future__ import annotations

from dataclasses import dataclass

import xarray as xr

NATS_ABOVE = 0.5
LEAST_ACCURACY = 0.5


@dataclass(frozen=True)
class Failure:
    """The first measured lengths, in tokens, at which a method fails; None if it does not up to the longest.

    by_nll: its tail NLL is more than `NATS_ABOVE` nats/token above `Measured.level`.
    by_passkey: its passkey accuracy is below `LEAST_ACCURACY`.
    """

    method: str
    by_nll: int | None
    by_passkey: int | None

    @property
    def length(self) -> int | None:
        """The first length at which either rule holds."""
        return min((length for length in (self.by_nll, self.by_passkey) if length is not None), default=None)


@dataclass(frozen=True)
class Measured:
    """Failures by method and what they are measured against.

    level: the reference method's tail NLL at `level_length`, the longest measured length within the window.
    passkey_judged: whether the reference finds the passkey there; if not, passkeys say nothing about length.
    """

    reference: str
    level: float
    level_length: int
    passkey_judged: bool
    lengths: tuple[int, ...]
    failures: tuple[Failure, ...]

    @property
    def rule(self) -> str:
        """What is called a failure, in words."""
        level = f"{self.level:.2f} ({self.reference} at {self.level_length})"
        nll = f"tail NLL more than {NATS_ABOVE:g} nats/token above {level}"
        passkey = f"passkey accuracy below {LEAST_ACCURACY:g}"
        if not self.passkey_judged:
            passkey += f" (not judged: {self.reference} itself is below it at {self.level_length})"
        return f"{nll}, or {passkey}"


def measured_failure(evaluation: xr.Dataset, trained_length: int, reference: str = "origin") -> Measured:
    """Failure lengths from `tail_nll` (method, length, window) and, if there, `passkey` (method, length, sample).

    Raises ValueError if nothing was measured within the trained window, or not the reference method.
    """
    lengths = sorted(int(length) for length in evaluation["length"].values)
    within = [length for length in lengths if length <= trained_length]
    methods = evaluation["method"].values.tolist()
    if not within:
        raise ValueError(f"no length within the trained window {trained_length} was measured, only {lengths}")
    if reference not in methods:
        raise ValueError(f"reference {reference!r} was not measured; measured methods: {', '.join(methods)}")
    nll = evaluation["tail_nll"].mean("window").sortby("length")
    level = float(nll.sel({"method": reference, "length": within[-1]}))
    by_nll = nll > level + NATS_ABOVE
    by_passkey = xr.zeros_like(by_nll)
    judged = False
    if "passkey" in evaluation:
        accuracy = evaluation["passkey"].mean("sample").sortby("length")
        judged = float(accuracy.sel({"method": reference, "length": within[-1]})) >= LEAST_ACCURACY
        by_passkey = (accuracy < LEAST_ACCURACY) & judged
    failures = [
        Failure(method, _first(by_nll.sel({"method": method})), _first(by_passkey.sel({"method": method})))
        for method in methods
    ]
    return Measured(reference, level, within[-1], judged, tuple(lengths), tuple(failures))


def _first(fails: xr.DataArray) -> int | None:
    lengths = fails["length"].values[fails.values]
    return int(lengths[0]) if len(lengths) else None
