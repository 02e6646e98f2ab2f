"""What a worker does with a cell of an anatomy: looks at one prompt, or reads the states of one text that slides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from probe.capture.bridge import bridge_to
from probe.experiment.model_spec import ModelSpec
from probe.experiment.task import Measure, Task
from probe.mechanism.anatomy.collect import states_bytes, states_of
from probe.mechanism.anatomy.looks import look
from probe.mechanism.anatomy.request import AnatomyPlan, pass_bytes
from probe.mechanism.anatomy.request import Cell as Key

LOOK, VECTORS = "look", "vectors"
"""The kinds of these cells."""


def look_cells(made: AnatomyPlan, wanted: Iterable[Key]) -> list[Task]:
    """Cells for a runner, of prompts."""
    return [Task(LOOK, key, pass_bytes(made, key[0], key[2]), weight=key[2]) for key in wanted]


def text_cells(made: AnatomyPlan, done: Mapping[str, int]) -> list[Task]:
    """Cells for a runner, of the texts that each method's moments lack; done: how many they have."""
    if VECTORS not in made.parts:
        return []
    length, gives = made.lengths[-1], states_bytes(made.kept)
    needs = pass_bytes(made, VECTORS, length) + gives
    return [
        Task(VECTORS, (VECTORS, name, length, number), needs, result_bytes=gives, weight=length)
        for name in made.methods
        for number in range(done[name], len(made.sliding))
    ]


@dataclass(frozen=True)
class AnatomyWork:
    """A plan, and the model that it is for."""

    made: AnatomyPlan
    source: ModelSpec

    @classmethod
    def of(cls, made: AnatomyPlan) -> AnatomyWork:
        """The work of a plan."""
        asked = made.request
        return cls(replace(made, config=None), ModelSpec.of(asked.model, asked.load, made.config))

    def start(self, memory_bytes: int | None = None) -> Measure:
        """Loads the model; a cell gives its journal row or, of a text that slides, its states by layer."""
        loaded = self.source.loaded()
        bridge, made = bridge_to(loaded.model, loaded.tokenizer), replace(self.made, config=loaded.model.config)

        def give(cell: Task) -> Any:
            part, name, length, number = cell.key
            with torch.no_grad():
                if cell.kind == LOOK:
                    return look(bridge, made, (str(part), str(name), int(length), int(number)))
                ids, hook = made.sliding[int(number)].tolist(), made.spec.hooks[0]
                executor = made.request.executor
                return states_of(bridge, ids, made.methods[str(name)], made.kept, hook, executor=executor)

        return give
