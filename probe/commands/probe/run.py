"""A probe run: check, measure, capture, store, analyse, report; in full, or in stages with --minutes."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Occupied, Refused
from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import bytes_a_number, tokenizer_of
from probe.capture.capture import check_distinct
from probe.capture.memory import check_memory, check_weights, pass_flops, placed_bytes, prompt_bytes, scores_bytes
from probe.commands.probe import ProbeRequest, RuleOptions
from probe.commands.probe.plan import (
    JOURNAL,
    MULTIPLES,
    FailureByLength,
    HiddenStates,
    ProbePlan,
    ProbeWorker,
    check_folder,
    evaluation_plan,
    kept_text,
    pass_tasks,
    plan as plan_probe,
    position_lengths,
    template,
    work,
)
from probe.commands.probe.report import check_report, remove_report, write_report
from probe.commands.probe.stages import STAGES, Stages, candidates, passkey_check
from probe.commands.probe.verdict import Summary, run_summary, terminal_text
from probe.eval_tasks import score
from probe.eval_tasks.retrieval import first_ids, repeated_word
from probe.eval_tasks.sources import TextSource
from probe.eval_tasks.tasks import PASSKEY, TAIL, tail_tokens
from probe.eval_tasks.token_texts import token_texts
from probe.evaluation import eval_tasks
from probe.experiment.estimate import (
    HALF_HOUR,
    Estimate,
    Passes,
    Speed,
    measure_speed,
    passes_of,
    seconds_of,
    work_of,
    work_text,
)
from probe.experiment.journal import REQUEST, Journal, known_rows, recorded
from probe.experiment.lock import how_to_resume, owned, warn_finished
from probe.experiment.pool import LOCAL, Pool, Runner, Task, TasksLost, computing, format_seconds
from probe.experiment.run import CommandResult, ModelSpec, run_tasks
from probe.request import noted, reference_method, say
from probe.run_folder import RunFolder
from probe.store import reader, store
from probe.thresholds.scored_states import REFERENCE_TEXTS

# What a run, full or in stages, has before anything is measured: texts, prompts, the store's layout


def remove_run(out: Path) -> None:
    """Removes what a probe run writes into the folder `out`, and nothing else."""
    remove_report(out)
    (out / JOURNAL).unlink(missing_ok=True)
    store.remove(reader.store_of(out))


def layout_of(
    plan: ProbePlan,
    by: str,
    documents: Sequence[np.ndarray],
    tokens: Mapping[str, Sequence[int]],
    text_source: TextSource,
) -> store.Template:
    """Of the store, with all attributes; stderr says what is special about its hidden states."""
    attrs = {
        REQUEST: json.dumps(recorded(plan.request, replace(RuleOptions(), rule=by))),
        reader.TEXT_SOURCE: json.dumps(asdict(text_source)),
    }
    from mesa.engine.bridge import without_adapter  # with transformer-lens, which plans do without

    if named := without_adapter(plan.config):
        attrs["states_from"] = f"inputs and outputs of layers: TransformerLens has no adapter for a {named}"
        sys.stderr.write(f"hidden states are the {attrs['states_from']}\n")
    if plan.first_token:
        sys.stderr.write(f"no token of the tokenizer's own differs from the word: it comes after {plan.first_token}\n")
    return template(plan, fingerprints(plan, documents, tokens) | attrs)


def check_fits(plan: ProbePlan) -> None:
    """MemoryError where weights, captured values or a pass cannot fit; a device map places the model itself."""
    options, (needed, option, length) = plan.request.load, plan.largest_pass
    device = options.get("device") or "cpu"
    if options.get("device_map") or not str(device).startswith("cpu"):
        check_memory(plan.host_bytes, plan.length)
        if not options.get("device_map"):
            check_memory(needed, length, device, check_weights(plan.config, options), option)
    else:
        if needed <= plan.host_bytes:
            option, length = "--length", plan.length
        check_memory(needed + plan.host_bytes, length, device, check_weights(plan.config, options), option)


def prepare(plan: ProbePlan) -> tuple[tuple[np.ndarray, ...], dict[str, list[int]], TextSource]:
    """Texts, and prompts by name, as token ids; and where the texts are from. Refused for what cannot be built."""
    request = plan.request
    tokenizer = tokenizer_of(request.model, **request.source)
    documents, text_source = score.documents_of(tokenizer, None if request.text is None else str(request.text))
    tokens = _prompt_tokens(tokenizer, plan, documents)
    if request.samples:
        setting = evaluation_plan(plan, documents).setting
        least = plan.trained_length if plan.longest else min(plan.lengths)
        for task in (TAIL,) if plan.longest else (PASSKEY, TAIL):
            task.check(tokenizer, least, setting)
    return documents, tokens, text_source


def stored_tokens(plan: ProbePlan, tokens: Mapping[str, Sequence[int]]) -> xr.Dataset:
    """Ids and texts (prompt, position) of the tokens at the captured positions."""
    tokenizer: Any = tokenizer_of(plan.request.model, **plan.request.source)
    kept, dims = list(plan.kept.positions), ("prompt", "position")
    ids = np.array([np.array(prompt)[kept] for prompt in tokens.values()], np.int64)
    texts = np.array([np.array(token_texts(tokenizer, prompt), object)[kept] for prompt in tokens.values()])
    return xr.Dataset(
        {"id": (dims, ids), "text": (dims, texts)},
        {"prompt": list(tokens), "position": plan.kept.positions},
    )


def fingerprints(
    plan: ProbePlan, documents: Sequence[np.ndarray], tokens: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """The fingerprints of texts, prompts and weights that a store records."""
    known = identity(plan.request.model, plan.config)
    return {
        "inputs": ids_fingerprint([*documents, *tokens.values()]),
        **{name: known[name] for name in reader.FINGERPRINTS if name in known},
    }


def _prompt_tokens(tokenizer: Any, plan: ProbePlan, documents: Sequence[np.ndarray]) -> dict[str, list[int]]:
    """Token ids of every prompt, each of `plan.length` tokens, with the special tokens that come first."""
    first = list(first_ids(tokenizer))
    available = plan.length - len(first)
    if 2 * plan.period > available:
        raise Refused(
            f"--prompt {plan.request.word[:20]!r} has {plan.period} tokens, which --length {plan.length} does not "
            "repeat; give a shorter word or a longer pass"
        )
    repeated, _ = repeated_word(tokenizer, plan.request.word, plan.length)
    windows = score.text_windows(documents, available, plan.texts) if plan.texts else []
    if len(windows) < plan.texts:
        raise Refused(f"--texts {plan.texts}: the text holds {len(windows)} runs of {available} tokens; ask for fewer")
    tokens = dict(zip(plan.prompts, [repeated, *(first + run.tolist() for run in windows)], strict=True))
    for name, ids in tokens.items():
        check_distinct(ids, f"prompt {name}")
    return tokens


# A run in full


def run_probe(
    request: ProbeRequest,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    by: str = "drift",
    runner: Runner = LOCAL,
) -> tuple[Summary, str]:
    """Measures where each method fails, stores hidden states and writes a report, as `mesa-lens probe` does.

    All that can be checked is checked before the weights are loaded. The same call continues an interrupted run; of a
    finished one it returns the summary, after another report where `by` differs.

    Args:
        request: What to measure.
        out: The folder, made if it is not there.
        overwrite: Whether another run in the folder is replaced, once the new weights are loaded; default False.
        by: The rule that onsets are read by, 'drift' or 'paper'; default 'drift'.
        runner: Who runs the tasks. Default: this process.

    Returns:
        The summary, as summary.json holds it, and its table as text.

    Raises:
        Refused: A value is wrong; the message names it.
        FileExistsError: The folder holds another run, and `overwrite` is False.

    Examples:
        >>> request = probe.ProbeRequest(
        ...     methods="origin,rerope", length=512, texts=0, samples=2, lengths=(256, 768), refine=0
        ... )
        >>> summary, text = probe.run_probe(request, "runs/example")
        >>> [(row.method, row.rank, row.measured.length) for row in summary.verdict.rows]  # fails at 768 tokens, or not
        [('rerope', 1, None), ('origin', 2, 768)]
    """
    return run_plan(plan_probe(request), Path(out), overwrite=overwrite, by=by, runner=runner)


def run_plan(plan: ProbePlan, out: Path, *, overwrite: bool, by: str, runner: Runner) -> tuple[Summary, str]:
    """As `run_probe`, of a plan."""
    request = plan.request
    runner.check(request.load)
    with owned(out):
        if overwrite:
            RunFolder(out).check_apart(("journal.jsonl",))
        else:
            check_folder(plan, out)
        is_done = not overwrite and _store_of_run(plan, out) == reader.store_of(out)
        summary = run_summary(out) if is_done else None
        if summary and (summary.onset_by == by or isinstance(summary.drift, str)):  # no drift: both agree
            warn_finished(out)
        else:
            if not overwrite:
                check_report(out)
            if not is_done:
                _measure_and_capture(plan, out, overwrite, by, runner)
            with _resumable(out, overwrite):
                summary = write_report(out, by)
    heading = f"model {request.model}, trained length M = {plan.trained_length} tokens, captured {plan.length}\n\n"
    return summary, f"{heading}{terminal_text(summary)}\n\nwrote {out / 'report.html'}"


def is_complete(plan: ProbePlan, out: Path) -> bool:
    """Whether the folder holds this very run with its report; FileExistsError, naming what differs, for another run."""
    return _store_of_run(plan, out) == reader.store_of(out) and run_summary(out) is not None


def _store_of_run(plan: ProbePlan, out: Path) -> Path | None:
    """The folder's store of this very run, partial or complete; fingerprints are taken only where there may be one."""
    path = reader.store_of(out)
    if store.find_store(path, template(plan)) is None:
        return None
    return store.find_store(path, template(plan, fingerprints(plan, *prepare(plan)[:2])))


