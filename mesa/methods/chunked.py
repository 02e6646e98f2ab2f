"""Mesa-Extrapolation: chunked triangular attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mesa.methods.base import SCALED, Method
from mesa.methods.woven import leaky, rerope, stair
from mesa.plan import Constant, Plan, Position, Region, Slowed, Stepped, own_index


@dataclass(frozen=True, kw_only=True)
class MesaExtrapolation(Method):
    """Chunked triangular attention, Stair PE in the last chunk and in decoding (paper section 4, algorithm 1).

    first, last: lengths F and L of the first and the least last chunk; split_threshold: M_max of DynamicSplit.
    variant: 'exact' (every query of the last chunk follows Stair), 'aligned' (the paper: its last query does, the
    others use differences of those positions) or 'reference' (the authors' code, with `headroom` tokens kept for
    the answer; it ignores `window`).
    weave: 'stair', or for the paper's ablation 'rerope' or 'leaky-rerope' (slowed by `width`) in Stair PE's place.
    """

    name = "mesa"
    formula = "chunks: own chunk and the first, R = r; last chunk and decoding: Stair PE over all keys"
    source = "Ma et al. 2024, section 4; variant 'reference': github.com/soacker/Mesa-Extrapolation"
    window: int = SCALED
    width: int = 50
    first: int = SCALED
    last: int = SCALED
    split_threshold: int = SCALED
    variant: str = "exact"
    weave: str = "stair"
    headroom: int = 50
    log_n: bool = True

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        ratio = self.trained_length / 4096
        for field, paper in {"window": 512, "first": 100, "last": 512, "split_threshold": 200}.items():
            self._fill(field, paper * ratio)
        self._below_trained_length("window")
        self._below_trained_length("first")
        self._below_trained_length("last")
        complaint = f"plus last={self.last} is not below the trained length {self.trained_length}"
        self._require(self.first + self.last < self.trained_length, "first", complaint)
        self._require(self.width >= 1, "width", "is below 1")
        self._require(self.split_threshold >= 1, "split_threshold", "is below 1")
        self._require(self.headroom >= 0, "headroom", "is below 0")
        self._require(self.variant in ("exact", "aligned", "reference"), "variant", "is not exact, aligned, reference")
        self._require(self.weave in ("stair", "rerope", "leaky-rerope"), "weave", "is not stair, rerope, leaky-rerope")
        self._require(
            self.weave == "stair" or self.variant == "exact", "weave", f"goes with variant exact, not {self.variant}"
        )

    def chunks(self, prompt_length: int) -> list[int]:
        """Where the chunks of a prompt begin and end: [0, F, ..., begin of the last chunk, prompt_length]."""
        first, trained, total = self.first, self.trained_length, prompt_length
        if self.variant == "reference":
            return self._reference_chunks(prompt_length)[0]
        if total <= trained:
            return [0, total]
        middle = total - self.last - first
        count, rest = divmod(middle, trained - first)
        width = trained - first
        if rest >= self.split_threshold:
            count += 1
            width = middle // count
        return [0, first, *(first + width * (n + 1) for n in range(count)), total]

    def _reference_chunks(self, prompt_length: int) -> tuple[list[int], int]:
        """Chunk borders and chunk width of the authors' code."""
        room = self.trained_length - 2 * self.first
        count, rest = divmod(prompt_length + self.headroom - self.last - self.first, room)
        width = room if rest < self.split_threshold else (room * count + rest) // (count + 1)
        if prompt_length + self.headroom <= self.trained_length:
            return [0, prompt_length], width
        borders = [0, self.first]
        while borders[-1] + width < prompt_length:
            borders.append(borders[-1] + width)
        return [*borders, prompt_length], width

    @property
    def cached_position(self) -> Position:
        """The far keys' in decoding; the reference variant moves them with every token."""
        if self.variant == "reference":
            return own_index
        return {"stair": Stepped(self.width), "rerope": Constant(0), "leaky-rerope": Slowed(self.width)}[self.weave]

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """First chunk, middle chunks with the first chunk before each, last chunk and decoded tokens with Stair."""
        prompt = length if prompt_length is None else prompt_length
        borders = self.chunks(prompt)
        if len(borders) == 2:  # no split: plain attention up to M
            plain = min(length, self.trained_length)
            return Plan(length, (Region((0, plain), (0, plain)), *self._last(plain, plain, length)))
        regions = [Region((0, borders[1]), (0, borders[1]))]
        for begin, end in pairwise(borders[1:-1]):
            shift = begin - borders[1]
            regions.append(Region((begin, end), (begin, end)))
            regions.append(Region((begin, end), (0, borders[1]), key_position=Stepped(1, shift)))
        return Plan(length, (*regions, *self._last(borders[-2], prompt, length)))

    def _last(self, begin: int, prompt: int, length: int) -> tuple[Region, ...]:
        """The regions of the queries from `begin` on."""
        if begin >= length:
            return ()
        if self.variant == "reference":
            width = self._reference_chunks(prompt)[1]
            position = _reference_position(max(length, prompt), self.trained_length, width, self.width)
            return (Region((begin, length), (0, length), position, position, log_n=self._log_n),)
        if self.variant == "exact":
            return self._woven((begin, length), length)
        position = _aligned_position(prompt - 1, self.window, self.width)
        aligned = Region((begin, min(prompt, length)), (0, prompt), position, position, log_n=self._log_n)
        return (aligned, *self._woven((min(prompt, length), length), length))

    def _woven(self, queries: tuple[int, int], length: int) -> tuple[Region, ...]:
        """The regions of queries that see all keys."""
        if self.weave == "rerope":
            return rerope(queries, length, self.window, self._log_n)
        if self.weave == "leaky-rerope":
            return leaky(queries, length, self.window, self.width, self._log_n)
        return stair(queries, length, self.window, self.width, self._log_n)


def _aligned_position(last: int, window: int, width: int) -> Callable[[Any], Any]:
    """Positions for which token `last` sees every other one at its Stair distance."""

    def position(index: Any) -> Any:
        distance = last - index
        stair = window + (distance - window + width - 1) // width
        return last - ((distance <= window) * distance + (distance > window) * stair)

    return position


def _reference_position(length: int, trained_length: int, chunk: int, width: int) -> Callable[[Any], Any]:
    """The authors' stair(n): own index from one boundary on, width-fold slower below it."""
    if length <= trained_length:
        return own_index
    boundary = length - ((length - 1) % chunk)

    def position(index: Any) -> Any:
        slow = boundary - 1 - (boundary - 1 - index) // width
        return (index >= boundary) * index + (index < boundary) * slow

    return position
