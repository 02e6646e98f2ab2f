"""The model that is checked, with what its stock form computes, at the lengths of the check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mesa.checking.oracle import Positions
from mesa.checking.recorded_attention import AttentionCall, Calls, before_rotation, record_stock
from mesa.decoder import decoder_of, removed
from mesa.errors import Failed
from mesa.outside import cache_in
from mesa.support import is_rotary

ALLOWED = 8.0
"""How many times the effect of one more rounding two ways to compute the same may differ."""

STEPS = 6
"""Tokens that are decoded one by one."""

MOST_PRETENDED = 4096
"""The largest M that methods are made for while they are checked."""


class PromptSizes(NamedTuple):
    """A prompt of `prompt` tokens, and `length` with those decoded after it."""

    prompt: int
    length: int


@dataclass
class Stock:
    """What the stock model computes of a setting's tokens; of each attention call, how positions enter it."""

    logits: Tensor
    states: tuple[Tensor, ...]
    allowed: float
    allowed_states: list[float]
    calls: Calls = field(default_factory=Calls)
    unrotated: Sequence[AttentionCall] = ()
    positions: list[Positions] = field(default_factory=list)


@dataclass
class Subject:
    """A model, its tokenizer, and the M that methods are made for: one at which a short pass reaches beyond it."""

    model: Any
    tokenizer: Any
    pretended: int
    stock: dict[PromptSizes, Stock] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[PromptSizes, PromptSizes]:
        """A prompt short of M that is decoded across it, and one beyond it."""
        half, beyond = STEPS // 2, 3 * self.pretended
        return PromptSizes(self.pretended - half, self.pretended + half), PromptSizes(beyond - STEPS, beyond)

    def ids(self, length: int, row: int = 0) -> Tensor:
        """Random tokens (1, length) of the vocabulary, the same ones at every length."""
        draw = torch.Generator().manual_seed(row)
        most = min(self.model.config.vocab_size, getattr(self.tokenizer, "vocab_size", 0) or 2**31)
        return torch.randint(0, most, (1, length), generator=draw).to(self.model.device)

    def run_stock(self, setting: PromptSizes) -> Stock:
        """Runs the stock model on a setting's tokens, and once more with its rounding disturbed."""
        ids = self.ids(setting.length)
        try:
            plain = run(self.model, ids, output_hidden_states=True)
        except (RuntimeError, IndexError) as error:
            why = f"the stock model itself cannot read {setting.length} tokens ({error}); use a smaller --pretended"
            raise Failed(why) from error
        with rounding_perturbed(self.model):
            off = run(self.model, ids, output_hidden_states=True)
        pairs = zip((off.logits, *off.hidden_states), (plain.logits, *plain.hidden_states), strict=True)
        allowed, *allowed_states = (ALLOWED * max_difference(*pair) for pair in pairs)
        self.stock[setting] = Stock(plain.logits, plain.hidden_states, allowed, allowed_states)
        return self.stock[setting]

    def record_stock(self, setting: PromptSizes) -> None:
        """Notes a rotary stock model's attention calls; Refused where no method can be attached."""
        stock, ids = self.stock[setting], self.ids(setting.length)
        if is_rotary(self.model.config.model_type):
            with record_stock(self.model) as stock.calls:
                run(self.model, ids)
            stock.unrotated = before_rotation(self.model, ids, stock.calls)
            stock.positions = stock.calls.positions(decoder_of(self.model))


@torch.no_grad()
def run(model: Any, ids: Tensor, **kwargs: Any) -> Any:
    """The model's output for token ids; without a cache unless one is passed."""
    return model(ids, use_cache=cache_in(kwargs) is not None, **kwargs)


def max_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest absolute difference; NaN where either holds one."""
    return float((ours.float() - theirs.float()).abs().max())


def array(states: Tensor) -> np.ndarray:
    """The states in float64."""
    return states.detach().double().cpu().numpy()


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
    with removed([leaf.register_forward_hook(perturb) for leaf in leaves]):
        yield


def perturbed(states: np.ndarray, dtype: torch.dtype, seed: int) -> np.ndarray:
    """Float64 states off by one unit in the last place of `dtype`, up or down at random."""
    sign = np.random.default_rng(seed).choice((-1.0, 1.0), states.shape)
    return states * (1 + sign * unit(dtype))
