"""Which default lengths fit: those at which every task has prompts, by tokenizer and text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from probe.capture.memory import check_prompts
from probe.request import tell_left_out
from probe.tasks.base import Setting, Task


def unfit_length(tasks: Iterable[Task], tokenizer: Any, length: int, setting: Setting) -> str:
    """Why the tasks cannot all be measured at `length`; empty where they can."""
    try:
        check_prompts(length, setting.samples)
        for task in sorted(tasks, key=lambda task: task.batched):  # text is cut at once, other prompts are built
            if length in task.passes(setting):
                task.check(tokenizer, length, setting)
    except MemoryError as error:
        return str(error)
    except ValueError as error:
        return f"--lengths {length}: {error}"
    return ""


def fitting_lengths(tasks: Iterable[Task], tokenizer: Any, setting: Setting) -> tuple[int, ...]:
    """Of the default `setting.lengths`, those at which all tasks can be measured; stderr names the others.

    Raises ValueError, naming --lengths, where there is none.
    """
    kept: tuple[int, ...] = ()
    left_out = {}
    for length in setting.lengths:
        trial = replace(setting, lengths=(*kept, length))
        if reason := unfit_length(tasks, tokenizer, length, trial):
            left_out[str(length)] = reason
        else:
            kept = trial.lengths
    if not kept:
        raise ValueError(f"no default length can be measured; {next(iter(left_out.values()))}")
    tell_left_out(left_out)
    return kept
