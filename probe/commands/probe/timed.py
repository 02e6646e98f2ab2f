"""A probe with --minutes: chooses the longest length, goes through the stages, and leaves a true report after each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import xarray as xr

from mesa.errors import Refused
from mesa.models import bytes_a_number, tokenizer_of
from probe.capture.memory import prompt_bytes
from probe.commands.probe.plan import (
    JOURNAL,
    MULTIPLES,
    HiddenStates,
    ProbePlan,
    ProbeWorker,
    check_folder,
    evaluation_plan,
    pass_tasks,
    position_lengths,
)
from probe.commands.probe.prepared import check_fits, layout_of, prepare, remove_run, stored_tokens
from probe.commands.probe.report import check_report, remove_report, write_report
from probe.commands.probe.result import Summary, run_summary
from probe.commands.probe.stages import STAGES, Stages, candidates, passkey_check
from probe.commands.probe.verdict import terminal_text
from probe.eval_tasks import score
from probe.eval_tasks.tasks import tail_tokens
from probe.experiment.estimate import Estimate, Passes, Speed, passes_of, seconds_of, work_of
from probe.experiment.journal import Journal, known_rows
from probe.experiment.lock import how_to_resume, owned, warn_finished
from probe.experiment.pool import Pool, Runner
from probe.experiment.progress import format_seconds, is_over
from probe.experiment.run import CommandResult, run_tasks
from probe.experiment.task import Task, TasksLost
from probe.run_folder import RunFolder
from probe.statistics import looks_of
from probe.store import store
from probe.store.reader import EVALUATION, TOKENS, open_run, partial_path, store_of, whole_passes
from probe.store.select import reference_method

_LEAST = 1.25
"""Of M: at the shortest longest length all of the last M/4 tokens, whose loss is read, lie beyond M."""
_WITH_STATES = 3
"""A report of hidden states takes about this many times as long as one without."""
_SHARE = 0.6
"""Of the time, what the stages up to the methods' may take by estimate: the rest is for what stays open."""
_SHARE_BY_POSITION = 1 / 8
"""Of the time, what one pass may take that shows where Origin's loss rises, up to 2 M."""


def stages_of(plan: ProbePlan, documents: Sequence[np.ndarray]) -> Stages:
    """The stages of a plan with a longest length. Refused where the texts are shorter than that."""
    request, evaluation = plan.request, evaluation_plan(plan, documents)
    setting, trained = evaluation.setting, plan.trained_length
    texts = len(score.text_windows(documents, max(setting.lengths), setting.samples, tail_tokens(trained)))
    has_passkey = passkey_check(tokenizer_of(request.model, **request.source), evaluation)
    lengths = candidates(plan.lengths, trained, request.lengths is not None)
    reference = reference_method(list(plan.methods))
    return Stages(evaluation, reference, lengths, texts, request.not_compared, has_passkey)


def longest_that_fits(plan: ProbePlan, speed: Speed, seconds: float) -> int:
    """The longest length at which the stages up to the methods' take at most `_SHARE` of the seconds.

    Of 1.25 to 8 M, up to --length, that the texts and the memory hold; of --lengths the longest. At least up to 2 M
    where one pass is short: methods are compared where Origin's loss rises, before the longest length. Where neither
    fits, the shortest beyond M, if the pass by position and two texts at M fit. Raises Refused where these do not.
    """
    request, trained = plan.request, plan.trained_length
    documents = _documents(plan)
    if request.lengths is not None:
        lengths = [int(max(request.lengths))]
    else:
        most = min(request.length or MULTIPLES[-1] * trained, sum(map(len, documents)))
        lengths = [int(times * trained) for times in (_LEAST, *MULTIPLES) if trained < times * trained <= most]
        if request.length and request.length <= most:
            lengths = sorted({*lengths, int(request.length)})
    if not lengths:
        raise Refused(f"the text has {sum(map(len, documents))} tokens, too few for prompts beyond M = {trained}")
    from mesa.device import free_bytes

    free, number = free_bytes(request.load.get("device") or "cpu"), bytes_a_number(plan.config, request.load)
    lengths = [length for length in lengths if prompt_bytes(plan.config, length, number) < free] or lengths[:1]
    needed = {length: _nominal(plan, length, documents, speed) for length in lengths}
    fitting = [
        length
        for length, (nominal, _) in needed.items()
        if nominal <= _SHARE * seconds
        or (length <= 2 * trained and speed.seconds(length, length) <= _SHARE_BY_POSITION * seconds)
    ]
    if fitting:
        return max(fitting)
    least = needed[lengths[0]][1]
    if least > seconds:
        raise Refused(
            f"one pass over {lengths[0]} tokens and two over M = {trained} take about {format_seconds(least)} here, "
            f"and do not fit {seconds / 60:g} minutes; take --minutes {np.ceil(1.2 * least / 60):.0f}"
        )
    return lengths[0]


