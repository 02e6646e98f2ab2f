"""An evaluation's plan, checked before any weights are loaded, and the worker that measures its tasks."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import TypeAdapter, ValidationError

import mesa
from mesa import plugins
from mesa.device import free_bytes, states_checked
from mesa.errors import Refused, is_out_of_memory
from mesa.fingerprints import ids_fingerprint
from mesa.methods import Method, meant
from mesa.models import Loaded, bytes_a_number, tokenizer_of
from mesa.progress import Bar
from probe.capture.memory import check_prompts, prompt_bytes, scores_bytes
from probe.eval_tasks.base import EvalKey, EvalTask, PromptSpec, Score
from probe.eval_tasks.ruler import RULER
from probe.eval_tasks.score import documents_of, logits_bytes
from probe.eval_tasks.sources import TextSource
from probe.eval_tasks.tasks import LIKELIHOOD, RETRIEVAL, TAIL, Latency, devices, watched_peak
from probe.experiment.journal import Journal, JournalRows, bad_row
from probe.experiment.pool import MeasureTask, Task
from probe.experiment.run import Experiment, PlanWorker, settings_of
from probe.files import JsonObject
from probe.request import EvalRequest, say, warn_skipped

TASKS: dict[str, EvalTask] = plugins.registered(
    plugins.TASKS, {task.name: task for task in (*RETRIEVAL, *RULER, *LIKELIHOOD, Latency())}
)
"""Every task by its name: ours, then those of installed packages."""
PROMPTS = 2
"""Version of how prompts are drawn; raised with every change that makes other prompts of the same settings."""
SCORED_PROMPTS = 3
"""Version of prompts and how answers are scored."""


@dataclass(frozen=True)
class EvalPlan:
    """A request, checked: methods, shared setting, and the cells (task, method, length).

    sizes: by task, how large it is, where that depends on the trained window. text_source: of the setting's documents.
    """

    request: EvalRequest
    methods: dict[str, Method]
    setting: PromptSpec
    config: Any
    sizes: Mapping[str, str] = field(default_factory=dict)
    text_source: TextSource | None = None

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return self.setting.trained_length

    @property
    def cells(self) -> list[EvalKey]:
        """Every cell, short lengths first: an hour of a long run gives all methods at the first lengths."""
        cells = [
            EvalKey(task, method, length)
            for task in self.request.tasks
            for method in self.methods
            for length in TASKS[task].passes(self.setting)
        ]
        return sorted(cells, key=lambda cell: cell.length)

    @property
    def settings(self) -> JsonObject:
        """Everything that scores depend on, as JSON. Tasks, methods and shorter lengths may be added to a run."""
        documents = ids_fingerprint(self.setting.documents)
        return settings_of(self, max(self.setting.lengths), prompts=SCORED_PROMPTS, documents=documents)


def check_read(request: EvalRequest) -> None:
    """Raises Refused for a depth that no task reads; a text that none reads yet is told."""
    read_by = {"depth": "reads_depth", "text": "reads_documents"}
    for name, reads in read_by.items():
        value, readers = getattr(request, name), [key for key, task in TASKS.items() if getattr(task, reads)]
        if value == getattr(EvalRequest, name) or not request.tasks or {*readers} & {*request.tasks}:
            continue
        reason = f"--{name.replace('_', '-')} {value} is read by {', '.join(readers)} alone, which --task does not name"
        if name != "text":
            raise Refused(reason)
        say(f"{reason}; it is kept for tasks that are added to this run")


def plan_evaluation(request: EvalRequest) -> EvalPlan:
    """A request checked with the model's config and tokenizer, one sample of each task and length built.

    Args:
        request: What to evaluate. Of methods 'all' those that the model cannot have are left out, and named on stderr.

    Returns:
        An `EvalPlan`, for `run_evaluation`.

    Raises:
        Refused: A value is wrong; the message names it.
        FileNotFoundError: A file or model is not there.

    Examples:
        >>> plan = probe.plan_evaluation(probe.EvalRequest(tasks=("nll",), methods="origin,crop", samples=2))
        >>> list(plan.methods), plan.setting.lengths
        (['origin', 'crop'], (256, 512, 1024, 2048))
    """
    unknown = [task for task in request.tasks if task not in TASKS]
    if unknown:
        raise Refused(f"unknown task {unknown[0]!r}; known: {', '.join(TASKS)}{meant(unknown[0], TASKS)}")
    check_read(request)
    config, trained = request.checked_model()
    methods = request.checked_methods(config, trained)
    stated = (trained * multiple for multiple in (1, 2, 4, 8)) if request.lengths is None else request.lengths
    lengths = tuple(sorted({*stated}))
    if request.tasks and request.lengths is not None:
        check_prompts(max(lengths), request.samples)
    tokenizer = tokenizer_of(request.model, **request.source)
    # also where no task reads texts yet: tasks may be added to a run, and its texts are to stay
    documents, text_source = documents_of(tokenizer, request.text) if request.tasks else ((), None)
    setting = PromptSpec(
        trained,
        lengths,
        request.samples,
        request.seed,
        documents,
        request.depth,
        request.batch,
    )
    tasks = [TASKS[name] for name in request.tasks]
    if request.lengths is None and tasks:
        setting = replace(setting, lengths=fitting_lengths(tasks, tokenizer, setting))
    sizes = {task.name: size for task in tasks if (size := task.describe(tokenizer, setting))}
    plan_evaluation = EvalPlan(request, methods, setting, config, sizes, text_source)
    for task in tasks:
        for length in task.passes(setting):
            task.check(tokenizer, length, setting)
    return plan_evaluation


def unfit_length(tasks: Iterable[EvalTask], tokenizer: Any, length: int, setting: PromptSpec) -> str:
    """Why the tasks cannot all be measured at `length`; empty where they can."""
    try:
        check_prompts(length, setting.samples)
        for task in sorted(tasks, key=lambda task: task.batched):  # text is cut at once, other prompts are built
            if length in task.passes(setting):
                task.check(tokenizer, length, setting)
    except MemoryError as error:
        return str(error)
    except Refused as error:
        return f"--lengths {length}: {error}"
    return ""


def fitting_lengths(tasks: Iterable[EvalTask], tokenizer: Any, setting: PromptSpec) -> tuple[int, ...]:
    """Of the default `setting.lengths`, those at which all tasks can be measured; stderr names the others.

    Raises Refused, naming --lengths, where there is none.
    """
    fitting: tuple[int, ...] = ()
    left_out = {}
    for length in setting.lengths:
        trial = replace(setting, lengths=(*fitting, length))
        if reason := unfit_length(tasks, tokenizer, length, trial):
            left_out[str(length)] = reason
        else:
            fitting = trial.lengths
    if not fitting:
        raise Refused(f"no default length can be measured; {next(iter(left_out.values()))}")
    warn_skipped(left_out)
    return fitting


def memory_bytes(config: Any, tasks: Sequence[str], setting: PromptSpec, number_bytes: int, executor: str) -> int:
    """Rough memory, at the longest prompts, in addition to weights of so many bytes a number.

    Key-value cache, one layer's states and dense scores of a batch, the logits that a task has at once.
    """
    longest = max(setting.lengths)
    batch = setting.batch if any(TASKS[task].batched for task in tasks) else 1
    states = batch * (prompt_bytes(config, longest, number_bytes) + scores_bytes(config, longest, executor))
    logits = max((TASKS[task].logits(longest, setting) for task in tasks), default=0)
    return states + logits_bytes(config.vocab_size, logits, number_bytes)


def eval_key(task: Task) -> EvalKey:
    """A task's key, typed."""
    name, method, length = task.key
    return EvalKey(str(name), str(method), int(length))


