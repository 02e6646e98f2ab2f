"""Methods that squeeze longer texts into the trained window: slower positions, slower or no slow frequencies."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.methods.base import SCALED, SERVERS, Method
from mesa.plan import Constant, Plan, Position, Slowed


@dataclass(frozen=True, kw_only=True)
class PI(Method):
    """Divides all distances by a factor (Position Interpolation).

    Args:
        factor: s; default 4. None: prompt length over M, at least 1, fixed for a prompt and what is decoded after it.

    Examples:
        >>> mesa.distances(mesa.PI(trained_length=4, factor=2).plan(5))[-1].tolist()
        [2.0, 1.5, 1.0, 0.5, 0.0]
    """

    name = "pi"
    look = ("#6B8E00", "dashdot", "triangle-up")
    formula = "R = r / s"
    source = "Chen et al. 2023; transformers, rope_type='linear'"
    servers = SERVERS
    optional = ("factor",)
    factor: float = 4.0

    def _check(self) -> None:
        self._require(self.factor is None or self.factor >= 1, "factor", "is below 1")

    @property
    def cached_position(self) -> Position:
        """Every key's; none where it differs from prompt to prompt."""
        return Constant(0) if self.factor is None else Slowed(self.factor)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region."""
        prompt = length if prompt_length is None else prompt_length
        position = Slowed(self.factor or max(1.0, prompt / self.trained_length))
        region = self._causal(length, query_position=position, key_position=position)
        return Plan(length, (region,), by_prompt=self.factor is None)


BETA_FAST, BETA_SLOW = 32.0, 1.0
"""Rotations in M tokens: a pair of more keeps its frequency, one of fewer is interpolated."""


@dataclass(frozen=True, kw_only=True)
class YaRN(Method):
    """Divides slow rotary frequencies by a factor, keeps fast ones, and raises scores a little.

    Frequencies between 32 rotations and 1 in M tokens are mixed. Refused for models that scale frequencies already.

    Args:
        factor: s; default 4. Scores are multiplied by (0.1 ln s + 1)^2.

    Examples:
        >>> plan = mesa.YaRN(trained_length=256).plan(1024)
        >>> plan.frequency_scale(np.arange(4), 8, 1e4).round(3)
        array([1.   , 0.625, 0.25 , 0.25 ])
    """

    name = "yarn"
    look = ("#3F7F4F", "solid", "square")
    formula = (
        "R = r; inv_freq * (1 - ramp + ramp / s), ramp from 32 rotations in M tokens to 1; scores * (0.1 ln s + 1)^2"
    )
    source = "Peng et al. 2024, github.com/jquesnelle/yarn; transformers, rope_type='yarn'"
    servers = SERVERS
    needs_rotary = True
    needs_base = True
    factor: float = 4.0

    def _check(self) -> None:
        self._require(self.factor >= 1, "factor", "is below 1")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies and scaled scores."""
        grown = Constant((0.1 * math.log(self.factor) + 1) ** 2)

        def scale(number: Any, dims: int, base: float) -> Any:
            ramp = _ramp(number, dims, base, self.trained_length)
            return 1 - ramp + ramp / self.factor

        return Plan(length, (self._causal(length, query_scale=self._scale(grown)),), scale)


def _ramp(number: Any, dims: int, base: float, trained_length: int) -> Any:
    """0 up to the pair of 32 rotations, 1 from that of one on, straight between them."""
    low, high = (_pair_turning(rotations, dims, base, trained_length) for rotations in (BETA_FAST, BETA_SLOW))
    first, last = max(math.floor(low), 0), min(math.ceil(high), dims - 1)
    return ((number - first) / max(last - first, 0.001)).clip(0, 1)


def _pair_turning(rotations: float, dims: int, base: float, trained_length: int) -> float:
    """The number, from 0 and not rounded, of the pair that turns so often in M tokens."""
    return dims * math.log(trained_length / (2 * math.pi * rotations)) / (2 * math.log(base))


@dataclass(frozen=True, kw_only=True)
class CoPE(Method):
    """Tapers the slowest rotary frequencies to 0 by a half cosine (Clipped RoPE).

    The cosine runs over the frequencies' numbers, as in the authors' code; the paper writes it over their values.
    Refused for models that scale frequencies already.

    Args:
        clip: C, how many frequencies, at least 2. Default: all that turn less than once in M tokens.

    Examples:
        >>> plan = mesa.CoPE(trained_length=256, clip=3).plan(1024)
        >>> plan.frequency_scale(np.arange(4), 8, 1e4).round(3)
        array([1. , 1. , 0.5, 0. ])
    """

    name = "cope"
    look = ("#2F8F8B", "longdash", "square")
    formula = "R = r; the last C inv_freq * (1 + cos(pi j / (C - 1))) / 2, j = 0 .. C - 1"
    source = "Li et al. 2026, github.com/hrlics/CoPE"
    servers = SERVERS[:3]
    needs_rotary = True
    needs_base = True
    clip: int = SCALED

    def _check(self) -> None:
        self._require(self.clip is None or self.clip >= 2, "clip", "is below 2 pairs, which changes nothing")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies."""

        def scale(number: Any, dims: int, base: float) -> Any:
            pairs, clip = dims // 2, self.clip
            if clip is None:
                clip = pairs - math.floor(_pair_turning(1.0, dims, base, self.trained_length)) - 1
            clip = min(clip, pairs)
            return (1 + np.cos(math.pi * ((number - pairs + clip) / max(clip - 1, 1)).clip(0, 1))) / 2

        return Plan(length, (self._causal(length),), scale)
