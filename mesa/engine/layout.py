"""Where a head has its rotary pairs, and what turns them, in plain operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RotaryLayout:
    """Where a head has its rotary pairs: from dim `begin` on, `pairs` of them, as two halves or side by side.

    backwards: whether they turn the other way round, queries and keys alike.
    """

    begin: int
    pairs: int
    interleaved: bool = False
    backwards: bool = False

    def turn(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`states` (.., token, dim) with each pair turned; cos, sin: as `spread`. Other dims have no position."""
        begin, end = self.begin, self.begin + 2 * self.pairs
        whole = end - begin == states.shape[-1]
        pairs = states if whole else states[..., begin:end]
        other = pairs.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if self.interleaved else pairs.roll(self.pairs, -1)
        turned = (pairs * cos).addcmul_(other, sin)
        if whole:
            return turned
        states = states.expand(*turned.shape[:-1], -1)
        return torch.cat([states[..., :begin], turned, states[..., end:]], -1)

    def spread(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (token, pair) as (token, rotary dim): what each dim is multiplied by, and its pair's other."""
        sin = -sin if self.backwards else sin
        both = (cos, cos), (-sin, sin)
        cos, sin = (torch.stack(part, -1).flatten(-2) if self.interleaved else torch.cat(part, -1) for part in both)
        return cos, sin


def turned(
    states: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    factors: Tensor | None,
    weight: Tensor | None,
    layout: RotaryLayout,
) -> Tensor:
    """States turned by cos and sin (token, pair), times a weight (dim,), times factors (token, 1); None for neither."""
    dtype = states.dtype
    if cos is not None and sin is not None and layout is not None:
        states = layout.turn(states, *layout.spread(cos, sin))
    states = states if weight is None else states * weight
    return (states if factors is None else states * factors).to(dtype)