def eval_tasks(plan: EvalPlan, keys: Sequence[EvalKey]) -> list[Task]:
    """Tasks with the memory that they take: with one prompt at a time, and with a full batch."""
    number_bytes, tasks = bytes_a_number(plan.config, plan.request.load), []
    for task, method, length in keys:
        settings = (replace(plan.setting, lengths=(length,), batch=batch) for batch in (1, plan.setting.batch))
        least, best = (
            memory_bytes(plan.config, [task], setting, number_bytes, plan.request.executor) for setting in settings
        )
        weight = TASKS[task].tokens(length, plan.setting)
        tasks.append(Task("measure", (task, method, length), least, best, weight=weight, length=length))
    return tasks


class EvalWorker(PlanWorker):
    """An `EvalPlan`, and the model that it is for."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row, None where it does not fit in memory."""
        return measure_with(self.plan, self.source.loaded(), memory_bytes)


class StateReader(Protocol):
    """What reads states in the passes of the tail likelihood, as `probe.thresholds.scored_states.ScoredStates`."""

    def reading(self) -> contextlib.AbstractContextManager[list[Any]]:
        """What is read of each pass run inside."""
        ...

    def distances(self, sample: int, read: Any) -> dict[int, float] | None:
        """By layer the distance of a pass over text number `sample`."""
        ...