def _measure_and_capture(plan: ProbePlan, out: Path, overwrite: bool, by: str, runner: Runner) -> None:
    """Completes the store."""
    if runner.is_local:
        check_fits(plan)
    documents, tokens, text_source = prepare(plan)
    evaluation, path = evaluation_plan(plan, documents), reader.store_of(out)
    failure, states = FailureByLength(evaluation, plan.refine, plan.request.not_compared), HiddenStates(plan, path)
    layout = layout_of(plan, by, documents, tokens, text_source)
    with ExitStack() as stack:

        @cache
        def pool() -> Pool:
            tasks = [*eval_tasks(evaluation, evaluation.cells), *pass_tasks(plan)]
            worker = ProbeWorker.of(plan, evaluation=replace(evaluation, config=None), tokens=tokens)
            return stack.enter_context(runner.pool(worker, tasks))

        if overwrite:  # nothing is removed for a run that cannot be
            pool()
        elif plan.request.samples:  # another's is refused
            failure.open_journal(out)
        with _resumable(out, overwrite):
            store.create(path, layout, overwrite=overwrite)
            if overwrite:
                (out / JOURNAL).unlink(missing_ok=True)
            journal = failure.open_journal(out) if plan.request.samples else None
            store.write_group(path, reader.TOKENS, stored_tokens(plan, tokens))
            _run_stages(failure, states, journal, pool)
            if journal is not None:
                store.write_group(path, reader.EVALUATION, failure.scores(journal.rows))
            remove_report(out)
            store.finish(path)


