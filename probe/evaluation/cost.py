"""What a method costs beside the reference: time and memory of the passes that its likelihood was measured with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

_LEAST_MIB = 1.0
"""A reference's peak below this is within what the process's memory moves by itself."""


def costs(
    evaluation: xr.Dataset, method: str, reference: str, lengths: Sequence[int]
) -> list[dict[str, float | int | None]] | None:
    """By length in tokens: `seconds` of the fastest of the `passes`, and `peak_mib` above the loaded model.

    `time`, `memory`: times the reference's. None where it was not measured, or for all where scores are stored alone.
    The fastest pass says what a method takes: whatever else ran on the machine made the others slower.
    """
    if not {"seconds", "peak_mib"} <= {*evaluation.data_vars}:
        return None
    return [_cost(evaluation, method, reference, length) for length in dict.fromkeys(lengths)]


def _cost(evaluation: xr.Dataset, method: str, reference: str, length: int) -> dict[str, float | int | None]:
    if length not in evaluation["length"]:
        return {"length": length, "passes": 0} | dict.fromkeys(("seconds", "time", "peak_mib", "memory"))
    at = evaluation.sel(length=length)
    own, other = at.sel({"method": method}), at.sel({"method": reference})
    times = own["seconds"].values
    fastest, others = (float(np.min(each["seconds"].values)) for each in (own, other))
    peak, others_peak = float(own["peak_mib"]), float(other["peak_mib"])
    return {
        "length": length,
        "passes": int(np.isfinite(times).sum()),
        "seconds": _known(fastest),
        "time": _known(fastest / others),
        "peak_mib": _known(peak),
        "memory": _known(peak / others_peak) if others_peak >= _LEAST_MIB else None,
    }


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