def measure_with(
    plan: EvalPlan,
    loaded: Loaded,
    memory_bytes: int | None = None,
    reader: Callable[[Loaded, PromptSpec, str], StateReader] | None = None,
) -> MeasureTask:
    """The function that measures a plan's tasks on a loaded model; of one with `inputs` these samples alone.

    reader: makes what reads states; None: none are read.
    """

    @cache
    def states() -> StateReader | None:
        return reader and reader(loaded, plan.setting, plan.request.executor)

    def row(task: Task) -> JsonObject | None:
        name, method, length = eval_key(task)
        try:
            prepared = TASKS[name].prepare(loaded.tokenizer, length, plan.setting, plan.setting.samples)
            read = states() if name == TAIL.name and length >= plan.trained_length else None
        except RuntimeError as error:
            if is_out_of_memory(error):
                return None
            raise
        samples = task.inputs or range(len(prepared))
        inputs = [prepared[sample] for sample in samples]
        with contextlib.nullcontext([]) if read is None else read.reading() as passes:
            part = _row(plan, loaded, name, method, length, inputs, memory_bytes)
        for score in part["scores"] if part else ():
            score["sample"] = samples[score["sample"]]
        if read is not None and part and len(passes) == len(part["scores"]):
            for score, one in zip(part["scores"], passes, strict=True):
                if distances := read.distances(score["sample"], one):
                    score["distances"] = {str(layer): value for layer, value in distances.items()}
        return part

    return row


def _row(
    plan: EvalPlan,
    loaded: Loaded,
    name: str,
    method_name: str,
    length: int,
    prepared: Sequence[Any],
    memory: int | None,
) -> JsonObject | None:
    """A task's journal row; None where it does not fit in memory, even prompt by prompt."""
    task, method, setting = TASKS[name], plan.methods[method_name], plan.setting
    executor = plan.request.executor
    batch = min(_batch(loaded.model, length, setting.batch, memory, executor), len(prepared)) if task.batched else 1
    measured = contextlib.nullcontext() if task.is_timed else watched_peak(devices(loaded.model))
    checked = contextlib.nullcontext() if task.is_timed else states_checked(loaded.model)
    with measured as peak, mesa.applied(loaded.model, method, executor=executor), checked:
        scores = None
        while batch and scores is None:
            try:
                scores = list(task.measure(loaded, length, prepared, replace(setting, batch=batch)))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                batch //= 2
    if scores is None:
        return None
    return {"peak_mib": None if peak is None else peak.bytes / 2**20, "scores": [_as_json(score) for score in scores]}


def _as_json(score: Score) -> JsonObject:
    """A score as the journal holds it; a depth and distances only where there are."""
    optional = ("depth", "distances")
    return {name: value for name, value in asdict(score).items() if name not in optional or value is not None}