@contextmanager
def _resumable(out: Path, overwrite: bool) -> Iterator[None]:
    """An error says how to go on; a run without results leaves nothing."""
    try:
        yield
    except BaseException as error:
        complete, partial = reader.store_of(out), reader.partial_path(reader.store_of(out))
        is_measured = bool(known_rows(out / JOURNAL))
        if not is_measured and not (partial.exists() and reader.complete_passes(partial)):
            store.discard(complete)
        if is_measured or partial.exists() or complete.exists():
            error.add_note(f"what is done is kept: {how_to_resume(out, overwrite)}")
        raise


def _run_stages(
    failure: FailureByLength, states: HiddenStates, journal: Journal | None, pool: Callable[[], Pool]
) -> None:
    """Measures and captures what is missing. Raises TasksLost, at the end, for what no worker could finish."""
    messages, passes = [], states.tasks({})
    unmeasured = [] if journal is None else run_tasks(failure, journal, pool)
    uncaptured = run_tasks(states, None, pool)  # after what is measured: the bridge wraps the model
    if unmeasured:
        task, name, length = unmeasured[0].key
        messages.append(f"no worker could finish {task} under {name} at {length} tokens; the same command tries again")
    if uncaptured:
        messages.append(f"no worker could capture {uncaptured[0]} ({len(uncaptured)} of {len(passes)} passes failed)")
    if messages:
        raise TasksLost("; ".join(messages), [task.key for task in (*unmeasured, *uncaptured)])


