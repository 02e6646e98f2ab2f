"""What a worker does with the cells of a probe run: measures a task, or captures a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.capture.bridge import bridge_to
from probe.capture.capture import capture
from probe.cells.cell import Cell, Function
from probe.cells.source import Source
from probe.evaluation.plan import EvalPlan
from probe.evaluation.work import measure
from probe.inputs import check_values
from probe.plan import ProbePlan

CAPTURE = "capture"
"""The kind of cells that give hidden states; the others measure."""


def capture_cells(made: ProbePlan, passes: Sequence[tuple[str, str]]) -> list[Cell]:
    """Cells for a runner, of passes by method and prompt."""
    given = 4 * made.kept.values * len(made.request.spec.hooks)
    return [Cell(CAPTURE, each, made.pass_bytes + given, gives=given) for each in passes]


@dataclass(frozen=True)
class ProbeWork:
    """The plans of a run and of its measuring, the prompts' tokens, and the model."""

    made: ProbePlan
    measured: EvalPlan
    tokens: Mapping[str, list[int]]
    source: Source

    @classmethod
    def of(cls, made: ProbePlan, measured: EvalPlan, tokens: Mapping[str, list[int]]) -> ProbeWork:
        """The work of a plan."""
        source = Source.of(made.request.model, made.request.load, made.config)
        return cls(replace(made, config=None), replace(measured, config=None), dict(tokens), source)

    def start(self, room: int | None = None) -> Function:
        """Loads the model and tries its values; a cell gives its journal row, or hidden states by hook.

        Once one was captured none can be measured: the capture wraps the model. Raises ValueError for values that the
        store cannot hold.
        """
        loaded = self.source.loaded()
        check_values(loaded, self.made, next(iter(self.tokens.values())))
        measuring, bridges = measure(self.measured, loaded, room), []

        def give(cell: Cell) -> Any:
            if cell.kind != CAPTURE:
                return measuring(cell)
            if not bridges:
                bridges.append(bridge_to(loaded.model, loaded.tokenizer))
            return self._states(bridges[0], *map(str, cell.key))

        return give

    def _states(self, bridge: Any, method: str, prompt: str) -> dict[str, np.ndarray]:
        asked, kept = self.made.request, self.made.kept
        ids = self.tokens[prompt]
        return capture(bridge, ids, self.made.methods[method], asked.spec.hooks, kept, executor=asked.executor)
