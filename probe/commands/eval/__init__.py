"""Runs tasks over methods and lengths, resumably, and sums them up.

In: an `EvalRequest`. Out: scores a sample, in a journal, and means with intervals in summary.json.
Open first: plan.py (the request and its cells), then run.py; harness.py runs lm-eval's tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from probe.options import Count, InputPath, Lengths, Names, Number, TextName, Tokens, option
from probe.request import DATA_GROUP, LENGTHS_HELP, STORED, TEXT_HELP, MethodsRequest

_HARNESS = "lm-evaluation-harness, in place of --task"


@dataclass(frozen=True)
class EvalRequest(MethodsRequest):
    """What `run_evaluation` scores: a model, methods, tasks and lengths in tokens.

    Its fields are the options of `mesa-lens eval`; docs/commands.md lists them with their defaults
    (`method_settings` is --set, `tasks` --task).

    Examples:
        >>> request = probe.EvalRequest(tasks=("passkey",), methods="origin,mesa", lengths=(256, 512), samples=10)
        >>> request.tasks, request.batch
        (('passkey',), 8)
    """

    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "tasks", "batch")
    tasks: Names = option(("passkey", "nll"), "names separated by commas; --list-tasks explains them", key="task")
    lengths: Lengths | None = option(None, LENGTHS_HELP, unset="1, 2, 4, 8x M, where a prompt fits")
    samples: Count = option(100, "prompts at each length")
    text: TextName | None = option(
        None,
        f"text for NLL, and for tasks that hide a needle in essays: {TEXT_HELP}",
        group=DATA_GROUP,
        unset="the shipped one",
    )
    depth: Annotated[Number, Field(ge=0, le=1)] | None = option(
        None, "where in the prompt the passkey stands, 0 (start) to 1 (end)", group=DATA_GROUP, unset="drawn uniformly"
    )
    batch: Count = option(8, "prompts decoded at once; halved when memory runs out")


@dataclass(frozen=True)
class HarnessOptions:
    """Tasks of lm-eval."""

    list_tasks: bool = option(False, "print the tasks and stop")
    harness: Names | None = option(None, "lm-eval tasks, e.g. longbench_qasper,niah_single_1", group=_HARNESS)
    include_path: InputPath | None = option(None, "folder with further task definitions", group=_HARNESS)
    limit: Tokens | None = option(None, "documents of each task", group=_HARNESS, unset="all")
