"""Plans: which query sees which key, and which positions both are passed. Integers and predicates, no tensors.

Tokens count from 0. `t` is a query's index, `i` a key's, `t - i >= 0` their distance, all in tokens. Every function
of positions is written with plain operators, so that it serves Python ints, numpy arrays and torch tensors alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from mesa.errors import Refused

Position = Callable[[Any], Any]
"""Maps token indices to the positions that rotary embedding is passed for them."""


Scale = Callable[[Any], Any]
"""Maps token indices (numpy) to factors on their queries, or on their keys."""

FrequencyScale = Callable[[Any, int, float], Any]
"""Maps (0-based frequency numbers (numpy), rotary dims, rotary base) to the factors on those inverse frequencies."""

BASE = 10000.0
"""Rotary's base where none is known."""

LARGEST = 2**31 - 1
"""The largest length or size of a method, in tokens: sums and products of two of them are exact in 64 bits."""

_PAIRS = 32  # rotary pairs that frequencies are compared at
_BLOCK = 256  # queries whose pairs are in memory at a time


class Bounded:
    """A part of a plan. Refused, naming it, for a number beyond `LARGEST`."""

    def __post_init__(self) -> None:
        """Checks every number, also those in tuples."""
        for name, value in vars(self).items():
            if value is None or callable(value):
                continue
            for number in value if isinstance(value, tuple) else (value,):
                is_integer = type(number) is int  # sooner known than that it is a Real: plans are made at every token
                if not is_integer and (isinstance(number, Bounded) or not isinstance(number, Real)):
                    continue
                if not abs(float(number)) <= LARGEST:
                    raise Refused(f"{type(self).__name__}: {name}={value} exceeds {LARGEST}")


def token_index(index: Any) -> Any:
    """Every token keeps its index as its position."""
    return index


def capped(position: Any, most: Any) -> Any:
    """min(position, most)."""
    return (position < most) * position + (position >= most) * most


@dataclass(frozen=True)
class Constant(Bounded):
    """Every token is passed the same position."""

    position: float

    def __call__(self, index: Any) -> Any:
        """The position, in the shape of `index`."""
        return index * 0 + self.position


@dataclass(frozen=True)
class Stepped(Bounded):
    """`offset` + (index + `shift`) // `width`: one position for every `width` tokens."""

    width: int
    shift: int = 0
    offset: int = 0

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        return self.offset + (index + self.shift) // self.width


@dataclass(frozen=True)
class Slowed(Bounded):
    """`offset` + (index + `shift`) / `factor`: fractional positions."""

    factor: float
    shift: int = 0
    offset: int = 0

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        return self.offset + (index + self.shift) / self.factor


@dataclass(frozen=True)
class LogN(Bounded):
    """max(1, ln(index + 1) / ln(`trained_length`)), as in the ReRoPE repository."""

    trained_length: int

    def __call__(self, index: Any) -> Any:
        """The factors, in the shape of `index`."""
        return np.maximum(1.0, np.log(index + 1) / math.log(self.trained_length))


@dataclass(frozen=True)
class Product:
    """Several scales at once."""

    scales: tuple[Scale, ...]

    def __call__(self, index: Any) -> Any:
        """The factors, in the shape of `index`."""
        return math.prod(scale(index) for scale in self.scales)


@dataclass(frozen=True)
class Carry(Bounded):
    """Whether (t + `shift`) % `width` < i % `width`, or whether not: where floor(a) - floor(b) is not floor(a - b)."""

    width: int
    shift: int
    carried: bool

    def __call__(self, query: Any, key: Any) -> Any:
        """For pairs, elementwise for arrays."""
        return ((query + self.shift) % self.width < key % self.width) == self.carried


