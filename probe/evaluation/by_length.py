"""The measured failure of a probe run: evaluation cells of tail likelihood and passkey retrieval, by length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from mesa.models import Loaded
from probe.evaluation.journal import Journal
from probe.evaluation.plan import EvalPlan
from probe.evaluation.run import missing_cells, run_cells
from probe.tasks.finding import PASSKEY
from probe.tasks.likelihood import TAIL, tail_tokens

JOURNAL = "measured.jsonl"
TASKS = (TAIL.name, PASSKEY.name)
MULTIPLES = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Lengths measured by default, in trained windows."""


def default_lengths(trained_length: int, longest: int) -> list[int]:
    """`MULTIPLES` of M up to `longest` tokens."""
    return [int(trained_length * multiple) for multiple in MULTIPLES if trained_length * multiple <= longest]


def check_lengths(lengths: Sequence[int], trained_length: int) -> None:
    """ValueError for a length that leaves less context than the tail itself."""
    least = 2 * tail_tokens(trained_length)
    if min(lengths) < least:
        raise ValueError(
            f"--lengths {min(lengths)} is too short for a tail of {least // 2} tokens; measure from {least}"
        )
    if trained_length not in lengths:
        raise ValueError(f"--lengths leaves out the trained length {trained_length}, the in-window level; include it")


def measure(made: EvalPlan, loaded: Loaded, journal: Journal) -> None:
    """Runs the cells that the journal lacks.

    Raises ValueError for a likelihood that is no number, RuntimeError for a cell that does not fit in memory.
    """
    run_cells(made, loaded, missing_cells(made, journal), journal, what="measuring failure", check=_check)


def scores(made: EvalPlan, journal: Journal) -> xr.Dataset:
    """`tail_nll` (method, length, window) in nats a token and `passkey` (method, length, sample), 1 where found.

    The journal has every cell of the plan. The tail is M/4 tokens, the same targets at every length.
    """
    nll, hits = (
        np.array(
            [
                [[score["value"] for score in journal.rows[task, name, length]["scores"]] for length in _lengths(made)]
                for name in made.methods
            ]
        )
        for task in TASKS
    )
    setting = made.setting
    return xr.Dataset(
        {
            "tail_nll": (("method", "length", "window"), nll, {"long_name": "tail NLL", "units": "nats/token"}),
            "passkey": (("method", "length", "sample"), hits, {"long_name": "passkey found", "units": "1"}),
        },
        coords={"method": list(made.methods), "length": _lengths(made)},
        attrs={
            "tail": tail_tokens(setting.trained_length),
            "seed": setting.seed,
            "trained_length": setting.trained_length,
            "vocabulary": made.config.vocab_size,
        },
    )


def _lengths(made: EvalPlan) -> list[int]:
    return list(made.setting.lengths)


def _check(cell: tuple[str, str, int], row: Mapping[str, Any] | None) -> None:
    task, name, length = cell
    if row is None:
        raise RuntimeError(f"{task} under {name} does not fit in memory at {length} tokens; shorten --lengths")
    if any(math.isnan(score["value"]) for score in row["scores"]):
        raise ValueError(
            f"the tail NLL under {name} at {length} tokens is not a number; run the model with --dtype float32"
        )