# A run in stages: chooses the longest length, goes through them, and from the second on leaves a report of each

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
    lengths = candidates(request.lengths or plan.lengths, trained, request.lengths is not None)
    reference = reference_method(list(plan.methods))
    return Stages(evaluation, reference, lengths, texts, request.not_compared, has_passkey)


def longest_that_fits(plan: ProbePlan, speed: Speed, minutes: float, spent: float) -> int:
    """The longest length at which the stages up to the methods' take at most `_SHARE` of what is left of the minutes.

    Of 1.25 to 8 M, up to --length, that the texts and the memory hold; of --lengths the longest. At least up to 2 M
    where one pass is short: methods are compared where Origin's loss rises, before the longest length. Where neither
    fits, the shortest beyond M, if the pass by position and six texts at M fit. Raises Refused where these do not.

    spent: seconds of the minutes.
    """
    seconds = 60 * minutes - spent
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
        raise Refused(
            f"the text has {sum(map(len, documents))} tokens, too few for prompts beyond M = {trained}; "
            f"pass a longer --text, of at least {math.ceil(_LEAST * trained)} tokens"
        )
    from mesa.device import free_bytes

    free = free_bytes(request.load.get("device") or "cpu") - placed_bytes(plan.config, request.load)
    number = bytes_a_number(plan.config, request.load)
    needs = (
        prompt_bytes(plan.config, length, number) + scores_bytes(plan.config, length, request.executor)
        for length in lengths
    )
    if not request.load.get("device_map"):  # which has other devices too
        lengths = [length for length, needs in zip(lengths, needs, strict=True) if needs < free] or lengths[:1]
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
            f"one pass over {lengths[0]} tokens and six over M = {trained} take about {format_seconds(least)} here, "
            f"and do not fit {minutes:g} minutes; take --minutes {np.ceil((1.2 * least + spent) / 60):.0f}"
        )
    return lengths[0]


def _nominal(plan: ProbePlan, longest: int, documents: Sequence[np.ndarray], speed: Speed) -> tuple[float, float]:
    """Seconds of the nominal stages at a longest length, and of the least that tells anything."""
    lengths = position_lengths(plan.trained_length, longest)
    stages = stages_of(replace(plan, lengths=lengths, longest=longest), documents)
    tasks = stages.nominal()
    inside = 2 + REFERENCE_TEXTS  # scored, and read for the in-window distribution
    least = tasks[0].weight * speed.seconds(1, longest) + inside * speed.seconds(
        plan.trained_length, plan.trained_length
    )
    return seconds_of(passes_of(work_of(stages, tasks)), speed), least


def _documents(plan: ProbePlan) -> tuple[np.ndarray, ...]:
    """Token ids of the plan's texts."""
    text, tokenizer = plan.request.text, tokenizer_of(plan.request.model, **plan.request.source)
    return score.documents_of(tokenizer, None if text is None else str(text))[0]


def stage_passes(stages: Stages) -> Passes:
    """The passes, by method and length, of the stages up to the methods' at the lengths and around the bracket."""
    return passes_of(work_of(stages, stages.nominal()))