def _nominal(plan: ProbePlan, longest: int, documents: Sequence[np.ndarray], speed: Speed) -> tuple[float, float]:
    """Seconds of the nominal stages at a longest length, and of the least that tells anything."""
    lengths = plan.request.lengths or position_lengths(plan.trained_length, longest)
    stages = stages_of(replace(plan, lengths=lengths, longest=longest), documents)
    tasks = stages.nominal()
    level = [task for task in tasks if task.key[1:] == (stages.reference, plan.trained_length)]
    least = tasks[0].weight * speed.seconds(1, longest) + 2 * speed.seconds(plan.trained_length, plan.trained_length)
    return seconds_of(passes_of(work_of(stages, tasks)), speed), least if level else 0.0


def _documents(plan: ProbePlan) -> tuple[np.ndarray, ...]:
    """Token ids of the plan's texts."""
    text, tokenizer = plan.request.text, tokenizer_of(plan.request.model, **plan.request.source)
    return score.documents_of(tokenizer, None if text is None else str(text))[0]


def stage_passes(plan: ProbePlan) -> Passes:
    """The passes, by method and length, of the stages up to the methods' at the lengths and around the bracket."""
    stages = stages_of(plan, _documents(plan))
    return passes_of(work_of(stages, stages.nominal()))


def estimate_stages(plan: ProbePlan, out: Path, *, overwrite: bool) -> Estimate:
    """What the stages take, in words and passes, and what is measured in the folder `out` already."""
    check_folder(plan, out)
    rows = {} if overwrite else stages_of(plan, _documents(plan)).open_journal(out).rows
    passes = stage_passes(plan)
    there = sum(len(row.get("scores", ())) for row in rows.values())
    done = f"\n{there} scores are in {out} already; the time is of a run from the start" if there else ""
    return (
        f"in stages: {'; '.join(STAGES)}; hidden states of {len(plan.prompts)} prompt, {plan.length} tokens\n"
        f"lengths from M = {plan.trained_length} to {plan.longest} tokens; texts and passkeys at a length: "
        f"{' or '.join(map(str, looks_of(plan.request.samples)))}, more where the interval leaves failure open\n"
        f"up to the methods at M, around the bracket and at {plan.longest} tokens: {sum(passes.values()):,.0f} passes"
        f"{done}"
    ), passes


def run_stages(
    plan: ProbePlan, out: Path, *, overwrite: bool, by: str, runner: Runner, until: float | None
) -> CommandResult:
    """As `run_plan`, in stages up to the `deadline` `until`.

    Hidden states come last, for capture wraps the model: their time is kept free where they fit in what is left.
    """
    runner.check(plan.request.load)
    with owned(out), ExitStack() as stack:
        if overwrite:
            RunFolder(out).check_apart(("journal.jsonl",))
        else:
            check_folder(plan, out)
            check_report(out)
        if runner.is_local:
            check_fits(plan)
        documents, tokens, text_source = prepare(plan)
        stages = stages_of(plan, documents)
        layout = layout_of(plan, by, documents, tokens, text_source)

        @cache
        def pool() -> Pool:
            worker = ProbeWorker.of(plan, evaluation=replace(stages.plan, config=None), tokens=tokens)
            return stack.enter_context(runner.pool(worker, [*stages.nominal(), *pass_tasks(plan)]))

        if overwrite:  # nothing is removed for a run that cannot be
            pool()
            remove_run(out)
        journal = stages.open_journal(out)
        with _noting(out, overwrite):
            run = _Run(plan, out, by, stages, layout, journal, pool, until)
            summary = run.measured()
            summary = run.captured(stored_tokens(plan, tokens)) or summary
    text, left = f"model {plan.request.model}, trained length M = {plan.trained_length} tokens", run.left
    if summary is None:
        return CommandResult({}, f"{text}\n\n{stages.position_text(journal.rows) or 'nothing is measured'}.", 0, left)
    if not (left or run.begun):
        warn_finished(out)
    return CommandResult(summary, f"{text}\n\n{terminal_text(summary)}\n\nwrote {out / 'report.html'}", 0, left)


@contextmanager
def _noting(out: Path, overwrite: bool) -> Iterator[None]:
    """An error says how to go on."""
    try:
        yield
    except BaseException as error:
        if known_rows(out / JOURNAL):
            error.add_note(f"what is done is kept: {how_to_resume(out, overwrite)}")
        raise


