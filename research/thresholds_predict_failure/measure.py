"""Failure measured: scores by task, config, seed and length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from tqdm import tqdm

import mesa
from mesa.device import states_checked
from mesa.methods import Method
from mesa.models import load
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.tasks import PASSKEY, TAIL, tail_prompts
from research.script import Journal
from research.thresholds_predict_failure.inputs import Inputs
from research.thresholds_predict_failure.results import REFERENCE, judges
from research.thresholds_predict_failure.study import MEASURED_SEEDS, Study


def measurements_left(study: Study, journal: Journal) -> list[tuple[str, str, int, int]]:
    """The missing cells (task, config, seed, length), Origin's at M first; where that is chance, no others."""
    missing = []
    for seed, name, task in product(study.seeds, study.methods, study.measure):
        if _at_chance(study, journal, task, seed):
            continue
        first = [study.trained_length] if name == REFERENCE else []
        cells = [(task, name, seed, length) for length in dict.fromkeys([*first, *study.lengths])]
        missing += [cell for cell in cells if cell not in journal.rows]
    return missing


def measure(study: Study, inputs: Inputs, journal: Journal, over: Callable[[], bool]) -> None:
    """Journals every missing score, one a prompt, until it is `over`. Raises ValueError for a score that is NaN."""
    loaded = load(study.model, **study.load)
    for cell in tqdm(measurements_left(study, journal), desc="measuring failure", unit="cell"):
        if over():
            return
        task, name, seed, length = cell
        if not _at_chance(study, journal, task, seed):
            setting = PromptSpec(study.trained_length, study.lengths, study.samples, MEASURED_SEEDS + seed)
            journal.add(
                cell, {"scores": scores(loaded, task, study.methods[name], length, inputs.texts[seed], setting)}
            )


def scores(
    loaded: Any, task: str, method: Method, length: int, texts: Sequence[np.ndarray], setting: PromptSpec
) -> list[float]:
    """The method's scores at a length (tokens), one a prompt."""
    if task == "nll":
        prompts: Sequence[Any] = tail_prompts(texts, first_ids(loaded.tokenizer), length)
    else:
        prompts = PASSKEY.prepare(loaded.tokenizer, length, setting, len(texts))
    measured = TAIL if task == "nll" else PASSKEY
    with mesa.applied(loaded.model, method), states_checked(loaded.model):
        values = [score.value for score in measured.measure(loaded, length, prompts, setting)]
    if any(map(math.isnan, values)):
        raise ValueError(f"{task} under {method.name} at {length} tokens is not a number; give a wider --dtype")
    return values


def _at_chance(study: Study, journal: Journal, task: str, seed: int) -> bool:
    """Whether Origin's score at M is known and says that the task tells nothing of length."""
    known = (task, REFERENCE, seed, study.trained_length) in journal.rows
    return known and not judges(journal.rows, judging(study), task, seed)


def judging(study: Study) -> dict[str, Any]:
    """What judging needs of the settings."""
    vocabulary = study.config.vocab_size
    return {"trained_length": study.trained_length, "lengths": study.lengths, "vocabulary": vocabulary}
