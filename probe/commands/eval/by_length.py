"""The measured failure of a probe run: tail likelihood and passkey retrieval, by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from mesa.errors import Refused
from mesa.support import is_rotary
from probe.commands.eval.plan import EvalPlan
from probe.commands.eval.result import scores_of
from probe.eval_tasks.likelihood import TAIL, tail_tokens
from probe.eval_tasks.retrieval_tasks import PASSKEY
from probe.experiment.journal import JournalRows

JOURNAL = "measured.jsonl"
TASKS = (TAIL.name, PASSKEY.name)
MULTIPLES = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Lengths measured by default, in trained windows."""


def default_lengths(trained_length: int, longest: int) -> list[int]:
    """`MULTIPLES` of M that hold a tail and its context, up to `longest` tokens."""
    lengths = [int(trained_length * multiple) for multiple in MULTIPLES if trained_length * multiple <= longest]
    return [length for length in lengths if length >= 2 * tail_tokens(trained_length)]


def check_lengths(lengths: Sequence[int], trained_length: int) -> None:
    """Refused for a length that leaves less context than the tail itself."""
    least = 2 * tail_tokens(trained_length)
    if min(lengths) < least:
        raise Refused(f"--lengths {min(lengths)} is too short for a tail of {least // 2} tokens; measure from {least}")
    if trained_length not in lengths:
        raise Refused(f"--lengths leaves out the trained length {trained_length}, the in-window level; include it")


def scores(plan: EvalPlan, rows: JournalRows, further: Mapping[str, Sequence[int]] | None = None) -> xr.Dataset:
    """`tail_nll` (method, length, window) in nats a token and `passkey` (method, length, sample), 1 where found.

    rows: all of the plan's, and of each method at the lengths `further`, where other methods have NaN. The tail is M/4
    tokens, the same targets at every length.
    """
    setting, further = plan.setting, further or {}
    measured = {name: {*setting.lengths, *further.get(name, ())} for name in plan.methods}
    lengths = sorted(set().union(*measured.values()))
    nll, hits = (_values(rows, task, measured, lengths) for task in TASKS)
    return xr.Dataset(
        {
            "tail_nll": (("method", "length", "window"), nll, {"long_name": "tail NLL", "units": "nats/token"}),
            "passkey": (("method", "length", "sample"), hits, {"long_name": "passkey found", "units": "1"}),
        },
        coords={"method": list(plan.methods), "length": lengths},
        attrs={
            "tail": tail_tokens(setting.trained_length),
            "seed": setting.seed,
            "trained_length": setting.trained_length,
            "vocabulary": plan.config.vocab_size,
            "rotary": is_rotary(plan.config.model_type),
        },
    )


def _values(rows: JournalRows, task: str, measured: Mapping[str, set[int]], lengths: Sequence[int]) -> np.ndarray:
    """A task's scores (method, length, sample); NaN at the lengths that a method lacks."""
    samples = {
        (row, column): [score.value for score in scores_of(rows[task, name, length])]
        for row, (name, method_lengths) in enumerate(measured.items())
        for column, length in enumerate(lengths)
        if length in method_lengths
    }
    values = np.full((len(measured), len(lengths), len(next(iter(samples.values())))), np.nan)
    for index, cell in samples.items():
        values[index] = cell
    return values
