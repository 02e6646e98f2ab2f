"""What a worker does with a cell of lm-eval: one of its tasks under one method."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mesa
from mesa.finite import states_checked
from mesa.models import Loaded, bytes_a_number, tokenizer_of
from probe.capture.memory import prompt_bytes
from probe.cells.cell import Cell, Function
from probe.cells.source import Source
from probe.evaluation.plan import EvalPlan
from probe.evaluation.work import EvalCell

HARNESS = "harness"
"""The kind of these cells."""


def harness_cells(made: EvalPlan, wanted: Sequence[EvalCell]) -> list[Cell]:
    """Cells for a runner, with the memory that one prompt of the longest length takes with the logits of all tokens."""
    each, config = bytes_a_number(made.config, made.request.load), made.config
    return [
        Cell(HARNESS, (task, name, longest), needs := _bytes(config, longest, each), needs)
        for task, name, longest in wanted
    ]


def _bytes(config: Any, tokens: int, each: int) -> int:
    return prompt_bytes(config, tokens, each) + tokens * config.vocab_size * (each + 4)  # and in float32


@dataclass(frozen=True)
class HarnessWork:
    """A plan, where tasks of one's own lie, documents a task, and the model.

    manager: lm-eval's, where it is at hand; other workers make their own.
    """

    made: EvalPlan
    include_path: Path | None
    limit: int | None
    source: Source
    manager: Any = None

    @classmethod
    def of(cls, made: EvalPlan, include_path: Path | None, limit: int | None, manager: Any) -> HarnessWork:
        """The work of a plan."""
        asked = made.request
        source = Source.of(asked.model, asked.load, made.config)
        return cls(replace(made, config=None), include_path, limit, source, manager)

    def __getstate__(self) -> dict[str, Any]:
        """Without the manager, which stays where it was made."""
        return {**self.__dict__, "manager": None}

    def start(self, room: int | None = None) -> Function:
        """Loads the model; a cell gives its journal row."""
        loaded = self.source.loaded()

        def row(cell: Cell) -> dict[str, Any]:
            task, name, longest = str(cell.key[0]), str(cell.key[1]), int(cell.key[2])
            with contextlib.ExitStack() as stack:
                manager = self.manager or stack.enter_context(checked_tasks(self.made, [task], self.include_path))
                return {
                    "config": self.made.methods[name].describe(),
                    "results": self._scores(loaded, manager, task, name, longest),
                }

        return row

    def _scores(self, loaded: Loaded, manager: Any, task: str, name: str, longest: int) -> dict[str, dict[str, Any]]:
        """lm-eval's numbers, by part of the task."""
        model, executor = loaded.model, self.made.request.executor
        models = importlib.import_module("lm_eval.models.huggingface")
        with mesa.applied(model, self.made.methods[name], executor=executor), states_checked(model):
            wrapped = models.HFLM(
                pretrained=model,
                tokenizer=loaded.tokenizer,
                batch_size=1,
                max_length=longest,
                backend="causal",
            )
            found = harness().simple_evaluate(
                model=wrapped,
                tasks=[task],
                task_manager=manager,
                limit=self.limit,
                log_samples=False,
                verbosity="ERROR",
            )
        return {
            part: {key: value for key, value in scores.items() if isinstance(value, int | float)}
            for part, scores in found["results"].items()
        }


def harness() -> Any:
    """The module lm_eval; ValueError says how to get it where it is missing."""
    try:
        return importlib.import_module("lm_eval")
    except ImportError as error:
        raise ValueError(f"--harness needs lm-evaluation-harness ({error}); pip install 'mesa-lens[eval]'") from error


def check_tasks(tasks: Sequence[str], include_path: Path | None, metadata: Mapping[str, Any]) -> Any:
    """lm-eval's task manager, with which all `tasks` can be built; they fetch or make their data here.

    Raises ValueError for a task that lm-eval does not know or that lacks a package, FileNotFoundError without the
    folder. `metadata` is for tasks that make their own prompts, as RULER's.
    """
    harness()
    if include_path is not None and not include_path.is_dir():
        raise FileNotFoundError(f"--include-path {include_path} is not a folder")
    manager = importlib.import_module("lm_eval.tasks").TaskManager(
        include_path=None if include_path is None else str(include_path), metadata=dict(metadata)
    )
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(
            f"lm-eval knows no task {unknown[0]!r}; `lm-eval ls tasks` lists them, --include-path adds yours"
        )
    for task in tasks:
        try:
            manager.load([task])
        except ImportError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"lm-eval's {task} lacks a package: {reason}; pip install 'mesa-lens[eval]'") from error
    return manager


@contextlib.contextmanager
def checked_tasks(made: EvalPlan, tasks: Sequence[str], include_path: Path | None) -> Iterator[Any]:
    """`check_tasks` for a plan's tokenizer and lengths; the manager serves inside the context."""
    with tempfile.TemporaryDirectory() as folder:  # lm-eval would load a tokenizer by name, with remote code
        tokenizer_of(made.request.model, **made.request.source).save_pretrained(folder)
        yield check_tasks(tasks, include_path, {"tokenizer": folder, "max_seq_lengths": list(made.setting.lengths)})
