"""The dense executor with its scores and its weights handed out on the way, to be looked at or edited."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mesa.engine.attention import scored
from mesa.engine.schedule import Schedule


class ScoreHooks(NamedTuple):
    """What is called with (batch, head, query, key) and gives it back, edited or not.

    scores: before the softmax; masked pairs hold the dtype's lowest number. pattern: after it.
    """

    scores: Callable[[Tensor], Tensor]
    pattern: Callable[[Tensor], Tensor]


def scores_only(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Nothing of use in the output's place, and scores in the weights'; arguments as an executor's."""
    return query, scored(schedule, query, key, scale)


def hooked_attention(hooks: ScoreHooks, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention output and weights from scores (-inf: masked), through the hooks; zeros for queries without keys."""
    masked = scores.isneginf()
    fully_masked = masked.all(-1, keepdim=True)
    scores = hooks.scores(scores.masked_fill(masked, torch.finfo(scores.dtype).min))
    weights = scores.softmax(-1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)
    weights = hooks.pattern(weights.masked_fill(fully_masked, 0.0))
    return weights @ value.repeat_interleave(weights.shape[1] // value.shape[1], 1), weights
