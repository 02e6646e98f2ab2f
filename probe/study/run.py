"""Do thresholds predict failure? Failure lengths predicted and measured over prompts, method configs and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from mesa.methods import Method
from mesa.models import Loaded, load
from mesa.plan import BASE, reach, restarts
from mesa.support import is_rotary
from probe.capture.bridge import bridge_to
from probe.capture.memory import check_memory
from probe.evaluation.clock import is_over
from probe.evaluation.journal import Journal
from probe.mechanism.anatomy.frequencies import first_unmet
from probe.ownership import owned
from probe.study.cells import Trial, control_row, drifting_length, length_by_prompt, predicted_lengths
from probe.study.inputs import Inputs, prepare
from probe.study.plan import StudyPlan, StudyRequest, plan
from probe.study.results import BOUNDS, DRIFT, gather, progress
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
    return gather(
        journal, {**settings, **_measuring(made)}, {name: _arithmetic(name, made) for name in made.methods}
    ), ""


def _left_to_predict(made: StudyPlan, journal: Journal) -> list[tuple[str, int, str]]:
    """Prompt, seed and config of the missing predictions."""
    seeds = made.seeds
    cells = [(prompt, seed, name) for prompt in made.request.prompts for seed in seeds for name in made.methods]
    return [
        (prompt, seed, name) for prompt, seed, name in cells if ("predicted", prompt, name, seed) not in journal.rows
    ]


def _left_to_measure(made: StudyPlan, journal: Journal) -> list[tuple[int, str, str]]:
    """Seed, config and task of the failures that are not known yet, Origin's first."""
    seeds, settings = made.seeds, _measuring(made)
    cells = [(seed, name, task) for seed in seeds for name in made.methods for task in made.request.measure]
    return [(seed, name, task) for seed, name, task in cells if progress(journal, settings, task, name, seed)[-1]]


def _measuring(made: StudyPlan) -> dict[str, Any]:
    return {
        "trained_length": made.trained_length,
        "lengths": made.lengths,
        "vocabulary": made.config.vocab_size,
    }


def _measure_all(made: StudyPlan, inputs: Inputs, journal: Journal, until: float | None) -> None:
    missing = [] if is_over(until) else _left_to_measure(made, journal)
    if not missing:
        return
    loaded, trained = load(made.request.model, **made.request.load), made.trained_length
    trials = {seed: Trial.of(loaded, mine, trained, made.lengths, seed) for seed, mine in inputs.texts.items()}
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
    averaged = any(len(mine) > 1 for kind in inputs.prompts.values() for mine in kind.values())
    states, held = States(made.kept, journal.path.parent, averaged=averaged), None
    passes = sum(len(inputs.prompts[prompt][seed]) * len(made.passes(name)) for prompt, seed, name in missing)
    with tqdm(total=passes, desc="capturing hidden states", unit="pass", smoothing=0.05) as bar:
        for prompt, seed, name in missing:
            if is_over(until):
                return
            ids = inputs.prompts[prompt][seed]
            if held != (prompt, seed):
                bar.total += 0 if name == REFERENCE else len(ids)
                states.fill(bridge, ids, made.methods[REFERENCE], 0, bar.update)
                held = prompt, seed
            found = []
            for length in made.passes(name):
                if name != REFERENCE:
                    shorter = [each[:length] for each in ids]
                    states.fill(bridge, shorter, made.methods[name], 1, bar.update)
                found.append(_lengths(made, prompt, len(ids) > 1, states, name, length, seed))
            journal.add(("predicted", prompt, name, seed), {"lengths": _merged(found, made.passes(name))})


def _lengths(
    made: StudyPlan, prompt: str, averaged: bool, states: States, name: str, length: int, seed: int
) -> dict[str, Any]:
    """By kind of prompt (single or mean) and rule, from a pass of `length` tokens: predicted lengths, qualifying dims.

    With the negative control of the pass of L tokens: Origin's for every seed, the others' for the first.
    """
    tops, begin_anew = made.request.tops, restarts(made.methods[name].plan(length))
    controlled = length == made.length and (name == REFERENCE or seed == made.seeds.start)
    found: dict[str, Any] = {}
    for kind in (prompt, f"{prompt}-mean") if averaged else (prompt,):
        hidden = states.hidden(mean=kind != prompt, both=name != REFERENCE, length=length)
        found[kind] = {}
        for rule, crossing in made.rules.items():
            lengths, count = predicted_lengths(hidden, made.trained_length, crossing, tops)
            control = control_row(hidden, made.trained_length, crossing) if controlled else None
            found[kind][rule] = {"lengths": lengths, "qualified": count, "control": control}
        predicted, call = drifting_length(hidden, made.trained_length, made.drift, begin_anew)
        found[kind][DRIFT] = {"lengths": [predicted] * len(tops), "qualified": None, "call": call}
    return found


def _merged(found: Sequence[dict[str, Any]], passes: Sequence[int]) -> dict[str, Any]:
    """What is predicted of the longest pass or, of several, by prompt length, with each one's lengths beside."""
    if len(found) == 1:
        return found[0]
    merged = found[-1]
    for kind, rules in merged.items():
        for rule, row in rules.items():
            each = [one[kind][rule]["lengths"] for one in found]
            row["by_pass"] = dict(zip(map(str, passes), each, strict=True))
            by_top = zip(*each, strict=True)
            row["lengths"] = [
                length_by_prompt(dict(zip(passes, lengths, strict=True)), passes[-1] + 1) for lengths in by_top
            ]
    return merged


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
