"""An experiment: the model as each worker loads it, and tasks that follow from the journal, run until none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from mesa.errors import Refused
from mesa.fingerprints import identity, version
from mesa.methods import Method
from mesa.models import Loaded, chosen_dtype, config_of, load, origin
from probe.capture.memory import check_beside, check_weights, weights_bytes
from probe.experiment.journal import Journal, JournalRows, recorded
from probe.experiment.lock import owned, warn_finished
from probe.experiment.pool import LOCAL, Key, Pool, Runner, Task, Worker, is_over, showing_progress
from probe.files import JsonObject, check_ours
from probe.request import reference_method, say
from probe.run_folder import RunFolder


@dataclass(frozen=True)
class ModelSpec:
    """A model's name, the options of `mesa.load`, and its fingerprints on the machine that started the run."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, options: Mapping[str, object], config: Any) -> ModelSpec:
        """The model with this config, with the fingerprints of this machine."""
        return cls(name, options, identity(name, config))

    def loaded(self) -> Loaded:
        """Loads the model; MemoryError, before, where the weights do not fit."""
        check_weights(self._config, self.options)
        return load(self.name, **self.options)

    def check(self) -> None:
        """Raises Refused where this machine has another model, tokenizer or versions under the name."""
        local = identity(self.name, self._config)
        differing = [name for name, value in self.fingerprints.items() if local[name] != value]
        if differing:
            raise Refused(
                f"a worker has other {', '.join(differing)} of {self.name} than this machine: "
                f"{local[differing[0]]} in place of {self.fingerprints[differing[0]]}; give all machines the same"
            )

    @property
    def on_gpu(self) -> bool:
        """Whether the model is placed on GPUs."""
        return bool(self.options.get("device_map")) or not str(self.options.get("device") or "cpu").startswith("cpu")

    @property
    def weights_bytes(self) -> int:
        """Memory of all weights; loads none."""
        return weights_bytes(self._config, self.options)

    @property
    def _config(self) -> Any:
        options = self.options
        return config_of(
            self.name, revision=options.get("revision"), trust_remote_code=options.get("trust_remote_code")
        )


@dataclass(frozen=True)
class PlanWorker:
    """What measures the tasks of a plan: the plan without its config, and the model that it is for, as plain data."""

    plan: Any
    source: ModelSpec

    @classmethod
    def of(cls, plan: Any, **more: Any) -> Self:
        """The worker of a plan. more: the fields of a subclass."""
        request = plan.request
        return cls(replace(plan, config=None), ModelSpec.of(request.model, request.load, plan.config), **more)

    def start(self, memory_bytes: int | None = None) -> Callable[[Any], Any]:
        """As for `Worker`."""
        raise NotImplementedError


class CommandResult(NamedTuple):
    """What a command gave: its summary, the same as text, tasks that no worker could finish, and tasks left in words.

    refusal: why all of them together give no result; else empty.
    """

    summary: Any
    text: str
    failed: int
    left: str
    refusal: str = ""


