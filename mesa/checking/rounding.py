"""What rounding in a model's dtype makes of its results: the measure of what differences a check allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ALLOWED = 8.0
"""How many times the effect of one more rounding two ways to compute the same may differ."""


def unit(dtype: torch.dtype) -> float:
    """One unit in the last place of 1; of float64 that of float32, in which rotary's cos and sin are computed."""
    return torch.finfo(torch.float32 if dtype == torch.float64 else dtype).eps


@contextmanager
def rounding_perturbed(model: nn.Module) -> Iterator[None]:
    """Every parameterised module's output is off by one unit in the last place of its dtype, up or down at random."""
    draw = torch.Generator().manual_seed(0)

    def perturb(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        sign = torch.randint(0, 2, output.shape, generator=draw, dtype=torch.int8).to(output.device) * 2 - 1
        return output + output * (sign * unit(output.dtype)).to(output.dtype)

    leaves = [leaf for leaf in model.modules() if not [*leaf.children()] and [*leaf.parameters(recurse=False)]]
    handles = [leaf.register_forward_hook(perturb) for leaf in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def perturbed(states: np.ndarray, dtype: torch.dtype, seed: int) -> np.ndarray:
    """Float64 states off by one unit in the last place of `dtype`, up or down at random."""
    sign = np.random.default_rng(seed).choice((-1.0, 1.0), states.shape)
    return states * (1 + sign * unit(dtype))