def estimate_stages(plan: ProbePlan, out: Path, *, overwrite: bool) -> Estimate:
    """What the stages take, in words and passes, and what is measured in the folder `out` already."""
    check_folder(plan, out)
    if not overwrite:
        _check_states(plan, out)
    stages = stages_of(plan, _documents(plan))
    rows = {} if overwrite else stages.open_journal(out).rows
    passes = stage_passes(stages)
    there = sum(len(row.get("scores", ())) for row in rows.values())
    looks = stages.looks
    more = ", more where the interval leaves failure open" if len(looks) > 1 else ""
    done = f"\n{there} scores are in {out} already; the time is of a run from the start" if there else ""
    return (
        f"in stages: {'; '.join(STAGES)}; hidden states of {len(plan.prompts)} prompt, {plan.length} tokens\n"
        f"lengths from M = {plan.trained_length} to {plan.longest} tokens; texts and passkeys at a length: "
        f"{' or '.join(map(str, looks))}{more}\n"
        f"up to the methods at M, around the bracket and at {plan.longest} tokens: {sum(passes.values()):,.0f} passes"
        f"{done}"
    ), passes


def _check_states(plan: ProbePlan, out: Path) -> None:
    """FileExistsError where hidden states are stored, or begun, under other methods or on other prompts."""
    path, layout = reader.store_of(out), template(plan)
    begun = any((reader.partial_path(path) / hook).exists() for hook in layout.axes)
    if begun or (path.exists() and reader.open_run(path).hidden.data_vars):
        store.find_store(path, layout)


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
            _check_states(plan, out)
        if runner.is_local:
            check_fits(plan)
        documents, tokens, text_source = prepare(plan)
        stages = stages_of(plan, documents)
        layout = layout_of(plan, by, documents, tokens, text_source)
        stages.command = json.loads(layout.attrs[REQUEST])

        @cache
        def pool() -> Pool:
            worker = ProbeWorker.of(plan, evaluation=replace(stages.plan, config=None), tokens=tokens)
            return stack.enter_context(runner.pool(worker, [*stages.nominal(), *pass_tasks(plan)]))

        if overwrite:  # nothing is removed for a run that cannot be
            pool()
            remove_run(out)
        journal = stages.open_journal(out)
        stages.share(journal)
        with _resumable(out, overwrite):
            run = _Run(plan, out, by, stages, layout, journal, pool, until)
            summary = run.measured()
            summary = run.captured(stored_tokens(plan, tokens)) or summary
    text, left = f"model {plan.request.model}, trained length M = {plan.trained_length} tokens", run.left
    if summary is None:
        where = stages.position_text(journal.rows)
        ends, losses = (array.tolist() for array in stages.by_position(journal.rows))
        by_position = {"by_position": {"text": where, "position": ends, "nll": losses}} if where else {}
        return CommandResult(by_position, f"{text}\n\n{where or 'nothing is measured'}.", 0, left)
    if not (left or run.begun or run.is_report_new):
        warn_finished(out)
    wrote = f"{'wrote' if run.begun or run.is_report_new else 'report:'} {out / 'report.html'}"
    return CommandResult(summary, f"{text}\n\n{terminal_text(summary)}\n\n{wrote}", 0, left)


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
    is_report_new: bool = False
    report_s: float = 0.0

    @property
    def path(self) -> Path:
        """The store's."""
        return reader.store_of(self.out)

    @property
    def has_states(self) -> bool:
        """Whether the finished store holds hidden states."""
        return self.path.exists() and bool(reader.open_run(self.path).hidden.data_vars)

    @property
    def left(self) -> str:
        """What is left of the next stage, in words that go before 'tasks are left'; empty where all is done."""
        self.stages.stage = STAGES[-1]
        count = len(self.stages.tasks(self.journal.rows)) or len(self._uncaptured()) or int(not self.has_states)
        return f"at least {count}" if count else ""

    def measured(self) -> Summary | None:
        """Measures, stage by stage; the summary of what there is then, None where nothing can be told."""
        rows, summary = self.journal.rows, None
        for stage in STAGES:
            self.stages.stage, ends = stage, self._ends(stage)
            tasks = self.stages.tasks(rows)
            if not any(not self.begun or self._is_time(ends, [each]) for each in tasks):
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
        ends = None if self.until is None else self.until - _WITH_STATES * self.report_s
        if self.has_states or not self.stages.is_telling(rows) or not (is_last or self._is_time(ends, passes)):
            return None
        if not self._holds_passes() or store.find_store(self.path, self.layout) != reader.partial_path(self.path):
            store.create(self.path, self.layout, overwrite=True)
        states, self.begun = HiddenStates(self.plan, self.path), True
        store.write_group(self.path, reader.TOKENS, tokens)
        if lost := run_tasks(states, None, self.pool, until=self.until):
            message = f"no worker could capture {lost[0]} ({len(lost)} passes failed)"
            raise TasksLost(message, [task.key for task in lost])
        if self._uncaptured():
            return None
        store.write_group(self.path, reader.EVALUATION, self._dataset())
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
        return pass_tasks(
            self.plan, reader.complete_passes(reader.partial_path(self.path)) if self._holds_passes() else ()
        )

    def _holds_passes(self) -> bool:
        """Whether a capture was begun: a store without hooks is one of scores alone, cut short."""
        return any((reader.partial_path(self.path) / hook).exists() for hook in self.layout.axes)

    @property
    def _scores(self) -> int:
        return sum(len(row["scores"]) for row in self.journal.rows.values())

    def _dataset(self) -> xr.Dataset:
        """The scores, with how many there are, and how many tasks the next step has."""
        self.stages.stage = STAGES[-1]
        scores = self.stages.scores(self.journal.rows)
        return scores.assign_attrs(left=len(self.stages.tasks(self.journal.rows)), scores=self._scores)

    def _is_written(self) -> bool:
        """Whether store and report are of all rows, under the plan's methods and by the rule."""
        summary = run_summary(self.out) if self.path.exists() else None
        if summary is None or (summary.onset_by != self.by and not isinstance(summary.drift, str)):
            return False
        evaluation = reader.open_run(self.path).evaluation
        if evaluation is None or evaluation["method"].values.tolist() != [*self.plan.methods]:
            return False
        return evaluation.attrs.get("scores") == self._scores

    def _write(self) -> Summary:
        """The store with all scores, and the report; hidden states that are there, or begun, stay."""
        began = time.monotonic()
        stage, scores = self.stages.stage, self._dataset()
        self.stages.stage = stage
        remove_report(self.out)  # first: a run that is killed here writes it again
        if self.has_states or (self.path.exists() and self._holds_passes()):
            store.write_group(self.path, reader.EVALUATION, scores, finished=True)
        else:
            store.create(self.path, replace(self.layout, axes={}), overwrite=True)
            store.write_group(self.path, reader.EVALUATION, scores)
            store.finish(self.path)
        summary, self.is_report_new = write_report(self.out, self.by), True
        self.report_s = time.monotonic() - began
        return summary


