"""Dual Chunk Attention: positions within chunks, whose differences never reach the trained window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.methods.base import SCALED, Method
from mesa.plan import Constant, Plan, Position, Region, Scale, capped


@dataclass(frozen=True)
class Wrapped:
    """`shift` + index % `period`, at most `most` where that is passed."""

    period: int
    shift: int = 0
    most: int | None = None

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        place = self.shift + index % self.period
        return place if self.most is None else capped(place, self.most)


@dataclass(frozen=True)
class StepScale:
    """0.05 ln(n / M) + 1 for n > M, n the tokens at the step of each token: the prompt's, or those up to itself."""

    trained_length: int
    prompt: int

    def __call__(self, index: Any) -> Any:
        """The factors, in the shape of `index`."""
        tokens = np.maximum(np.where(index < self.prompt, self.prompt, index + 1), self.trained_length)
        return 0.05 * np.log(tokens / self.trained_length) + 1


@dataclass(frozen=True, kw_only=True)
class DCA(Method):
    """Keeps distances exact within a chunk, and caps them between chunks (Dual Chunk Attention).

    Args:
        chunk: s, tokens of a chunk; default 5 M/8, the public code's (the paper: 3 M/4).
        most: c, the cap on positions of queries, in tokens; default 3 M/4, the public code's (the paper: M - 1).
        mscale: Whether queries and keys grow by 0.05 ln(n / M) + 1 at n > M tokens, as in the public code, not in the
            paper; default False.

    Examples:
        >>> method = mesa.DCA(trained_length=8, chunk=2, most=5)
        >>> mesa.distances(method.plan(6))[-1].tolist()
        [3, 2, 3, 2, 1, 0]
    """

    name = "dca"
    look = ("#8E5BB0", "longdash", "circle")
    formula = "R = r in a chunk of s; min(t % s + s, c) - i % s to the one before; min(2s - 1, c) - i % s beyond"
    source = "An et al. 2024, github.com/HKUNLP/ChunkLlama"
    servers = ("SGLang",)
    chunk: int = SCALED
    most: int = SCALED
    mscale: bool = False

    def _check(self) -> None:
        trained = self.trained_length
        self._below_trained_length("chunk", 3 * trained // 4 - trained // 8)
        self._below_trained_length("most", 3 * trained // 4)
        self._require(self.most >= self.chunk, "most", f"is below chunk={self.chunk}")

    @property
    def cached_position(self) -> Position:
        """Every key's."""
        return Wrapped(self.chunk)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """For each chunk of queries: itself, the chunk before it, all before that."""
        prompt = length if prompt_length is None else prompt_length
        size, key = self.chunk, Wrapped(self.chunk)
        step: Scale | None = StepScale(self.trained_length, prompt) if self.mscale else None
        scales = {"query_scale": self._scale(step), "key_scale": step}
        regions = []
        for begin in range(0, length, size):
            queries = (begin, min(begin + size, length))
            regions.append(Region(queries, queries, key, key, **scales))
            if begin >= size:
                near = Wrapped(size, size, self.most)
                regions.append(Region(queries, (begin - size, begin), near, key, **scales))
            if begin > size:
                far = Constant(min(2 * size - 1, self.most))
                regions.append(Region(queries, (0, begin - size), far, key, **scales))
        return Plan(length, tuple(regions), by_prompt=self.mscale)