@dataclass
class _Run:
    """A call of a run in stages. begun: whether it did anything. report_s: seconds that a report takes."""

    plan: ProbePlan
    out: Path
    by: str
    stages: Stages
    layout: store.Template
    journal: Journal
    pool: Callable[[], Pool]
    until: float | None
    begun: bool = False
    report_s: float = 0.0

    @property
    def path(self) -> Path:
        """The store's."""
        return store_of(self.out)

    @property
    def has_states(self) -> bool:
        """Whether the finished store holds hidden states."""
        return self.path.exists() and bool(open_run(self.path).hidden.data_vars)

    @property
    def left(self) -> str:
        """What is left of the next stage, in words that go before 'tasks are left'; empty where all is done."""
        self.stages.stage = STAGES[-1]
        count = len(self.stages.tasks(self.journal.rows)) or len(self._uncaptured())
        return f"at least {count}" if count else ""

    def measured(self) -> Summary | None:
        """Measures, stage by stage; the summary of what there is then, None where nothing can be told."""
        rows, summary = self.journal.rows, None
        for stage in STAGES:
            self.stages.stage, ends = stage, self._ends(stage)
            if (self.begun and is_over(ends)) or not self.stages.tasks(rows):
                continue
            self.stages.fits = partial(self._fits, ends=ends)
            before = self._scores
            sys.stderr.write(f"stage: {stage}\n")
            if lost := run_tasks(self.stages, self.journal, self.pool, until=ends):
                task, name, length = lost[0].key
                message = f"no worker could finish {task} under {name} at {length} tokens; the same command tries again"
                raise TasksLost(message, [task.key for task in lost])
            if self._scores > before and self.stages.is_telling(rows):
                summary = self._write()
        if summary is None and self.stages.is_telling(rows):
            summary = run_summary(self.out) if self._is_written() else self._write()
        return summary

    def captured(self, tokens: xr.Dataset) -> Summary | None:
        """Captures hidden states where they fit, or nothing else is left; the summary once all are there."""
        passes, rows = self._uncaptured(), self.journal.rows
        self.stages.stage = STAGES[-1]
        is_last = not self.begun and self.stages.step(rows) is None
        if not passes or not self.stages.is_telling(rows) or not (is_last or self._is_time(self.until, passes)):
            return None
        if not self._holds_passes() or store.find_store(self.path, self.layout) != partial_path(self.path):
            store.create(self.path, self.layout, overwrite=True)
        states, self.begun = HiddenStates(self.plan, self.path), True
        store.write_group(self.path, TOKENS, tokens)
        if lost := run_tasks(states, None, self.pool, until=self.until):
            message = f"no worker could capture {lost[0]} ({len(lost)} passes failed)"
            raise TasksLost(message, [task.key for task in lost])
        if self._uncaptured():
            return None
        store.write_group(self.path, EVALUATION, self._dataset())
        remove_report(self.out)
        store.finish(self.path)
        return write_report(self.out, self.by)

    def _ends(self, stage: str) -> float | None:
        """The deadline of a stage: the last one leaves the time of the passes whose hidden states are stored."""
        if self.until is None:
            return None
        ends, passes = self.until - self.report_s, self._uncaptured()
        if stage != STAGES[-1] or not passes or not self._is_time(ends, passes):
            return ends
        return ends - self._seconds(passes) - _WITH_STATES * self.report_s

    def _fits(self, task: Task, ends: float | None) -> bool:
        """Whether a task is begun: the first one, and those that end in time by estimate."""
        fits = not self.begun or self._is_time(ends, [task])
        self.begun = self.begun or fits
        return fits

    def _is_time(self, ends: float | None, tasks: Sequence[Task]) -> bool:
        return ends is None or time.monotonic() + self._seconds(tasks) <= ends

    def _seconds(self, tasks: Sequence[Task]) -> float:
        """About how long tasks take; 0 where the speed was not measured."""
        work = [(task, self.plan.methods.get(str(task.key[task.kind == "measure"]))) for task in tasks]
        return seconds_of(passes_of(work), self.plan.speed) if self.plan.speed else 0.0

    def _uncaptured(self) -> list[Task]:
        """The passes whose hidden states are not stored."""
        if self.has_states:
            return []
        return pass_tasks(self.plan, whole_passes(partial_path(self.path)) if self._holds_passes() else ())

    def _holds_passes(self) -> bool:
        """Whether a capture was begun: a store without hooks is one of scores alone, cut short."""
        return any((partial_path(self.path) / hook).exists() for hook in self.layout.axes)

    @property
    def _scores(self) -> int:
        return sum(len(row["scores"]) for row in self.journal.rows.values())

    def _dataset(self) -> xr.Dataset:
        """The scores, with how many there are, and how many tasks the next step has."""
        self.stages.stage = STAGES[-1]
        scores = self.stages.scores(self.journal.rows)
        return scores.assign_attrs(left=len(self.stages.tasks(self.journal.rows)), scores=self._scores)

    def _is_written(self) -> bool:
        """Whether store and report are of all rows."""
        if not self.path.exists() or run_summary(self.out) is None:
            return False
        evaluation = open_run(self.path).evaluation
        return evaluation is not None and evaluation.attrs.get("scores") == self._scores

    def _write(self) -> Summary:
        """The store with all scores, and the report; hidden states that are there, or begun, stay."""
        began = time.monotonic()
        stage, scores = self.stages.stage, self._dataset()
        self.stages.stage = stage
        if self.has_states or (self.path.exists() and self._holds_passes()):
            store.write_group(self.path, EVALUATION, scores, finished=True)
        else:
            store.create(self.path, replace(self.layout, axes={}), overwrite=True)
            store.write_group(self.path, EVALUATION, scores)
            remove_report(self.out)
            store.finish(self.path)
        summary = write_report(self.out, self.by)
        self.report_s = time.monotonic() - began
        return summary
