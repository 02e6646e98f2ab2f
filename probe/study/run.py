"""Do thresholds predict failure? Failure lengths predicted and measured over prompts, method configs and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from mesa.methods import Method
from mesa.models import Loaded, load
from mesa.plan import reach, restarts
from probe.capture.bridge import bridge_to
from probe.capture.memory import check_memory
from probe.evaluation.clock import is_over
from probe.evaluation.journal import Journal
from probe.ownership import owned
from probe.study.cells import Trial, drifting_length, predicted_lengths
from probe.study.inputs import Inputs, prepare
from probe.study.plan import StudyPlan, StudyRequest, plan
from probe.study.results import DRIFT, gather, progress
from probe.study.states import States
from probe.study.variants import REFERENCE

JOURNAL = "cells.jsonl"


def run_study(
    request: StudyRequest, out: Path, *, overwrite: bool = False, until: float | None = None
) -> tuple[xr.Dataset | None, str]:
    """The results (see `gather`) of a study kept in the folder `out`, which takes up where it was interrupted.

    Lengths are predicted first, one pass or a few a config; then failure is measured. After the `clock.deadline`
    `until` nothing is begun; if something is left then, there are no results, but words that say how much. Raises
    ValueError for a bad request, before the weights are loaded, FileExistsError if `out` holds another study;
    `overwrite` removes that, once the weights of the new one are loaded. Also raises what `owned` raises.
    """
    made = plan(request)
    check_memory(made.needed_bytes, made.length)
    inputs = prepare(made)
    with owned(out):
        return _run(made, inputs, out, overwrite, until)


def _run(
    made: StudyPlan, inputs: Inputs, out: Path, overwrite: bool, until: float | None
) -> tuple[xr.Dataset | None, str]:
    request = made.request
    settings, path, loaded = made.settings(inputs.fingerprints), out / JOURNAL, None
    if overwrite:
        loaded = load(request.model, **request.load)
        path.unlink(missing_ok=True)
    journal = Journal(path, settings, force=request.force)
    _predict_all(made, inputs, journal, loaded, until)
    loaded = None  # the capture has wrapped it, so measuring takes a model of its own
    _measure_all(made, inputs, journal, until)
    predictions, measurements = _left_to_predict(made, journal), _left_to_measure(made, journal)
    if predictions or measurements:
        return None, f"{len(predictions)} predictions and {len(measurements)} measured failures are left"
    return gather(journal, settings, {name: _arithmetic(method, made) for name, method in made.methods.items()}), ""


def _left_to_predict(made: StudyPlan, journal: Journal) -> list[tuple[str, int, str]]:
    """Prompt, seed and config of the missing predictions."""
    seeds = range(made.request.seeds)
    cells = [(prompt, seed, name) for prompt in made.request.prompts for seed in seeds for name in made.methods]
    return [
        (prompt, seed, name) for prompt, seed, name in cells if ("predicted", prompt, name, seed) not in journal.rows
    ]


def _left_to_measure(made: StudyPlan, journal: Journal) -> list[tuple[int, str, str]]:
    """Seed, config and task of the failures that are not known yet, Origin's first."""
    seeds, settings = range(made.request.seeds), _measuring(made)
    cells = [(seed, name, task) for seed in seeds for name in made.methods for task in made.request.measure]
    return [(seed, name, task) for seed, name, task in cells if progress(journal, settings, task, name, seed)[-1]]


def _measuring(made: StudyPlan) -> dict[str, Any]:
    return {"trained_length": made.trained_length, "lengths": made.lengths}


def _measure_all(made: StudyPlan, inputs: Inputs, journal: Journal, until: float | None) -> None:
    missing = [] if is_over(until) else _left_to_measure(made, journal)
    if not missing:
        return
    loaded, trained = load(made.request.model, **made.request.load), made.trained_length
    trials = [Trial.of(loaded, mine, trained, made.lengths, seed) for seed, mine in enumerate(inputs.texts)]
    with tqdm(total=len(missing), desc="measuring failure", unit="failure", smoothing=0.05) as bar:
        for seed, name, task in missing:
            while length := progress(journal, _measuring(made), task, name, seed)[-1]:
                if is_over(until):
                    return
                bar.set_postfix_str(f"{task}, {name}, {length}")
                journal.add(
                    (task, name, seed, length), {"scores": trials[seed].scores(task, made.methods[name], length)}
                )
            bar.update()


def _predict_all(made: StudyPlan, inputs: Inputs, journal: Journal, loaded: Loaded | None, until: float | None) -> None:
    missing = [] if is_over(until) else _left_to_predict(made, journal)
    if not missing:
        return
    loaded = loaded or load(made.request.model, **made.request.load)
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    averaged = any(len(mine) > 1 for kind in inputs.prompts.values() for mine in kind)
    states, held = States(made.kept, journal.path.parent, averaged=averaged), None
    passes = sum(len(inputs.prompts[prompt][seed]) for prompt, seed, _ in missing)
    with tqdm(total=passes, desc="capturing hidden states", unit="pass", smoothing=0.05) as bar:
        for prompt, seed, name in missing:
            if is_over(until):
                return
            ids = inputs.prompts[prompt][seed]
            if held != (prompt, seed):
                bar.total += 0 if name == REFERENCE else len(ids)
                states.fill(bridge, ids, made.methods[REFERENCE], 0, bar.update)
                held = prompt, seed
            if name != REFERENCE:
                states.fill(bridge, ids, made.methods[name], 1, bar.update)
            lengths = _lengths(made, prompt, len(ids) > 1, states, name)
            journal.add(("predicted", prompt, name, seed), {"lengths": lengths})


def _lengths(made: StudyPlan, prompt: str, averaged: bool, states: States, name: str) -> dict[str, Any]:
    """Predicted lengths and qualifying dims by kind of prompt (single or mean) and rule."""
    tops, begin_anew = made.request.tops, restarts(made.methods[name].plan(made.length))
    found: dict[str, Any] = {}
    for kind in (prompt, f"{prompt}-mean") if averaged else (prompt,):
        hidden = states.hidden(mean=kind != prompt, both=name != REFERENCE)
        found[kind] = {}
        for rule, crossing in made.rules.items():
            lengths, count = predicted_lengths(hidden, made.trained_length, crossing, tops)
            found[kind][rule] = {"lengths": lengths, "qualified": count}
        length, call = drifting_length(hidden, made.trained_length, made.drift, begin_anew)
        found[kind][DRIFT] = {"lengths": [length] * len(tops), "qualified": None, "call": call}
    return found


def _arithmetic(method: Method, made: StudyPlan) -> list[int]:
    """For each of `BOUNDS`, the first position in a pass of L tokens that sees such a distance; L + 1: none."""
    laid, trained = method.plan(made.length), made.trained_length
    largest, heads = reach(laid), made.config.num_attention_heads
    dims = getattr(made.config, "head_dim", None) or made.config.hidden_size // heads
    slowest = laid.frequency_scale(dims // 2 - 1, dims) if laid.frequency_scale else 1.0
    beyond = [np.flatnonzero(each) for each in (largest >= trained, largest > trained, largest * slowest >= trained)]
    return [int(found[0]) if len(found) else made.length + 1 for found in beyond]