# What `Command.load` returns


def plan(request: ProbeRequest, rule: RuleOptions, longest: int | None = None) -> ProbePlan:
    """The plan of a request; longest: of a run in stages."""
    return plan_probe(request, longest)


AMOUNT_FIELDS = ("samples", "texts", "lengths", "length", "refine")
"""Fields of a request that say how much is measured."""
CHEAP_RUN = 2e13
"""Floating-point operations of a run below which it takes minutes on a CPU: its speed is not measured."""


def plan_in_time(
    request: ProbeRequest,
    rule: RuleOptions,
    out: Path,
    *,
    minutes: float | None,
    overwrite: bool,
    threads: int | None,
    may_stage: bool,
) -> tuple[ProbePlan, float | None]:
    """The plan of a request and its minutes; in stages with `minutes`, or where all of it takes more than half an hour.

    A run in the folder `out` keeps what it is, and its longest length. With an option that says how much, and without
    `minutes` or `may_stage`, all of the request is measured. Raises Refused where the time is too short for anything.
    """
    there, began = {} if overwrite else RunFolder(out).settings, time.monotonic()
    if minutes is not None and request.refine:
        raise Refused(
            f"--refine {request.refine} with --minutes {minutes:g}: a run in stages narrows its brackets as long as "
            "there is time; leave one of them out"
        )
    if minutes is not None and not request.samples:
        raise Refused(f"--minutes {minutes:g} with --samples 0: nothing is measured; leave one of them out")
    limit = minutes or HALF_HOUR / 60
    if "stages" in there:
        longest, length = int(there["longest"]), request.length
        if length and length > longest:
            say(f"measures up to {longest} tokens, as the run in {out} began; for {length} give --overwrite")
        if request.lengths and max(request.lengths) != longest:
            raise Refused(
                f"--lengths up to {max(request.lengths)}: the run in {out} measures up to {longest} tokens; keep that "
                "length, or give --overwrite or another --out"
            )
        planned = plan(request, rule, longest)
        estimate(planned, out, rule, overwrite=False)  # refused before the model is loaded
        return replace(planned, speed=_speed(planned, threads)), limit
    if minutes is not None and "refine" in there:
        raise Occupied(
            f"{out} holds a full run, not one in stages; leave --minutes out, or use --overwrite or another --out"
        )
    with noted() as notes:
        planned = plan(request, rule)
    stated = [name for name in AMOUNT_FIELDS if getattr(request, name) != getattr(ProbeRequest, name)]
    passes = estimate(planned, Path(os.devnull), rule, overwrite=True)[1]
    by_default = minutes is None and may_stage and not stated and not there
    if minutes is not None or (by_default and _operations(planned, passes) >= CHEAP_RUN):
        speed = _speed(planned, threads)
        takes = seconds_of(passes, speed)
        if minutes is not None or takes > 60 * limit:
            spent = time.monotonic() - began if minutes is not None else 0.0
            return _staged(request, rule, planned, speed, limit, takes, spent), limit
    for note in notes:
        say(note)
    return planned, None


