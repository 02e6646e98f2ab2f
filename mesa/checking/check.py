"""`check`: every row of a model, in the order in which one follows from the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mesa.checking import checks as model_checks
from mesa.checking.checks import CHECKS, method_rows
from mesa.checking.rows import FAILED, NOT_RUN, CheckRow, Report
from mesa.checking.subject import MOST_PRETENDED, Subject
from mesa.engine.plug import check_free
from mesa.errors import Refused
from mesa.families import Family, passed
from mesa.methods import Method, ReRoPE
from mesa.progress import Bar
from mesa.settings import make_methods
from mesa.support import check_config
from mesa.support import trained_length as stated_length

PRETENDED = 64
"""The M that methods are made for while they are checked, in tokens."""

_LEAST = 24


def check(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    methods: str = "all",
    trained_length: int | None = None,
    pretended: int = PRETENDED,
    minutes: float | None = None,
    name: str | None = None,
    family: Family | None = None,
) -> Report:
    """Whether methods are computed correctly on a model.

    The model is left as it was.

    Args:
        model: A Hugging Face model in evaluation mode.
        tokenizer: Its tokenizer; None: checks that ask for one are not run.
        methods: Names separated by commas; default 'all'.
        trained_length: M in tokens; default the config's.
        pretended: The M that methods are made for, in tokens, so that they act at lengths a machine can do: prompts are
            a little shorter and three times as long. Default 64.
        minutes: No check begins after so many; default no limit.
        name: The model's name in the report; default the config's.
        family: As for `mesa.applied`.

    Returns:
        A `Report`: `rows`, one a check; `print` gives a table.

    Raises:
        Refused: The model is not supported, in training mode or has a method attached, or a number is out of range.

    Examples:
        >>> loaded = mesa.load()
        >>> report = mesa.check(loaded.model, loaded.tokenizer, methods="rerope", pretended=32, name="default")
        >>> print(str(report).splitlines()[0])
        default: 10 passed, 0 failed, 0 not run
    """
    with passed(model.config.model_type, family):
        return _checked(model, tokenizer, methods, trained_length, pretended, minutes, name)


def _checked(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    methods: str,
    trained_length: int | None,
    pretended: int,
    minutes: float | None,
    name: str | None,
) -> Report:
    check_config(model.config)
    check_free(model)
    if model.training:
        raise Refused("the model is in training mode; call model.eval() first")
    if not _LEAST <= pretended <= MOST_PRETENDED:
        raise Refused(f"pretended={pretended} is not within {_LEAST} to {MOST_PRETENDED} tokens")
    try:
        reached = trained_length or stated_length(model.config)
    except Refused:  # nothing states M
        reached = pretended
    subject = Subject(model, tokenizer, pretended, reached)
    steps = _steps(subject, make_methods(methods, pretended), trained_length)
    with torch.no_grad():
        rows = tuple(_rows(steps, minutes))
    lengths = tuple(setting.length for setting in subject.settings)
    return Report(name or model.config._name_or_path or type(model).__name__, rows, pretended, lengths)


_NEEDED = {"weights are numbers", "states are numbers", "stock against origin"}
"""Checks after which no other makes sense where they fail."""

_Step = tuple[Sequence[str], str, Callable[[], Iterable[CheckRow]]]
"""Checks, their method if any, and what computes their rows."""


def _steps(subject: Subject, methods: dict[str, Method], stated: int | None) -> list[_Step]:
    """All steps, each after those it needs."""
    changing = [method for method in methods.values() if not method.uses_model_rope]
    tried = changing[-1] if changing else ReRoPE(trained_length=subject.pretended)

    def step(check: str, run: Callable[..., CheckRow], *given: Any) -> _Step:
        return [check], "", lambda: [run(subject, *given)]

    return [
        step("model", model_checks.model_note, stated),
        step("first token", model_checks.first_token),
        step("weights are numbers", model_checks.weights),
        step("states are numbers", model_checks.states),
        step("stock against origin", model_checks.stock_against_origin),
        (["carried state"], "", lambda: model_checks.carried_state(subject)),
        step("rotary", model_checks.rotary),
        (["sliding windows"], "", partial(model_checks.windows, subject)),
        *((list(CHECKS), name, partial(method_rows, subject, method)) for name, method in methods.items()),
        step(model_checks.HOOKS, model_checks.hooks, tried),
        step("restored", model_checks.restored),
    ]


def _rows(steps: list[_Step], minutes: float | None) -> Iterator[CheckRow]:
    """The steps' rows, behind a progress bar once they take two seconds; 'not run' after one that is needed failed.

    A step that raises gives a failed row of each check, or not run for want of memory.
    """
    begun, why = time.monotonic(), ""
    for checks, method, run in Bar(steps, desc="checking", unit="check", delay=2):
        if not why and minutes is not None and time.monotonic() - begun > 60 * minutes:
            why = f"{minutes:g} minutes were over; give more --minutes or fewer --methods"
        said, result, rows = why, NOT_RUN, list[CheckRow]()
        try:
            rows += () if why else run()
        except (MemoryError, torch.OutOfMemoryError) as error:
            said = f"{error or 'no memory'}; use a smaller --pretended, or a device with more memory"
        except Exception as error:
            said, result = f"{type(error).__name__}: {' '.join(str(error).split())}", FAILED
            said += "" if isinstance(error, RuntimeError | ValueError) else "; report it with this table"
        if said:
            rows = [CheckRow(check, result, said, method) for check in checks]
        yield from rows
        if not why and any(row.check in _NEEDED and row.result == FAILED and row.difference is None for row in rows):
            why = f"{checks[0]!r} failed"
