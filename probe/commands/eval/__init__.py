"""Runs tasks over methods and lengths, resumably, and sums them up.

In: an `EvalRequest`. Out: scores a sample, in a journal, and means with intervals in summary.json.
Open first: run.py (its plan and worker are shared with `probe`); harness.py runs lm-eval's tasks."""

from dataclasses import dataclass

from probe.commands import Command
from probe.options import InputPath, Names, Tokens, option
from probe.request import EvalRequest
from probe.run_folder import REPORTED, Layout

_HARNESS = "lm-evaluation-harness, in place of --task"


@dataclass(frozen=True)
class HarnessOptions:
    """Tasks of lm-eval."""

    list_tasks: bool = option(False, "print the tasks and stop")
    harness: Names | None = option(None, "lm-eval tasks, e.g. longbench_qasper,niah_single_1", group=_HARNESS)
    include_path: InputPath | None = option(None, "folder with further task definitions", group=_HARNESS)
    limit: Tokens | None = option(None, "documents of each task", group=_HARNESS, unset="all")


COMMAND = Command(
    name="eval",
    help="run passkey, RULER, LongEval, NLL, latency or lm-eval tasks under each method",
    about="scores tasks under each method at several lengths, with 95% intervals and curves",
    example="--task passkey,nll --samples 10 --out runs/eval",
    options=(EvalRequest, HarnessOptions),
    layout=Layout("", ("journal.jsonl", "harness.jsonl"), (*REPORTED, "samples.csv")),
    package=__name__,
    tells=("export",),
    export=("Scores by length, and what is found by length and depth.", "methods lengths", "--format svg,csv"),
)
