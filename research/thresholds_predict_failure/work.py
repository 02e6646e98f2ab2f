"""What a worker does with the cells of a study: predicts lengths from hidden states, or measures one length."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.capture.bridge import bridge_to
from probe.cells.cell import Cell, Function
from probe.cells.source import Source
from research.thresholds_predict_failure.cells import (
    Trial,
    control_row,
    drifting_length,
    length_by_prompt,
    predicted_lengths,
)
from research.thresholds_predict_failure.inputs import Inputs
from research.thresholds_predict_failure.plan import StudyPlan
from research.thresholds_predict_failure.results import DRIFT
from research.thresholds_predict_failure.states import States
from research.thresholds_predict_failure.variants import REFERENCE

PREDICT, MEASURE = "predict", "measure"


def source_of(made: StudyPlan, inputs: Inputs) -> Source:
    """The model of a study."""
    known = {name: each for name, each in inputs.fingerprints.items() if name != "inputs"}
    return Source(made.request.model, made.request.load, known)


@dataclass(frozen=True)
class PredictWork:
    """A plan, what it reads, where states may lie while they are read (None: where the machine has room), the model."""

    made: StudyPlan
    inputs: Inputs
    folder: Path | None
    source: Source

    @classmethod
    def of(cls, made: StudyPlan, inputs: Inputs, folder: Path | None) -> PredictWork:
        """The work of a plan."""
        return cls(replace(made, config=None), inputs, folder, source_of(made, inputs))

    def start(self, room: int | None = None) -> Function:
        """Loads the model; a cell gives the journal row of a prompt, a config and a seed.

        Origin's states are kept from cell to cell, as long as prompt and seed are the same.
        """
        made, loaded = self.made, self.source.loaded()
        bridge = bridge_to(loaded.model, loaded.tokenizer)
        averaged = any(len(mine) > 1 for kind in self.inputs.prompts.values() for mine in kind.values())
        states = States(made.kept, self.folder or Path(tempfile.gettempdir()), averaged=averaged)
        held: list[tuple[str, int]] = []

        def give(cell: Cell) -> dict[str, Any]:
            prompt, name, seed = str(cell.key[1]), str(cell.key[2]), int(cell.key[3])
            ids = self.inputs.prompts[prompt][seed]
            if held != [(prompt, seed)]:
                held.clear()
                states.fill(bridge, ids, made.methods[REFERENCE], 0)
                held.append((prompt, seed))
            found = []
            for length in made.passes(name):
                if name != REFERENCE:
                    states.fill(bridge, [each[:length] for each in ids], made.methods[name], 1)
                found.append(_lengths(made, prompt, len(ids) > 1, states, name, length, seed))
            return {"lengths": _merged(found, made.passes(name))}

        return give


@dataclass(frozen=True)
class MeasureWork:
    """A plan, the texts that it measures on, and the model."""

    made: StudyPlan
    inputs: Inputs
    source: Source

    @classmethod
    def of(cls, made: StudyPlan, inputs: Inputs) -> MeasureWork:
        """The work of a plan."""
        return cls(replace(made, config=None), replace(inputs, prompts={}), source_of(made, inputs))

    def start(self, room: int | None = None) -> Function:
        """Loads the model; a cell gives the journal row of a task, a config, a seed and a length."""
        made, loaded = self.made, self.source.loaded()
        trials = {
            seed: Trial.of(loaded, mine, made.trained_length, made.lengths, seed)
            for seed, mine in self.inputs.texts.items()
        }

        def give(cell: Cell) -> dict[str, Any]:
            task, name, seed, length = cell.key
            return {"scores": trials[int(seed)].scores(str(task), made.methods[str(name)], int(length))}

        return give


def _lengths(
    made: StudyPlan, prompt: str, averaged: bool, states: States, name: str, length: int, seed: int
) -> dict[str, Any]:
    """By kind of prompt (single or mean) and rule, from a pass of `length` tokens: predicted lengths, qualifying dims.

    With the negative control of the pass of L tokens: Origin's for every seed, the others' for the first.
    """
    tops, plan = made.request.tops, made.methods[name].plan(length)
    controlled = length == made.length and (name == REFERENCE or seed == made.seeds.start)
    found: dict[str, Any] = {}
    for kind in (prompt, f"{prompt}-mean") if averaged else (prompt,):
        hidden = states.hidden(mean=kind != prompt, both=name != REFERENCE, length=length)
        found[kind] = {}
        for rule, crossing in made.rules.items():
            lengths, count = predicted_lengths(hidden, made.trained_length, crossing, tops)
            control = control_row(hidden, made.trained_length, crossing) if controlled else None
            found[kind][rule] = {"lengths": lengths, "qualified": count, "control": control}
        predicted, call = drifting_length(hidden, made.trained_length, made.drift, plan)
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