class Experiment:
    """What is run of a plan. title: of its progress bar; unit: of its tasks' weights.

    folder: below --out, with the journal and all else that is `written` (patterns). apart_from: what another command
    has in a folder where it writes files of the same names. needed: values of a journal's row, one of which it holds.
    columns: the NamedTuple of the tasks' keys.
    remedy: what to do where the largest task does not fit in memory; empty: tasks find out.
    """

    plan: Any
    title = "measuring"
    unit = "cell"
    worker_class: type[PlanWorker]
    folder, journal = ".", "journal.jsonl"
    written: Sequence[str] = ()
    apart_from: Sequence[str] = ()
    needed: Sequence[str] = ()
    columns: Any = None
    remedy = ""

    @property
    def worker(self) -> Worker:
        """What measures the tasks."""
        return self.worker_class.of(self.plan)

    @property
    def settings(self) -> JsonObject:
        """Settings that must match on resume (JSON)."""
        return self.plan.settings

    @property
    def request(self) -> dict[str, list[str]] | None:
        """What its command was asked, see `resume`; None: nothing that can be asked again."""
        return recorded(self.plan.request)

    def method(self, key: Key) -> Method | None:
        """The method of a task; None: it is not of the plan."""
        return self.plan.methods.get(self.columns(*key).method)

    def check_memory(self, out: Path | None = None, *, overwrite: bool = False) -> None:
        """Raises MemoryError for what does not fit in this process, with the model that it is to load.

        Where the folder `out` lacks nothing that takes the model, none is loaded.
        """
        rows: JournalRows = {}
        if out is not None and not overwrite:
            self.check(out, overwrite=False)
            rows = self.open_journal(out).rows
        if self.remedy and self.tasks(rows):
            needed = max(task.memory_bytes for task in self.all_tasks({}))
            check_beside(needed, self.plan.config, self.plan.request.load, self.remedy)

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The tasks that can run now, in order; depends on the rows alone. Called again once all of them are done."""
        raise NotImplementedError

    def check(self, out: Path, *, overwrite: bool = False) -> None:
        """Raises FileExistsError where the folder `out` is of another run, command or settings, or not of a run.

        And for files in it that are not this experiment's and would be replaced.
        """
        inner, own = out / self.folder, (self.folder if self.folder != "." else self.journal,)
        folder, dtypes = RunFolder(out, own if overwrite else ()), partial(chosen_dtype, self.plan.config)
        folder.check(self.settings, self.plan.methods, dtypes, self.apart_from, own)
        if not overwrite and (self.folder == "." or not (inner / self.journal).exists()):
            check_ours(inner, self.written)

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """The journal of the folder `out`; overwrite: removes what a former run wrote, and nothing else.

        Raises FileExistsError for one of other settings, or with other parameters of a method.
        """
        folder = out / self.folder
        for old in [path for name in (self.journal, *self.written) for path in folder.glob(name)] if overwrite else ():
            old.unlink()
        return Journal(folder / self.journal, self.settings, self.method, self.needed, self.request, self.columns)

    def all_tasks(self, rows: JournalRows) -> Sequence[Task]:
        """All tasks as far as they are known: what is left to do, and the memory that workers need."""
        return self.tasks(rows)

    def remaining(self, rows: JournalRows) -> int | None:
        """Rows that the finished journal has besides these, as far as is known; None: the journal does not tell."""
        return len(self.tasks(rows))

    def expect(self, journal: Journal) -> None:
        """Tells the journal how many rows it will have, where that is foreseen."""
        if (remaining := self.remaining(journal.rows)) is not None:
            journal.expect(len(journal.rows) + remaining)

    def refusal(self, rows: JournalRows) -> str:
        """Why all rows together give no result; empty where they do, or are not all there."""
        return ""

    def is_needed(self, task: Task) -> bool:
        """Whether a task is still to be run, after what was recorded so far."""
        return True

    def record(self, journal: Any, task: Task, value: Any) -> None:
        """Stores what a task gave; journal: a `Journal`, None where the run has none."""
        journal.add(task.key, value)

    def skipped(self, task: Task) -> None:
        """A task was not `is_needed`."""


class MethodsPlan:
    """What plans that compare methods have in common. methods: by name, of one M."""

    methods: dict[str, Method]

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return next(iter(self.methods.values())).trained_length

    @property
    def reference(self) -> str:
        """The method that others are compared with: Origin, or the first."""
        return reference_method(list(self.methods))


def summary_of(plan: Any) -> JsonObject:
    """The fields of a `RunSummary`, of a plan."""
    return {
        "model": plan.request.model,
        "trained_length": plan.trained_length,
        "trained_length_by": plan.request.trained_length_by(plan.config),
        "as_trained": plan.request.as_trained(plan.config, plan.trained_length),
        "seed": plan.request.seed,
        "executor": plan.request.executor,
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "methods": {name: method.describe() for name, method in plan.methods.items()},
        "origin": origin_of(plan),
        "text_source": plan.text_source,
    }


def say_left_out(out: Path, rows: JournalRows, keys: Iterable[Any], options: Mapping[str, str]) -> None:
    """Says on stderr what the journal of the folder `out` has that a report of these keys leaves out.

    options: by field of the keys the option that chooses its values, where all are shown once they are named.
    """
    keys = list(keys)
    for field_name, flag in options.items():
        shown = dict.fromkeys(value for key in keys if (value := getattr(key, field_name)))
        left = dict.fromkeys(value for key in rows if (value := getattr(key, field_name)) and value not in shown)
        if left:
            named = ",".join(map(str, [*shown, *left]))
            say(f"{out} also holds {', '.join(map(str, left))}, left out of this report; {flag} {named} shows all")


def settings_of(plan: Any, longest: int, **more: Any) -> JsonObject:
    """What every row of a plan depends on in addition to its key and its method, as JSON. longest: in tokens."""
    sizes = {"trained_length": plan.trained_length, "longest": longest, **more}
    return {**plan.request.identity, **sizes, **identity(plan.request.model, plan.config)}


def origin_of(plan: Any) -> dict[str, str]:
    """Revision, quantization and a note on the tokenizer of a plan's model, see `mesa.models.origin`."""
    return origin(plan.request.model, plan.config, plan.request.load.get("revision"))


