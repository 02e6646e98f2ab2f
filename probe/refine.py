"""Further lengths where a method begins to fail, by bisection, so that the grid of lengths is not the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import xarray as xr

from probe.evaluation.by_length import TASKS, scores
from probe.evaluation.journal import Journal
from probe.evaluation.plan import EvalPlan
from probe.evaluation.work import EvalCell
from probe.store.select import reference_method
from probe.thresholds.failure import measured_failure

_FINEST = 16
"""Between lengths no further apart than M by this many nothing is measured."""


def refined(
    made: EvalPlan, journal: Journal, rounds: int, measure: Callable[[Sequence[EvalCell]], object]
) -> xr.Dataset:
    """The plan's scores, and those of up to `rounds` further lengths of each method that fails; NaN elsewhere.

    Each lies half-way between the length at which the method begins to fail and the measured one before. `measure` puts
    cells into the journal, which has the plan's own; those it has already are not measured again.
    """
    further: dict[str, tuple[int, ...]] = {}
    for _ in range(rounds):
        found = _between(scores(made, journal, further), made.setting.trained_length)
        cells = [(task, method, length) for method, length in found.items() for task in TASKS]
        missing = [cell for cell in cells if cell not in journal.rows]
        if missing:
            measure(missing)
        further |= {method: (*further.get(method, ()), length) for method, length in found.items()}
    return scores(made, journal, further)


def _between(evaluation: xr.Dataset, trained_length: int) -> Mapping[str, int]:
    """By method the next length to measure."""
    reference = reference_method(evaluation["method"].values.tolist())
    failures = measured_failure(evaluation, trained_length, reference).failures
    return {
        each.method: (each.before + each.length) // 2
        for each in failures
        if each.length and each.before and each.length - each.before > max(1, trained_length // _FINEST)
    }
