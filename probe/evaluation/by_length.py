"""Measures, for each method and length, what a model really does: tail likelihood and passkey retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

import mesa
from mesa.methods import Method
from mesa.models import Loaded
from probe.capture.memory import free_bytes, prompt_bytes
from probe.tasks import score
from probe.tasks.retrieval import Prompt, first_ids

MULTIPLES = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Lengths measured by default, in trained windows."""


def default_lengths(trained_length: int, longest: int) -> list[int]:
    """`MULTIPLES` of M up to `longest` tokens."""
    return [int(trained_length * multiple) for multiple in MULTIPLES if trained_length * multiple <= longest]


def tail_tokens(trained_length: int) -> int:
    """Tokens over which the tail likelihood is taken: a quarter of the trained window."""
    return max(1, trained_length // 4)


def check_lengths(lengths: Sequence[int], trained_length: int) -> None:
    """ValueError for a length that leaves less context than the tail itself."""
    least = 2 * tail_tokens(trained_length)
    if min(lengths) < least:
        raise ValueError(
            f"--lengths {min(lengths)} is too short for a tail of {least // 2} tokens; measure from {least}"
        )
    if trained_length not in lengths:
        raise ValueError(f"--lengths leaves out the trained length {trained_length}, the in-window level; include it")


def _batch(model: Any, length: int) -> int:
    """How many prompts are decoded at once: up to 8 that take half of the free memory."""
    needed = prompt_bytes(model.config, length, model.dtype.itemsize)
    return max(1, min(8, free_bytes(model.device) // 2 // needed))


def evaluate(
    loaded: Loaded,
    methods: Mapping[str, Method],
    lengths: Sequence[int],
    samples: int,
    seed: int,
    documents: Sequence[np.ndarray],
    executor: str = "fused",
) -> xr.Dataset:
    """`tail_nll` (method, length, window) in nats a token and `passkey` (method, length, sample), 1 where found.

    `samples` passkey prompts a length and as many text windows, the same for every method. The tail is M/4 tokens,
    the same targets at every length. Raises ValueError, before any pass, for a length that a task cannot be built at.
    """
    tokenizer = loaded.tokenizer
    trained_length = next(iter(methods.values())).trained_length
    tail = tail_tokens(trained_length)
    first = first_ids(tokenizer)
    windows = score.text_windows(documents, max(lengths), samples)
    asked: dict[int, list[Prompt]] = {
        length: score.prompts("passkey", tokenizer, length, samples, seed) for length in lengths
    }
    shape = (len(methods), len(lengths))
    nll, hits = np.empty((*shape, len(windows))), np.empty((*shape, samples))
    with tqdm(
        total=len(methods) * len(lengths) * (samples + len(windows)), desc="measuring failure", unit="prompt"
    ) as bar:
        for row, method in enumerate(methods.values()):
            with mesa.applied(loaded.model, method, executor=executor):
                for column, length in enumerate(lengths):
                    nll[row, column] = score.tail_nll(loaded.model, windows, first, length, tail, bar.update)
                    if np.isnan(nll[row, column]).any():
                        raise ValueError(
                            f"the tail NLL under {method.name} at {length} tokens is not a number; run the model with "
                            "--dtype float32"
                        )
                    hits[row, column] = score.retrieval_hits(
                        loaded.model, tokenizer, asked[length], bar.update, _batch(loaded.model, length)
                    )
    return xr.Dataset(
        {
            "tail_nll": (("method", "length", "window"), nll, {"long_name": "tail NLL", "units": "nats/token"}),
            "passkey": (("method", "length", "sample"), hits, {"long_name": "passkey found", "units": "1"}),
        },
        coords={"method": list(methods), "length": list(lengths)},
        attrs={"tail": tail, "seed": seed, "trained_length": trained_length},
    )
