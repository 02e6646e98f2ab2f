"""Do thresholds predict failure? Failure lengths predicted and measured over prompts, method configs and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from mesa.methods import Method
from mesa.models import Loaded, load
from mesa.plan import reach
from probe.capture.bridge import bridge_to
from probe.capture.memory import check_memory, peak_bytes
from probe.capture.spec import CaptureSpec, Kept
from probe.evaluation.journal import Journal
from probe.request import ModelRequest
from probe.study.cells import Trial, predicted_lengths, seeded_windows, states, study_prompts
from probe.study.results import gather
from probe.study.variants import REFERENCE, variants
from probe.tasks import score
from probe.thresholds.search import CrossingRule

PROMPTS = ("repeated", "text", "passkey")
MULTIPLES = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8)
"""Lengths measured, in trained windows."""


@dataclass(frozen=True)
class StudyRequest(ModelRequest):
    """What a study is asked for. length: L in tokens, 8 M if None. windows: prompts that an average is taken over.

    samples: passkey prompts, and text windows, a length and seed.
    """

    prompts: tuple[str, ...] = PROMPTS
    seeds: int = 5
    length: int | None = None
    tops: tuple[int, ...] = (1, 3, 10, 30, 100)
    windows: int = 8
    samples: int = 5


@dataclass(frozen=True)
class StudyPlan:
    """A request, checked against the model's config: nothing here needs the weights."""

    request: StudyRequest
    methods: dict[str, Method]
    trained_length: int
    length: int
    lengths: tuple[int, ...]
    kept: Kept
    rules: dict[str, CrossingRule]
    needed_bytes: int

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the lengths depend on, ready for JSON."""
        asked = {key: value for key, value in asdict(self.request).items() if key not in ("methods", "load")}
        return {
            **asked,
            "load": dict(self.request.load),
            "configs": {name: method.describe() for name, method in self.methods.items()},
            "trained_length": self.trained_length,
            "length": self.length,
            "lengths": self.lengths,
            "rules": {name: asdict(rule) for name, rule in self.rules.items()},
        }


def plan(request: StudyRequest) -> StudyPlan:
    """Checks the request against the model's config. Raises ValueError or FileNotFoundError, naming the value."""
    for name, values in (("prompts", request.prompts), ("tops", request.tops)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"--{name} {','.join(map(str, values))!r} is empty or repeats one")
    if unknown := set(request.prompts) - set(PROMPTS):
        raise ValueError(f"unknown prompt {min(unknown)!r}; known: {', '.join(PROMPTS)}")
    least = min(request.seeds, request.windows, request.samples, *request.tops)
    if least < 1:
        raise ValueError(f"--seeds, --windows, --samples and --tops must be at least 1, not {least}")
    config, trained = request.checked_model()
    length = request.length or MULTIPLES[-1] * trained
    if length < 2 * trained:
        raise ValueError(f"--length {length} is below twice the trained length {trained}; take e.g. {8 * trained}")
    methods = variants(request.methods, trained, config.model_type)
    if len(methods) < 3:
        raise ValueError(f"--methods {request.methods} gives {len(methods)} configs, too few to correlate; name more")
    lengths = tuple(int(trained * multiple) for multiple in MULTIPLES if trained * multiple <= length)
    kept = CaptureSpec().resolve(config, length)
    standard = CrossingRule.scaled(trained)
    rules = {"standard": standard, "wide": replace(standard, smoothing=max(1, trained // 4))}
    held = 10 * 4 * kept.values  # single and mean of two methods, and the search's copies
    return StudyPlan(request, methods, trained, length, lengths, kept, rules, peak_bytes(config, length, 4, held))


def run_study(request: StudyRequest, out: Path, *, overwrite: bool = False) -> xr.Dataset:
    """The results (see `gather`) of a study kept in the folder `out`, which takes up where it was interrupted.

    Raises ValueError for a bad request, before the weights are loaded, FileExistsError if `out` holds another study.
    """
    made = plan(request)
    check_memory(made.needed_bytes, made.length)
    path = out / "cells.jsonl"
    if overwrite:
        path.unlink(missing_ok=True)
    journal = Journal(path, made.settings)
    loaded = load(request.model, **request.load)
    documents = score.heldout_ids(loaded.tokenizer)
    tokens = {
        prompt: study_prompts(loaded, prompt, documents, made.length, request.seeds, request.windows)
        for prompt in request.prompts
    }
    _measure_all(loaded, made, documents, journal)  # before the capture: the bridge wraps the model
    _predict_all(loaded, made, tokens, journal)
    return gather(journal, made.settings, {name: _arithmetic(method, made) for name, method in made.methods.items()})


def _measure_all(loaded: Loaded, made: StudyPlan, documents: Sequence[np.ndarray], journal: Journal) -> None:
    request = made.request
    windows = seeded_windows(documents, made.lengths[-1], request.seeds, request.samples)
    cells = [(name, seed) for seed in range(request.seeds) for name in made.methods]
    missing = [cell for cell in cells if ("measured", "", *cell) not in journal.rows]
    trials: dict[int, Trial] = {}
    for name, seed in tqdm(missing, desc="measuring failure", unit="config", smoothing=0.05):
        if seed not in trials:
            trials = {seed: Trial.of(loaded, made.methods[REFERENCE], windows[seed], made.lengths, seed)}
        by_nll, by_passkey = trials[seed].failures(made.methods[name])
        journal.add(("measured", "", name, seed), {"by_nll": by_nll, "by_passkey": by_passkey})


def _predict_all(
    loaded: Loaded, made: StudyPlan, tokens: Mapping[str, list[list[list[int]]]], journal: Journal
) -> None:
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    cells = [(prompt, name, seed) for prompt in tokens for seed in range(made.request.seeds) for name in made.methods]
    missing = [cell for cell in cells if ("predicted", *cell) not in journal.rows]
    passes = sum(len(tokens[prompt][seed]) for prompt, _, seed in missing)
    references: dict[tuple[str, int], list[np.ndarray]] = {}
    with tqdm(total=passes, desc="capturing hidden states", unit="pass", smoothing=0.05) as bar:
        for prompt, name, seed in missing:
            ids = tokens[prompt][seed]
            if (prompt, seed) not in references:
                bar.total += 0 if name == REFERENCE else len(ids)
                references = {(prompt, seed): states(bridge, ids, made.methods[REFERENCE], made.kept, bar.update)}
            reference = references[prompt, seed]
            mine = None if name == REFERENCE else states(bridge, ids, made.methods[name], made.kept, bar.update)
            journal.add(("predicted", prompt, name, seed), {"lengths": _lengths(made, prompt, reference, mine)})


def _lengths(
    made: StudyPlan, prompt: str, reference: list[np.ndarray], mine: list[np.ndarray] | None
) -> dict[str, Any]:
    """Predicted lengths and qualifying dims by kind of prompt (single or mean) and rule."""
    kinds = [prompt, f"{prompt}-mean"][: len(reference)]
    found: dict[str, Any] = {}
    for kind, origin, own in zip(kinds, reference, mine or [None] * len(kinds), strict=True):
        found[kind] = {}
        for name, rule in made.rules.items():
            lengths, count = predicted_lengths(origin, own, made.kept, made.trained_length, rule, made.request.tops)
            found[kind][name] = {"lengths": lengths, "qualified": count}
    return found


def _arithmetic(method: Method, made: StudyPlan) -> list[int]:
    """For each of `BOUNDS`, the first position in a pass of L tokens that sees such a distance; L + 1: none."""
    largest = reach(method.plan(made.length))
    beyond = (np.flatnonzero(large) for large in (largest >= made.trained_length, largest > made.trained_length))
    return [int(found[0]) if len(found) else made.length + 1 for found in beyond]
