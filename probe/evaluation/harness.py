"""lm-evaluation-harness on a model with a method attached: its tasks, one by one into a journal."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mesa
from mesa.fingerprints import IDENTITY
from mesa.finite import states_checked
from mesa.models import Loaded, bytes_a_number, tokenizer_of
from probe.capture.memory import prompt_bytes
from probe.evaluation.plan import EvalPlan
from probe.experiment.journal import Journal, Rows
from probe.experiment.model_spec import ModelSpec
from probe.experiment.run import Experiment, run
from probe.experiment.runner import LOCAL, Runner
from probe.experiment.task import Measure, Task
from probe.files import write_json

JOURNAL, RESULTS = "harness.jsonl", "harness.json"


def run_harness(
    plan: EvalPlan,
    tasks: Sequence[str],
    out: Path,
    *,
    include_path: Path | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    runner: Runner = LOCAL,
) -> dict[str, Any]:
    """Runs what is missing in the folder `out`, task by task; writes and returns harness.json.

    lm-eval cuts prompts to the plan's longest length, on the left; tasks that build their prompts take all its lengths.
    A batch is one prompt, because methods whose structure follows the length would take padding for prompt. What no
    worker of the `runner` could finish is in `failed`. Raises what `check_tasks` and `probe.evaluation.run.run` raise.
    """
    runner.check(plan.request.load)
    with ExitStack() as stack:
        experiment = Harness(plan, tasks, include_path, limit, stack)
        journal, lost = run(experiment, out, overwrite=overwrite, runner=runner)
    results: dict[str, dict[str, Any]] = {name: {} for name in plan.methods}
    for key in experiment.keys:
        if key in journal.rows:
            results[key[1]].update(journal.rows[key]["results"])
    summary = {
        "model": plan.request.model,
        "max_length": max(plan.setting.lengths),
        "limit": limit,
        "failed": [task.key for task in lost],
        "results": results,
    }
    write_json(out / RESULTS, summary)
    return summary


def open_harness(plan: EvalPlan, out: Path, *, include_path: Path | None, limit: int | None) -> Journal:
    """The folder's journal. Raises FileExistsError for other settings, or other parameters of a method."""
    settings = {name: plan.settings[name] for name in ("model", *IDENTITY, "trained_length", "executor")}
    settings["lengths"] = plan.setting.lengths
    settings |= {key: value for key, value in plan.request.load.items() if value is not None}
    settings |= {"include_path": None if include_path is None else str(include_path), "limit": limit}
    return Journal(out / JOURNAL, settings, plan.methods)


def remove_results(out: Path) -> None:
    """Removes what `run_harness` writes into the folder `out`."""
    for name in (JOURNAL, RESULTS):
        (out / name).unlink(missing_ok=True)


class Harness(Experiment):
    """Every (lm-eval task, method, longest length). stack: in which the tasks, once checked, stay readable."""

    title = "running lm-eval"

    def __init__(
        self, plan: EvalPlan, names: Sequence[str], include_path: Path | None, limit: int | None, stack: ExitStack
    ) -> None:
        self.plan, self.names, self.include_path, self.limit, self._stack = plan, names, include_path, limit, stack
        longest = max(plan.setting.lengths)
        self.keys = [(name, method, longest) for method in plan.methods for name in names]

    @property
    def worker(self) -> HarnessWorker:
        """What measures the tasks, which are checked first."""
        request = self.plan.request
        manager = self._stack.enter_context(checked_tasks(self.plan, self.names, self.include_path))
        source = ModelSpec.of(request.model, request.load, self.plan.config)
        return HarnessWorker(replace(self.plan, config=None), self.include_path, self.limit, source, manager)

    def open_journal(self, out: Path, *, overwrite: bool) -> Journal:
        """The folder's journal."""
        if overwrite:
            remove_results(out)
        return open_harness(self.plan, out, include_path=self.include_path, limit=self.limit)

    def tasks(self, rows: Rows) -> Sequence[Task]:
        """Those without a row, with the memory of one prompt and the logits of all its tokens."""
        config, tokens = self.plan.config, max(self.plan.setting.lengths)
        number = bytes_a_number(config, self.plan.request.load)
        size = prompt_bytes(config, tokens, number) + tokens * config.vocab_size * (number + 4)  # and in float32
        return [Task("harness", key, size, size) for key in self.keys if key not in rows]


@dataclass(frozen=True)
class HarnessWorker:
    """A plan, the folder of further tasks, documents a task, and the model.

    manager: lm-eval's, in the process that checked the tasks; other workers make their own.
    """

    plan: EvalPlan
    include_path: Path | None
    limit: int | None
    source: ModelSpec
    manager: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the manager, which stays in its process."""
        return {**self.__dict__, "manager": None}

    def start(self, memory_bytes: int | None = None) -> Measure:
        """Loads the model; a task gives its journal row."""
        loaded = self.source.loaded()

        def row(task: Task) -> dict[str, Any]:
            name, method, longest = str(task.key[0]), str(task.key[1]), int(task.key[2])
            with ExitStack() as stack:
                manager = self.manager or stack.enter_context(checked_tasks(self.plan, [name], self.include_path))
                return {
                    "config": self.plan.methods[method].describe(),
                    "results": self._scores(loaded, manager, name, method, longest),
                }

        return row

    def _scores(self, loaded: Loaded, manager: Any, name: str, method: str, longest: int) -> dict[str, dict[str, Any]]:
        """lm-eval's numbers, by part of the task."""
        model, executor = loaded.model, self.plan.request.executor
        models = importlib.import_module("lm_eval.models.huggingface")
        with mesa.applied(model, self.plan.methods[method], executor=executor), states_checked(model):
            wrapped = models.HFLM(
                pretrained=model, tokenizer=loaded.tokenizer, batch_size=1, max_length=longest, backend="causal"
            )
            evaluated = harness().simple_evaluate(
                model=wrapped,
                tasks=[name],
                task_manager=manager,
                limit=self.limit,
                log_samples=False,
                verbosity="ERROR",
            )
        return {
            part: {key: value for key, value in scores.items() if isinstance(value, int | float)}
            for part, scores in evaluated["results"].items()
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
def checked_tasks(plan: EvalPlan, tasks: Sequence[str], include_path: Path | None) -> Iterator[Any]:
    """`check_tasks` for a plan's tokenizer and lengths; the manager serves inside the context."""
    with tempfile.TemporaryDirectory() as folder:  # lm-eval would load a tokenizer by name, with remote code
        tokenizer_of(plan.request.model, **plan.request.source).save_pretrained(folder)
        yield check_tasks(tasks, include_path, {"tokenizer": folder, "max_seq_lengths": list(plan.setting.lengths)})
