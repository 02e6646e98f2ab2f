"""Do thresholds predict failure? Failure lengths predicted and measured over prompts, method configs and seeds."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.methods import Method
from mesa.models import bytes_a_number
from mesa.plan import BASE, reach
from mesa.support import is_rotary
from probe.capture.memory import check_memory
from probe.cells.cell import Cell
from probe.cells.runner import LOCAL, Runner
from probe.evaluation.clock import is_over
from probe.evaluation.journal import Journal
from probe.evaluation.journaled import run_journaled
from probe.evaluation.plan import memory_bytes
from probe.mechanism.anatomy.frequencies import first_unmet
from probe.ownership import owned, tell_finished
from probe.tasks.base import Setting
from research.thresholds_predict_failure.inputs import Inputs, prepare
from research.thresholds_predict_failure.plan import StudyPlan, StudyRequest, plan
from research.thresholds_predict_failure.results import BOUNDS, gather, judges, progress
from research.thresholds_predict_failure.variants import REFERENCE
from research.thresholds_predict_failure.work import MEASURE, PREDICT, MeasureWork, PredictWork

JOURNAL = "cells.jsonl"


def run_study(
    request: StudyRequest,
    out: Path,
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> tuple[xr.Dataset | None, str]:
    """The results (see `gather`) of a study kept in the folder `out`, which takes up where it was interrupted.

    Lengths are predicted first, one pass or a few a config; then failure is measured. After the `clock.deadline`
    `until` nothing is begun; if something is left then, there are no results, but words that say how much. Raises
    ValueError for a bad request, before the weights are loaded, FileExistsError if `out` holds another study;
    `overwrite` removes that, once the weights of the new one are loaded; RuntimeError where no worker of the `runner`
    could finish a cell. Also raises what `owned` and `Runner.check` raise.
    """
    made = plan(request)
    runner.check(request.load)
    if runner.is_local:
        check_memory(made.needed_bytes, made.length)
    inputs = prepare(made)
    with owned(out):
        return _run(made, inputs, out, overwrite, until, runner)


def _run(
    made: StudyPlan, inputs: Inputs, out: Path, overwrite: bool, until: float | None, runner: Runner
) -> tuple[xr.Dataset | None, str]:
    settings, failed, stop = made.settings(inputs.fingerprints), [], partial(is_over, until)
    with ExitStack() as stack:  # the capture wraps the model, so measuring takes workers of its own
        work, pool = PredictWork.of(made, inputs, out if runner.is_local else None), None
        if overwrite:
            pool = stack.enter_context(runner.pool(work, _cells_to_predict(made, None)))
            (out / JOURNAL).unlink(missing_ok=True)
        journal = Journal(out / JOURNAL, settings, force=made.request.force)
        if not _cells_to_predict(made, journal) and not _left_to_measure(made, journal):
            tell_finished(out)
        cells = [] if is_over(until) else _cells_to_predict(made, journal)
        if cells:
            pool = pool or stack.enter_context(runner.pool(work, cells))
            failed += run_journaled(pool, cells, journal, "capturing hidden states", stop=stop)
        del pool
    cells = [] if is_over(until) else _cells_to_measure(made, journal)
    if cells:
        with runner.pool(MeasureWork.of(made, inputs), cells) as pool:
            wanted = partial(_says_anything, made, journal)
            failed += run_journaled(pool, cells, journal, "measuring failure", wanted=wanted, stop=stop)
    if failed:
        first = f"no worker could finish {failed[0]}, {len(failed)} cells in all"
        raise RuntimeError(f"{first}; the same command tries them again")
    predictions, measurements = _cells_to_predict(made, journal), _left_to_measure(made, journal)
    if predictions or measurements:
        return None, f"{len(predictions)} predictions and {measurements} measured failures are left"
    return gather(
        journal, {**settings, **_measuring(made)}, {name: _arithmetic(name, made) for name in made.methods}
    ), ""


def _cells_to_predict(made: StudyPlan, journal: Journal | None) -> list[Cell]:
    """The cells (prompt, config, seed) of the missing predictions, all where there is no journal."""
    keys = [
        ("predicted", prompt, name, seed)
        for prompt in made.request.prompts
        for seed in made.seeds
        for name in made.methods
    ]
    done = journal.rows if journal else {}
    return [Cell(PREDICT, key, made.needed_bytes) for key in keys if key not in done]


def _cells_to_measure(made: StudyPlan, journal: Journal) -> list[Cell]:
    """The cells (task, config, seed, length) that are not known yet: by seed, Origin's first, and first of these M.

    Where Origin's score at M is chance nothing else is measured; where that is not known yet, all is here.
    """
    found = []
    for seed, name, task in product(made.seeds, made.methods, made.request.measure):
        level = (task, REFERENCE, seed, made.trained_length)
        if level in journal.rows and not judges(journal, _measuring(made), task, seed):
            continue
        first = [made.trained_length] if name == REFERENCE else []
        lengths = dict.fromkeys([*first, *made.lengths])
        keys = [(task, name, seed, length) for length in lengths]
        found += [Cell(MEASURE, key, _measured_bytes(made, task, key[3])) for key in keys if key not in journal.rows]
    return found


def _says_anything(made: StudyPlan, journal: Journal, cell: Cell) -> bool:
    """Whether Origin's score at M, if it is known, says that the cell's task and seed are not at chance."""
    task, _, seed, _ = cell.key
    level = (task, REFERENCE, seed, made.trained_length)
    return cell.key == level or level not in journal.rows or judges(journal, _measuring(made), str(task), int(seed))


def _measured_bytes(made: StudyPlan, task: str, length: int) -> int:
    setting = Setting(made.trained_length, (length,), batch=1)
    return memory_bytes(made.config, [task], setting, bytes_a_number(made.config, made.request.load))


def _left_to_measure(made: StudyPlan, journal: Journal) -> int:
    """How many failures (seed, config, task) are not known yet."""
    settings = _measuring(made)
    each = product(made.seeds, made.methods, made.request.measure)
    return sum(progress(journal, settings, task, name, seed)[-1] is not None for seed, name, task in each)


def _measuring(made: StudyPlan) -> dict[str, Any]:
    return {
        "trained_length": made.trained_length,
        "lengths": made.lengths,
        "vocabulary": made.config.vocab_size,
    }


def _arithmetic(name: str, made: StudyPlan) -> dict[str, int]:
    """For each of `BOUNDS`, the first position in any of its passes that sees such a distance; L + 1: none.

    Models without rotary embeddings have the first two bounds.
    """
    firsts = [_first_beyond(made.methods[name], made, length) for length in made.passes(name)]
    found = {bound: [first for at in firsts if (first := at[bound]) is not None] for bound in firsts[0]}
    return {bound: min(each, default=made.length + 1) for bound, each in found.items()}


def _first_beyond(method: Method, made: StudyPlan, length: int) -> dict[str, int | None]:
    laid, trained, config = method.plan(length), made.trained_length, made.config
    largest = reach(laid)
    beyond = [largest >= trained, largest > trained]
    if rotary := is_rotary(config.model_type):
        dims = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        base = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", BASE)
        slowest = laid.frequency_scale(np.float64(dims // 2 - 1), dims, base) if laid.frequency_scale else 1.0
        beyond.append(largest * slowest >= trained)
    firsts = [int(each.argmax()) if each.any() else None for each in beyond]
    if rotary:
        firsts.append(first_unmet(method, config, length))
    return dict(zip(BOUNDS, firsts, strict=False))