def _staged(
    request: ProbeRequest,
    rule: RuleOptions,
    planned: ProbePlan,
    speed: Speed,
    minutes: float,
    takes: float,
    spent: float,
) -> ProbePlan:
    """The plan of a run in stages that fits the minutes, of which some seconds are spent.

    takes: seconds of all of the request, `planned`.
    """
    # the plan's request may have a --length of its own: what fits into the store by default
    longest = longest_that_fits(replace(planned, request=request), speed, minutes, spent)
    staged = replace(plan(request, rule, longest), speed=speed)
    stated = any(getattr(request, name) != getattr(ProbeRequest, name) for name in AMOUNT_FIELDS)
    full = "the request" if stated else "all that is measured by default"
    first = seconds_of(stage_passes(stages_of(staged, _documents(staged))), speed)
    until = f"about {format_seconds(first)} until all methods are measured there"
    more = (
        "the same command goes on" if first > 60 * minutes - spent else "then more texts, passkeys, narrower brackets"
    )
    sys.stderr.write(
        f"{full} takes about {format_seconds(takes)} here; in stages, in {minutes:g} minutes: up to {longest} tokens, "
        f"{until}, {more}\n"
    )
    return staged


def _speed(planned: ProbePlan, threads: int | None) -> Speed:
    """The model's speed, measured now."""
    request = planned.request
    sys.stderr.write("measuring the model's speed\n")
    with computing(threads):
        spec = ModelSpec(request.model, request.load)
        return measure_speed(spec, planned.longest or max(planned.lengths), request.executor)


def _operations(planned: ProbePlan, passes: Passes) -> float:
    """Floating-point operations of the passes, estimated from the config."""
    return sum(count * pass_flops(planned.config, length) for (_, length), count in passes.items())


def estimate(planned: ProbePlan, out: Path, rule: RuleOptions, *, overwrite: bool) -> Estimate:
    """What the plan takes, with what is stored."""
    if planned.longest:
        return estimate_stages(planned, out, overwrite=overwrite)
    everything, left = work(planned), work(planned, None if overwrite else out)
    return f"{kept_text(planned)}\n{work_text(everything, left, out)}", passes_of(left)


def run_and_report(
    planned: ProbePlan, out: Path, rule: RuleOptions, *, overwrite: bool, until: float | None, runner: Runner
) -> CommandResult:
    """Measures and captures what the folder `out` lacks of the plan, and writes its report; in stages until `until`."""
    if planned.longest:
        return run_stages(planned, out, overwrite=overwrite, by=rule.rule, runner=runner, until=until)
    return CommandResult(*run_plan(planned, out, overwrite=overwrite, by=rule.rule, runner=runner), 0, "")