@dataclass(frozen=True)
class Region(Bounded):
    """Some query-key pairs, and the positions they are passed.

    The pair (t, i) belongs to the region when `queries[0] <= t < queries[1]`, `keys[0] <= i < keys[1]`,
    `nearest <= t - i <= farthest` and, where passed, `holds(t, i)`. Its effective relative position is
    `query_position(t) - key_position(i)`. period: where positive, `holds` says the same of (t + period, i + period),
    which spares making its mask again and again.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    query_position: Position = token_index
    key_position: Position = token_index
    nearest: int = 0
    farthest: int | None = None
    holds: Callable[[Any, Any], Any] | None = None
    period: int = 0
    query_scale: Scale | None = None
    """The factor on a query, by its index t."""
    key_scale: Scale | None = None
    """The factor on a key, by its index i, whichever query sees it."""

    def contains(self, query: Any, key: Any) -> Any:
        """Whether the pairs belong to the region (elementwise for arrays)."""
        distance = query - key
        inside = (distance >= self.nearest) & (query >= self.queries[0]) & (query < self.queries[1])
        inside = inside & (key >= self.keys[0]) & (key < self.keys[1])
        if self.farthest is not None:
            inside = inside & (distance <= self.farthest)
        return inside if self.holds is None else inside & self.holds(query, key)


@dataclass(frozen=True)
class Plan(Bounded):
    """What a method does with `length` tokens: which query sees which key, at which positions.

    A method's `plan` makes it, and an executor follows it. Print, draw and check it with `distances`.

    Args:
        length: Tokens.
        regions: Disjoint sets of query-key pairs with the positions of both; pairs in none are masked.
        frequency_scale: The factors on rotary frequencies, from (numbers, rotary dims, base). Default: none changes.
        by_prompt: True if positions or scale factors depend on prompt length; default False.

    Examples:
        >>> plan = mesa.ReRoPE(trained_length=4, window=2).plan(5)
        >>> plan.length, [(region.nearest, region.farthest) for region in plan.regions]
        (5, [(0, 2), (3, None)])
    """

    length: int
    regions: tuple[Region, ...]
    frequency_scale: FrequencyScale | None = None
    by_prompt: bool = False
    """True if positions or scale factors depend on prompt length, not only on which pairs are seen."""


def distances(plan: Plan) -> np.ndarray:
    """The relative position of every query-key pair under a plan.

    Args:
        plan: What a method's `plan` returns.

    Returns:
        (query, key) array in tokens, -1 where masked; of integers where all are.

    Examples:
        >>> mesa.distances(mesa.ReRoPE(trained_length=4, window=2).plan(4))
        array([[ 0, -1, -1, -1],
               [ 1,  0, -1, -1],
               [ 2,  1,  0, -1],
               [ 2,  2,  1,  0]])
    """
    index = np.arange(plan.length)
    result = relative_positions(plan, index, index)
    integers = result.astype(np.int64)
    return integers if (integers == result).all() else result


def reach(plan: Plan) -> np.ndarray:
    """The largest effective relative position that each query sees, (length,)."""
    keys = np.arange(plan.length)
    return np.concatenate([relative_positions(plan, queries, keys).max(axis=1) for queries in _blocks(plan)])


def _blocks(plan: Plan) -> list[np.ndarray]:
    """The queries, some at a time."""
    return np.split(np.arange(plan.length), range(_BLOCK, plan.length, _BLOCK))


def restarts(plan: Plan) -> dict[int, int]:
    """The queries at which positions begin again, and the largest relative position that each of them sees.

    There it falls by more than one from that of the query before.

    >>> from mesa import make
    >>> restarts(make("mesa", 24, first=4, last=6, split_threshold=3, window=4).plan(60))
    {20: 4, 36: 4, 52: 5}
    """
    begins = sorted({region.queries[0] for region in plan.regions} & set(range(1, plan.length)))
    index = np.arange(plan.length)
    pairs = [relative_positions(plan, np.array([begin - 1, begin]), index).max(axis=1) for begin in begins]
    return {begin: int(after) for begin, (before, after) in zip(begins, pairs, strict=True) if after < before - 1}


def query_scales(plan: Plan) -> np.ndarray:
    """The largest factor on each query's scores, its own times its region's keys', (length,); 1 where none sees it.

    >>> from mesa import make
    >>> query_scales(make("rerope", 4).plan(10)).round(2)
    array([1.  , 1.  , 1.  , 1.  , 1.16, 1.29, 1.4 , 1.5 , 1.58, 1.66])
    """
    scales = np.full(plan.length, -np.inf)
    for region in plan.regions:
        queries = np.arange(region.queries[0], min(region.queries[1], plan.length))
        keys = np.arange(region.keys[0], min(region.keys[1], plan.length))
        key = region.key_scale(keys).max() if region.key_scale and len(keys) else 1
        scales[queries] = np.maximum(scales[queries], (region.query_scale(queries) if region.query_scale else 1) * key)
    return np.where(np.isfinite(scales), scales, 1)


def rotary_base(frequencies: Any) -> float:
    """The base b of inverse frequencies b^(-2 m / d), by the first and the last; inf with but one, or a last of 0."""
    pairs = len(frequencies)
    if pairs < 2 or not frequencies[-1]:
        return math.inf
    return float(frequencies[0] / frequencies[-1]) ** (pairs / (pairs - 1))


def follows_length(plan: Plan, other: Plan) -> bool:
    """Of one method's plans for two prompts: whether positions, factors or frequencies follow its length."""
    return plan.by_prompt or other.by_prompt or not turn_alike(plan, other)


