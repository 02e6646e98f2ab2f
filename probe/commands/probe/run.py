"""The full path of a probe run: check, measure, capture, store, analyse, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from probe.commands.probe import ProbeRequest, RuleOptions
from probe.commands.probe import plan as by_length
from probe.commands.probe.plan import (
    FailureByLength,
    HiddenStates,
    ProbePlan,
    ProbeWorker,
    check_folder,
    evaluation_plan,
    kept_text,
    pass_tasks,
    template,
    work,
)
from probe.commands.probe.plan import plan as make_plan
from probe.commands.probe.plan import plan as plan_probe
from probe.commands.probe.prepared import (
    check_fits,
    fingerprints,
    layout_of,
    prepare,
    stored_tokens,
)
from probe.commands.probe.report import check_report, remove_report, write_report
from probe.commands.probe.result import Summary, run_summary
from probe.commands.probe.timed import estimate_stages, run_stages
from probe.commands.probe.verdict import terminal_text
from probe.evaluation import eval_tasks
from probe.experiment.estimate import Estimate, passes_of, work_text
from probe.experiment.journal import Journal, known_rows
from probe.experiment.lock import how_to_resume, owned, warn_finished
from probe.experiment.pool import LOCAL, Pool, Runner
from probe.experiment.run import CommandResult, run_tasks
from probe.experiment.task import TasksLost
from probe.run_folder import RunFolder
from probe.store import store
from probe.store.reader import EVALUATION, TOKENS, partial_path, store_of, whole_passes


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
    return run_plan(make_plan(request), Path(out), overwrite=overwrite, by=by, runner=runner)


def run_plan(plan: ProbePlan, out: Path, *, overwrite: bool, by: str, runner: Runner) -> tuple[Summary, str]:
    """As `run_probe`, of a plan."""
    request = plan.request
    runner.check(request.load)
    with owned(out):
        if overwrite:
            RunFolder(out).check_apart(("journal.jsonl",))
        else:
            check_folder(plan, out)
        whole = not overwrite and _store_of_run(plan, out) == store_of(out)
        summary = run_summary(out) if whole else None
        if summary and (summary.onset_by == by or isinstance(summary.drift, str)):  # no drift: both agree
            warn_finished(out)
        else:
            if not overwrite:
                check_report(out)
            if not whole:
                _measure_and_capture(plan, out, overwrite, by, runner)
            with _resumable(out, overwrite):
                summary = write_report(out, by)
    heading = f"model {request.model}, trained length M = {plan.trained_length} tokens, captured {plan.length}\n\n"
    return summary, f"{heading}{terminal_text(summary)}\n\nwrote {out / 'report.html'}"


def is_whole(plan: ProbePlan, out: Path) -> bool:
    """Whether the folder holds this very run with its report; FileExistsError, naming what differs, for another run."""
    return _store_of_run(plan, out) == store_of(out) and run_summary(out) is not None


def _store_of_run(plan: ProbePlan, out: Path) -> Path | None:
    """The folder's store of this very run, partial or whole; fingerprints are taken only where there may be one."""
    path = store_of(out)
    if store.find_store(path, template(plan)) is None:
        return None
    return store.find_store(path, template(plan, fingerprints(plan, *prepare(plan)[:2])))


def _measure_and_capture(plan: ProbePlan, out: Path, overwrite: bool, by: str, runner: Runner) -> None:
    """Completes the store."""
    if runner.is_local:
        check_fits(plan)
    documents, tokens, text_source = prepare(plan)
    evaluation, path = evaluation_plan(plan, documents), store_of(out)
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
                (out / by_length.JOURNAL).unlink(missing_ok=True)
            journal = failure.open_journal(out) if plan.request.samples else None
            store.write_group(path, TOKENS, stored_tokens(plan, tokens))
            _run_stages(failure, states, journal, pool)
            if journal is not None:
                store.write_group(path, EVALUATION, failure.scores(journal.rows))
            remove_report(out)
            store.finish(path)


@contextmanager
def _resumable(out: Path, overwrite: bool) -> Iterator[None]:
    """An error says how to go on; a run without results leaves nothing."""
    try:
        yield
    except BaseException as error:
        whole, partial = store_of(out), partial_path(store_of(out))
        is_measured = bool(known_rows(out / by_length.JOURNAL))
        if not is_measured and not (partial.exists() and whole_passes(partial)):
            store.discard(whole)
        if is_measured or partial.exists() or whole.exists():
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


def plan(request: ProbeRequest, rule: RuleOptions, longest: int | None = None) -> ProbePlan:
    """The plan of a request; longest: of a run in stages."""
    return plan_probe(request, longest)


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
