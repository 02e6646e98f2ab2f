"""Memory in bytes that a pass or a prompt takes in addition to the weights, and that is free; a pass's operations."""

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch

from mesa.device import free_bytes
from mesa.models import bytes_a_number, chosen_dtype, model_class
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


_WITHOUT_KEYS = ("conv", "mlp", "moe")
"""Of layer_types: those that hold nothing for each token.

Others count in full. A sliding layer's cache is a view of all keys of a prompt that is one pass, and keeps them; what a
recurrent layer computes of a prompt takes at least as much as keys would.
"""


def prompt_bytes(config: Any, tokens: int, itemsize: int) -> int:
    """Rough memory of a prompt, with `itemsize` bytes a number: its key-value cache and one layer's states."""
    hidden, (_, key_heads, width) = config.hidden_size, head_sizes(config)
    kinds = getattr(config, "layer_types", None) or ()
    layers = config.num_hidden_layers - sum(kind in _WITHOUT_KEYS for kind in kinds)
    return tokens * (2 * layers * key_heads * width + 12 * hidden) * itemsize


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


def weights_bytes(config: Any, load: Mapping[str, Any]) -> int:
    """Memory of all weights in the dtype that `load` gives them; loads none."""
    with torch.device("meta"):
        trusted = bool(load.get("trust_remote_code"))
        model = model_class().from_config(deepcopy(config), trust_remote_code=trusted)
    return sum(parameter.numel() for parameter in model.parameters()) * bytes_a_number(config, load)


def placed_bytes(config: Any, load: Mapping[str, Any]) -> int:
    """Memory that loading takes on the device; 0 where it cannot be known, or a device map places the model."""
    on_cpu = str(load.get("device") or "cpu").startswith("cpu")
    is_known = on_cpu or load.get("dtype") or getattr(config, "dtype", None)  # else it is in the files alone
    if is_known and not load.get("device_map") and not getattr(config, "quantization_config", None):
        with suppress(Exception):  # whatever code that comes with a model raises, which loading then says
            return weights_bytes(config, load)
    return 0


def check_weights(config: Any, load: Mapping[str, Any]) -> int:
    """As `placed_bytes`, before the weights are loaded; MemoryError where so much is not free."""
    weights, free = placed_bytes(config, load), free_bytes(load.get("device") or "cpu")
    if weights > free:
        raise MemoryError(
            f"the weights take about {_size(weights)} in {chosen_dtype(config, load)}, {_size(free)} are free; "
            "take a smaller model or a narrower --dtype"
        )
    return weights


def check_beside(needed: int, config: Any, load: Mapping[str, Any], remedy: str) -> None:
    """MemoryError with a remedy where `needed` bytes are not free besides the weights, which are not loaded yet.

    A device map places them itself, and may leave room on several devices.
    """
    if load.get("device_map"):
        return
    weights, free = check_weights(config, load), free_bytes(load.get("device") or "cpu")
    if needed + weights > free:
        raise MemoryError(
            f"about {_size(needed)} are needed besides the weights ({_size(weights)}), {_size(free)} are free; {remedy}"
        )


def check_memory(
    needed: int, length: int, device: torch.device | str = "cpu", weights: int = 0, option: str = "--length"
) -> None:
    """MemoryError when `needed` bytes are not free besides the weights, before any work.

    option: what sets the length.
    """
    free = free_bytes(device)
    if needed + weights > free:
        besides = f" besides the weights ({_size(weights)})" if weights else ""
        fewer = " or keep fewer --layers, --dims, --positions" if option == "--length" else ""
        raise MemoryError(
            f"{option} {length} needs about {_size(needed)}{besides}, {_size(free)} are free; shorten {option}{fewer}"
        )


def _size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:z.1f} GiB" if count >= 2**30 else f"{count / 2**20:z.0f} MiB"
