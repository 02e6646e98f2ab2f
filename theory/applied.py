"""What a construction's Hugging Face model does under a shipped method, by the shipped executors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mesa.engine.apply import applied
from mesa.methods.base import Method
from theory.parts import POSITION


def tokens(model: PreTrainedModel, length: int, seed: int = 0) -> Tensor:
    """<bos> and random tokens, (1, length)."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(1, model.config.vocab_size, (1, length), generator=generator)
    found[:, 0] = 0
    return found


def states(model: PreTrainedModel, method: Method, length: int, executor: str = "fused") -> tuple[Tensor, Tensor]:
    """What the last layer is given, and what its heads put out, (position, model size) each, of a Llama."""
    decoder: Any = model.get_decoder()
    last = decoder.layers[-1]
    kept: dict[str, Tensor] = {}

    def entering(module: Any, args: Any, kwargs: Any) -> None:
        kept["in"] = args[0] if args else kwargs["hidden_states"]

    def leaving(module: Any, args: Any, output: Tensor) -> None:
        kept["out"] = output

    hooks = [
        last.register_forward_pre_hook(entering, with_kwargs=True),
        last.self_attn.o_proj.register_forward_hook(leaving),
    ]
    try:
        with torch.no_grad(), applied(model, method, executor=executor):
            decoder(tokens(model, length), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return kept["in"][0], kept["out"][0]


def measured(model: PreTrainedModel, method: Method, length: int, executor: str = "fused") -> tuple[np.ndarray, ...]:
    """Recovered positions and o_t at t = 1 .. length, float64."""
    found = states(model, method, length, executor)
    return tuple(each[:, POSITION].double().numpy() for each in found)