def _batch(model: Any, length: int, most: int, memory: int | None, executor: str) -> int:
    """How many prompts are decoded at once: up to `most` that take half of the free memory, and at most `memory`."""
    free = free_bytes(model.device) // 2
    limit = free if memory is None else min(free, memory)
    prompt = prompt_bytes(model.config, length, model.dtype.itemsize) + scores_bytes(model.config, length, executor)
    return max(1, min(most, limit // prompt))


_SCORES = TypeAdapter(list[Score])


def scores_of(row: JsonObject) -> list[Score]:
    """The scores in a row of the journal. Raises pydantic's ValidationError for others."""
    return _SCORES.validate_python(row["scores"])


TABLES = ("samples.csv", "summary.json")


class Evaluation(Experiment):
    """Every (task, method, length) of a plan. too_large: those that do not fit in memory, and longer ones like them."""

    title, unit = "evaluating", "token"
    worker_class = EvalWorker
    written = (*TABLES, "report.html", *(f"{task}.{form}" for task in TASKS for form in ("png", "html")))
    apart_from = ("store.zarr", "store.zarr.partial", "measured.jsonl")
    needed = ("scores",)
    columns = EvalKey

    def __init__(self, plan: EvalPlan) -> None:
        self.plan, self.too_large = plan, list[EvalKey]()

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """As for Experiment, and Refused for scores that are not those of their task."""
        journal = super().open_journal(out, overwrite=overwrite)
        check_scores(journal, self.plan)
        return journal

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """Those without a row, or with scores of other lengths than the plan's."""
        return eval_tasks(self.plan, [key for key in self.plan.cells if not self.scored(rows, key)])

    def remaining(self, rows: JournalRows) -> int | None:
        """Rows that the journal lacks."""
        return sum(key not in rows for key in self.plan.cells)

    def is_needed(self, task: Task) -> bool:
        """Whether no shorter prompt of its task and method was too large for the memory."""
        name, method, length = eval_key(task)
        return not any((name, method) == large[:2] and length >= large.length for large in self.too_large)

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Adds a row; None: the task does not fit in memory."""
        if value is None:
            self.skipped(task)
        else:
            journal.add(task.key, value)

    def skipped(self, task: Task) -> None:
        """Leaves out a task that does not fit in memory."""
        name, method, length = eval_key(task)
        self.too_large.append(EvalKey(name, method, length))
        Bar.write(f"left out: {name} under {method} does not fit in memory at {length} tokens", file=sys.stderr)

    def scored(self, rows: JournalRows, key: EvalKey) -> list[Score]:
        """The scores of a cell at the plan's lengths; empty without a row, or where it is of others."""
        if key not in rows:
            return []
        task, setting = TASKS[key.task], self.plan.setting
        scores = task.at_lengths(scores_of(rows[key]), setting)
        return scores if {score.length for score in scores} == {*task.scored(key.length, setting)} else []


def check_scores(journal: Journal, plan: EvalPlan, *, equal: bool = True) -> None:
    """Raises Refused for rows whose scores are not those of their task; equal: or that have fewer than others."""
    path, counts = journal.path, dict[EvalKey, int]()
    for key, row in cast(Mapping[EvalKey, Any], journal.rows).items():
        if (task := TASKS.get(key.task)) is None:
            raise bad_row(path, key, "is of no task")
        if "peak_mib" not in row:
            raise bad_row(path, key, "holds no 'peak_mib'")
        try:
            scores = scores_of(row)
        except ValidationError as error:
            raise bad_row(path, key, f"holds {error.errors()[0]['input']!r}, no score of {task.name}") from error
        if wrong := {score.metric for score in scores} - {metric.name for metric in task.metrics}:
            raise bad_row(path, key, f"holds {min(wrong)!r}, no score of {task.name}")
        if equal:
            counts[key] = len({score.sample for score in scores})
    for key, count in counts.items():
        same = [count for other, count in counts.items() if (other.task, other.length) == (key.task, key.length)]
        if count < (most := max([*same, TASKS[key.task].least_samples(plan.setting)])):
            raise bad_row(path, key, f"holds {count} of {most} samples")