def turn_alike(plan: Plan, other: Plan) -> bool:
    """Whether the two turn rotary pairs at the same frequencies."""
    pairs = np.arange(_PAIRS, dtype=float)
    first, second = (
        either.frequency_scale(pairs, 2 * _PAIRS, BASE) if either.frequency_scale else 1 + 0 * pairs
        for either in (plan, other)
    )
    return np.array_equal(first, second)


def same_plan(plan: Plan, other: Plan) -> bool:
    """Whether two plans of one length give all pairs the same positions, factors and frequencies."""
    if not turn_alike(plan, other):
        return False
    keys = np.arange(plan.length)
    return all(
        np.array_equal(of(plan, queries, keys), of(other, queries, keys))
        for queries in _blocks(plan)
        for of in (relative_positions, _factors)
    )


def _factors(plan: Plan, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The factor on the score of every pair (query, key), 1 where masked."""
    result = np.ones((len(queries), len(keys)))
    for region in plan.regions:
        if region.query_scale or region.key_scale:
            inside = region.contains(queries[:, None], keys[None, :])
            query = region.query_scale(queries)[:, None] if region.query_scale else 1.0
            key = region.key_scale(keys)[None, :] if region.key_scale else 1.0
            result = np.where(inside, np.broadcast_to(query * key, result.shape), result)
    return result


def relative_positions(plan: Plan, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Effective relative positions (query, key), -1 where masked."""
    result = np.full((len(queries), len(keys)), -1.0)
    for region in plan.regions:
        rows, columns = (
            np.flatnonzero((index >= begin) & (index < end))
            for index, (begin, end) in ((queries, region.queries), (keys, region.keys))
        )
        query, key = queries[rows, None], keys[None, columns]
        relative = region.query_position(query) - region.key_position(key)
        block = np.ix_(rows, columns)
        result[block] = np.where(region.contains(query, key), relative, result[block])
    return result


PAIRS = 2_000_000
"""Pairs looked at (of all, where there are no more)."""


def check_plan(name: str, plan: Plan, length: int, start: int = 0) -> None:
    """Refused when a plan's regions overlap, see the future, or are for another length.

    Looks at the queries from `start` on: at all in a short prompt, in a long one at those where regions begin and end
    and at some between.
    """
    if plan.length != length:
        raise Refused(f"{name}: its plan for {length} tokens is one for {plan.length}")
    count = max(16, PAIRS // length)
    edges = {edge + step for region in plan.regions for edge in region.queries for step in (-1, 0)}
    chosen = sorted({*np.linspace(start, length - 1, count).astype(int).tolist(), *edges} & set(range(start, length)))
    query, key = np.array(chosen)[:, None], np.arange(length)[None, :]
    contains = [np.broadcast_to(region.contains(query, key), (len(chosen), length)) for region in plan.regions]
    counts = sum((contained.astype(np.int8) for contained in contains), np.zeros((len(chosen), length), np.int8))
    for wrong, why in (((counts > 0) & (key > query), "which comes after it"), (counts > 1, "in more than one region")):
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            regions = [number for number, contained in enumerate(contains) if contained[row, column]]
            raise Refused(
                f"{name}: in its plan for {length} tokens, query {chosen[row]} sees key {column} {why} (regions "
                f"{', '.join(map(str, regions))}); regions must be causal and must not overlap"
            )
