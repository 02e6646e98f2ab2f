"""The measured failure of a probe run: evaluation cells of tail likelihood and passkey retrieval, by length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from mesa.support import is_rotary
from probe.cells.cell import CellsLost
from probe.cells.pool import Pool
from probe.evaluation.journal import Journal
from probe.evaluation.plan import EvalPlan
from probe.evaluation.run import EvalCell, missing_cells, run_cells
from probe.tasks.finding import PASSKEY
from probe.tasks.likelihood import TAIL, tail_tokens

JOURNAL = "measured.jsonl"
TASKS = (TAIL.name, PASSKEY.name)
MULTIPLES = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Lengths measured by default, in trained windows."""


def default_lengths(trained_length: int, longest: int) -> list[int]:
    """`MULTIPLES` of M that hold a tail and its context, up to `longest` tokens."""
    lengths = [int(trained_length * multiple) for multiple in MULTIPLES if trained_length * multiple <= longest]
    return [length for length in lengths if length >= 2 * tail_tokens(trained_length)]


def check_lengths(lengths: Sequence[int], trained_length: int) -> None:
    """ValueError for a length that leaves less context than the tail itself."""
    least = 2 * tail_tokens(trained_length)
    if min(lengths) < least:
        raise ValueError(
            f"--lengths {min(lengths)} is too short for a tail of {least // 2} tokens; measure from {least}"
        )
    if trained_length not in lengths:
        raise ValueError(f"--lengths leaves out the trained length {trained_length}, the in-window level; include it")


def measure(made: EvalPlan, pool: Pool, journal: Journal, cells: Sequence[EvalCell] | None = None) -> None:
    """Runs `cells`, or those of the plan that the journal lacks.

    Raises ValueError for a likelihood that is no number, RuntimeError for a cell that does not fit in memory, CellsLost
    for those that no worker could finish.
    """
    missing = missing_cells(made, journal) if cells is None else cells
    left = run_cells(made, pool, missing, journal, what="measuring failure", check=_check)
    if left.failed:
        task, name, length = left.failed[0]
        said = f"no worker could finish {task} under {name} at {length} tokens; the same command tries again"
        raise CellsLost(said, left.failed)


def scores(made: EvalPlan, journal: Journal, further: Mapping[str, Sequence[int]] | None = None) -> xr.Dataset:
    """`tail_nll` (method, length, window) in nats a token and `passkey` (method, length, sample), 1 where found.

    The journal has every cell of the plan, and of each method at the lengths `further`, where others have NaN. The
    tail is M/4 tokens, the same targets at every length.
    """
    setting, asked = made.setting, further or {}
    by_method = {name: {*setting.lengths, *asked.get(name, ())} for name in made.methods}
    lengths = sorted(set().union(*by_method.values()))
    nll, hits = (_values(journal, task, by_method, lengths) for task in TASKS)
    return xr.Dataset(
        {
            "tail_nll": (("method", "length", "window"), nll, {"long_name": "tail NLL", "units": "nats/token"}),
            "passkey": (("method", "length", "sample"), hits, {"long_name": "passkey found", "units": "1"}),
        },
        coords={"method": list(made.methods), "length": lengths},
        attrs={
            "tail": tail_tokens(setting.trained_length),
            "seed": setting.seed,
            "trained_length": setting.trained_length,
            "vocabulary": made.config.vocab_size,
            "rotary": is_rotary(made.config.model_type),
        },
    )


def _values(journal: Journal, task: str, by_method: Mapping[str, set[int]], lengths: Sequence[int]) -> np.ndarray:
    """What a task's scores say (method, length, sample); NaN at the lengths that a method lacks."""
    cells = {
        (row, column): [score["value"] for score in journal.rows[task, name, length]["scores"]]
        for row, (name, own) in enumerate(by_method.items())
        for column, length in enumerate(lengths)
        if length in own
    }
    values = np.full((len(by_method), len(lengths), len(next(iter(cells.values())))), np.nan)
    for place, found in cells.items():
        values[place] = found
    return values


def _check(cell: tuple[str, str, int], row: Mapping[str, Any] | None) -> None:
    task, name, length = cell
    if row is None:
        raise RuntimeError(f"{task} under {name} does not fit in memory at {length} tokens; shorten --lengths")
    if any(math.isnan(score["value"]) for score in row["scores"]):
        raise ValueError(
            f"the tail NLL under {name} at {length} tokens is not a number; run the model with a wider "
            "--dtype (float32, float64)"
        )