@contextmanager
def opened(
    experiment: Experiment, out: Path, *, overwrite: bool = False, runner: Runner = LOCAL
) -> Iterator[tuple[Journal, Callable[[], Pool]]]:
    """The journal of the folder `out`, which is locked, and what starts the workers, at its first call.

    With `overwrite` the workers are ready before anything is removed. Raises what `owned` raises, and FileExistsError
    for the folder of another run.
    """
    rows: JournalRows = {}
    with owned(out), ExitStack() as stack:

        @cache
        def pool() -> Pool:
            return stack.enter_context(runner.pool(experiment.worker, experiment.all_tasks(rows)))

        experiment.check(out, overwrite=overwrite)
        if overwrite:
            pool()
        journal = experiment.open_journal(out, overwrite=overwrite)
        rows = journal.rows
        if begun := experiment.tasks(rows):
            experiment.expect(journal)
        elif not experiment.refusal(rows):
            warn_finished(out)
        yield journal, pool
        if begun:  # also where none of them was started in time
            journal.note()


def run_tasks(
    experiment: Experiment,
    journal: Journal | None,
    pool: Callable[[], Pool],
    *,
    until: float | None = None,
) -> list[Task]:
    """Runs the experiment's tasks, round after round; returns those that no worker could finish.

    Results are recorded in the tasks' order. No task but the first begins after the `deadline` `until`. pool: starts
    the workers, if there is a task. journal: None where `record` writes elsewhere.
    """
    rows: JournalRows = {} if journal is None else journal.rows
    stop, attempted, lost = partial(is_over, until), set[Task](), list[Task]()
    tasks = list(experiment.tasks(rows))
    if not tasks:
        return lost
    workers = pool()  # what is wrong with the model is said before a bar begins
    with showing_progress(experiment.title, experiment.unit, verbose=workers.verbose) as progress:
        if journal is not None and experiment.unit == "token":
            tokens, longest = sum(task.weight for task in tasks), max(task.length for task in tasks)
            text = f"{len(tasks)} task{'s' * (len(tasks) > 1)}, {tokens:,} tokens, at most {longest} in one"
            progress.write(f"{text}; --estimate gives the time; after an interrupt the same command continues")
        while tasks:
            attempted |= set(tasks)
            if journal is not None:
                experiment.expect(journal)
            progress.expect(tasks)
            for task, outcome in workers.results(tasks, progress, experiment.is_needed, stop):
                if outcome is None:
                    experiment.skipped(task)
                elif outcome.lost:
                    lost.append(task)
                    progress.write(f"failed: {task}: {outcome.lost}")
                else:
                    experiment.record(journal, task, outcome.value)
                del outcome  # it may be large
            tasks = [] if stop() else [task for task in experiment.tasks(rows) if task not in attempted]
    return lost


def run(
    experiment: Experiment,
    out: Path,
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` after `run_tasks`, and the tasks that were lost.

    Raises MemoryError before any pass for what does not fit, and what `opened` and `Runner.check` raise.
    """
    runner.check(experiment.plan.request.load)
    if runner.is_local:
        experiment.check_memory(out, overwrite=overwrite)
    with opened(experiment, out, overwrite=overwrite, runner=runner) as (journal, pool):
        return journal, run_tasks(experiment, journal, pool, until=until)
