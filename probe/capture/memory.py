"""Memory in bytes that a pass or a prompt takes in addition to the weights, and that is free; a pass's operations."""

from collections.abc import Mapping
from typing import Any

import torch

from mesa.device import free_bytes
from mesa.support import head_sizes

_TOKEN_BYTES = 40
"""Of a token in a prompt: a Python integer and its place in a list, and its text while it is tokenized."""


def _intermediate(config: Any) -> int:
    """The size of an MLP's inner layer; the largest, where layers differ."""
    size = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return max(size) if isinstance(size, list | tuple) else size


def peak_bytes(config: Any, length: int, bytes_a_number: int, kept_bytes: int) -> int:
    """Estimate of the memory one captured pass takes in addition to the weights.

    Counted for each token: the residual stream and its normed copy, the MLP's three intermediates, queries, keys and
    values raw and rotated, and one attention output being merged in float32.
    """
    hidden, (heads, _, width), intermediate = config.hidden_size, head_sizes(config), _intermediate(config)
    attention = heads * width
    token_bytes = bytes_a_number * (4 * hidden + 3 * intermediate + 8 * attention) + 3 * 4 * attention
    return length * token_bytes + kept_bytes


def pass_flops(config: Any, length: int) -> float:
    """Estimate of the floating-point operations of one pass: of a dense model, without the output layer."""
    hidden, (heads, _, width), intermediate = config.hidden_size, head_sizes(config), _intermediate(config)
    attention = heads * width
    weights = 4 * hidden * attention + 3 * hidden * intermediate
    return 2.0 * config.num_hidden_layers * length * (weights + 2 * attention * length)


def prompt_bytes(config: Any, tokens: int, itemsize: int) -> int:
    """Rough memory of a prompt, with `itemsize` bytes a number: its key-value cache and one layer's states."""
    hidden, (_, key_heads, width) = config.hidden_size, head_sizes(config)
    return tokens * (2 * config.num_hidden_layers * key_heads * width + 12 * hidden) * itemsize


def scores_bytes(config: Any, length: int, executor: str) -> int:
    """Memory of a layer's scores (head, query, key) of a prompt and what is computed from them; 0 if 'fused'."""
    return 3 * 4 * head_sizes(config)[0] * length**2 if executor == "dense" else 0


def check_prompts(length: int, samples: int, option: str = "--lengths") -> None:
    """MemoryError, before any is drawn, when so many prompts of `length` tokens cannot be held on this machine."""
    needed, free = length * samples * _TOKEN_BYTES, free_bytes()
    if needed > free:
        raise MemoryError(
            f"{option} {length}: {samples} prompt(s) of so many tokens take about {needed / 2**30:,.1f} GiB, "
            f"{free / 2**30:,.1f} GiB are free; take a shorter length or fewer prompts"
        )


def check_beside(needed: int, load: Mapping[str, Any], remedy: str) -> None:
    """MemoryError with a remedy where `needed` bytes are not free besides weights that `load` places.

    A device map places them itself, and may leave room on several devices.
    """
    if load.get("device_map"):
        return
    free = free_bytes(load.get("device") or "cpu")
    if needed > free:
        raise MemoryError(
            f"about {needed / 2**30:.1f} GiB are needed besides the weights, {free / 2**30:.1f} GiB are free; {remedy}"
        )


def check_memory(needed: int, length: str, device: torch.device | str = "cpu") -> None:
    """MemoryError when `needed` bytes are more than what is free, before any work. length: as '--length 512'."""
    free = free_bytes(device)
    if needed > free:
        raise MemoryError(
            f"{length} needs about {needed / 2**30:z.1f} GiB, {free / 2**30:z.1f} GiB are free; "
            f"shorten {length.split()[0]} or keep fewer --layers, --dims, --positions"
        )
