"""What a single query reads, as a decoded token does: ranges of keys, each once, for all regions that hold them."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mesa.engine.compiled import is_accelerator, one_launch
from mesa.engine.rope import STEPS, Rotation
from mesa.engine.schedule import Angles, Schedule, times
from mesa.engine.scores import capped, scores_of, softmax
from mesa.engine.spans import span_of
from mesa.plan import Bounded, Position, Product, Region, Scale

HALVED = 8192
"""Keys from which on a range is rotated half by half (tokens)."""


@dataclass(frozen=True, eq=False)
class KeyRange:
    """Keys that a single query reads once, as the regions that hold them have them.

    tokens: where they are among all cached keys. angles, factors: what they are rotated by and multiplied with, None
    for nothing. seen: for each region whether it holds each key; None: the only region holds all. unseen: those that
    none holds, if any.
    """

    tokens: slice
    angles: Angles | None
    factors: Tensor | None
    seen: tuple[Tensor, ...] | None
    unseen: Tensor | None


@dataclass(frozen=True, eq=False)
class KeyRanges:
    """All that a single query reads, and what it is rotated by and multiplied with for each region of each range.

    rows: how many regions each range has. tokens: where the keys of all ranges are, None where not in one piece.
    """

    ranges: list[KeyRange]
    rows: list[int]
    tokens: slice | None
    angles: Angles | None
    factors: Tensor | None

    @property
    def plain(self) -> bool:
        """Whether all keys are in one range, of one region that holds each."""
        return self.rows == [1] and self.ranges[0].seen is None

    _scaled: dict[tuple[float, int], tuple[Angles | None, Tensor | float | None]] = field(default_factory=dict)

    def scaled(self, scale: float, dim: int) -> tuple[Angles | None, Tensor | float | None]:
        """What a query of `dim` dims is rotated by, and then multiplied with, times a layer's scale; None for nothing.

        Most layers share both. Where all dims are rotated, by tables that are accurate enough, those hold the factors.
        """
        cached = self._scaled.get((scale, dim))
        if cached is None:
            angles, factors = self.angles, self.factors
            if scale != 1:
                factors = scale if factors is None else factors * scale
            if factors is not None and isinstance(angles, tuple) and _exact(angles[0]) and angles[0].shape[-1] == dim:
                angles, factors = (angles[0] * factors, angles[1] * factors), None
            cached = self._scaled[scale, dim] = angles, factors
        return cached


def key_ranges(schedule: Schedule, device: torch.device, dtype: torch.dtype) -> KeyRanges:
    """What the only query reads: regions with the same keys at the same positions together."""
    key = "key ranges", device, dtype
    if key not in schedule.cache:
        schedule.cache[key] = _key_ranges(schedule, device, dtype)
    return schedule.cache[key]


def query_of(schedule: Schedule, state: Tensor, ranges: KeyRanges, scale: float = 1.0) -> Tensor:
    """The only query (batch, head, 1, dim), times `scale`, as the regions of all ranges have it.

    (batch, head, region, dim)
    """
    if ranges.angles is ranges.factors is schedule.query_weight is None and scale == 1 and ranges.plain:
        return state
    rows = sum(ranges.rows)
    angles, factors = ranges.scaled(scale, state.shape[-1])
    states = state if rows == 1 or isinstance(angles, tuple) else state.expand(-1, -1, rows, -1)
    if angles is not None and schedule.rotation is not None:
        states = schedule.rotation(states, angles, schedule.plan)
    if schedule.query_weight is not None:
        states = states * schedule.query_weight
    return times(states, factors)


def keys_of(schedule: Schedule, states: Tensor, part: KeyRange) -> Tensor:
    """The keys of a range out of all cached ones."""
    states = slice_tokens(states, part.tokens)
    if part.angles is not None and schedule.rotation is not None:
        states = schedule.rotation(states, part.angles, schedule.plan)
    return times(states, part.factors)


def slice_tokens(states: Tensor, tokens: slice) -> Tensor:
    """Those tokens of `states` (batch, head, token, dim)."""
    return states if tokens.stop - tokens.start == states.shape[2] else states[:, :, tokens]


def single_softmax(
    schedule: Schedule, ranges: KeyRanges, rows: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    """Attention of a single query, in a row for each region, by one softmax over the scores of all ranges."""
    split = torch.split_with_sizes(rows, ranges.rows, 2) if len(ranges.rows) > 1 else (rows,)
    scored = [
        _scores(schedule, part, keys_of(schedule, key, keys), keys, scale)
        for part, keys in zip(split, ranges.ranges, strict=True)
    ]
    sizes = [part.shape[3] for part in scored]
    if schedule.sinks is not None:
        scored.append(schedule.sinks.to(scored[0])[:, None, None].expand(*scored[0].shape[:3], 1))
    scores = torch.cat(scored, -1) if len(scored) > 1 else scored[0]
    del scored  # no more than two of all scores are in memory
    weights = softmax(scores, None, scores.dtype)
    if schedule.sinks is not None:
        weights = weights[..., :-1]
    if scores.dtype != value.dtype:
        weights = weights.to(value.dtype)
    if scores.shape[1] != value.shape[1]:
        weights = weights.view(scores.shape[0], value.shape[1], -1, weights.shape[3])
    if ranges.tokens is not None:
        return weights @ slice_tokens(value, ranges.tokens)
    pieces = weights.split(sizes, -1)
    first, *others = (piece @ value[:, :, keys.tokens] for piece, keys in zip(pieces, ranges.ranges, strict=True))
    return sum(others, first)


def _scores(schedule: Schedule, rows: Tensor, keys: Tensor, part: KeyRange, scale: float) -> Tensor:
    """A single query's scores (batch, head, 1, key) in a range, each by the row of the region that holds the key."""
    scores = scores_of(rows, keys)
    scores = scores if scale == 1 else scores.mul_(scale)
    if schedule.softcap is not None:
        scores = one_launch(capped, scores, schedule.softcap)
    if part.seen is None:
        return scores
    merged, *others = torch.split_with_sizes(scores, [1] * len(part.seen), 2) if len(part.seen) > 1 else (scores,)
    for seen, other in zip(part.seen[1:], others, strict=True):
        merged = torch.where(seen, other, merged)
    return merged if part.unseen is None else merged.masked_fill(part.unseen, -math.inf)


def _key_ranges(schedule: Schedule, device: torch.device, dtype: torch.dtype) -> KeyRanges:
    accurate = torch.promote_types(dtype, torch.float32)
    start, length, first_key = schedule.start, schedule.plan.length, schedule.first_key
    shared: dict[tuple[Any, ...], list[Region]] = {}
    for region in schedule.plan.regions:
        if not region.queries[0] <= start < region.queries[1]:
            continue
        span = span_of(region, start, length, first_key)
        if span is not None:
            same = (span.keys, region.holds is not None, region.key_position, region.key_scale)
            shared.setdefault(same, []).append(region)
    ranges, rows = list[KeyRange](), list[list[Region]]()
    pieces = sorted(shared.items(), key=lambda item: item[0][0])
    if is_accelerator(device):  # where rotated keys are all in memory at a time
        pieces = [
            ((half, *rest), regions) for (keys, *rest), regions in pieces for half in _halves(schedule, keys, rest[1])
        ]
    for ((begin, end), masked, position, scale), regions in pieces:
        seen = unseen = None
        if masked:
            index = np.arange(begin, end)  # all of them near and far enough
            seeing = [holds(start, index) for region in regions if (holds := region.holds)]
            sees = np.stack([np.broadcast_to(part, index.shape) for part in seeing])
            blind = ~sees.any(0)
            if blind.all():
                continue
            seen = torch.from_numpy(sees).to(device, non_blocking=True).unbind()
            unseen = torch.from_numpy(blind).to(device, non_blocking=True) if blind.any() else None
        angles = _angles(schedule, (position,), begin, end, device, dtype)
        factors = schedule.factor(scale, begin, end, accurate, device)
        ranges.append(KeyRange(slice(begin - first_key, end - first_key), angles, factors, seen, unseen))
        rows.append(regions)
    if not ranges:
        return KeyRanges([], [], None, None, None)
    regions = [region for some in rows for region in some]
    in_one_piece = all(one.tokens.stop == other.tokens.start for one, other in pairwise(ranges))
    return KeyRanges(
        ranges,
        list(map(len, rows)),
        slice(ranges[0].tokens.start, ranges[-1].tokens.stop) if in_one_piece else None,
        _angles(schedule, tuple(region.query_position for region in regions), start, length, device, dtype),
        _row_factors(schedule, [region.query_scale for region in regions], accurate, device),
    )


def _angles(
    schedule: Schedule, at: tuple[Position, ...], begin: int, end: int, device: torch.device, dtype: torch.dtype
) -> Angles | None:
    """What rotates to some positions: on a CPU tables, kept from step to step where they can be."""
    rotation = schedule.rotation
    if not isinstance(rotation, Rotation) or is_accelerator(device):
        return schedule.distances(at, begin, end, device)
    if any(position != schedule.cached for position in at):
        stepped = rotation.stepped(at, schedule.cached, begin, end, schedule.plan, dtype)
        if stepped is not None:
            return stepped
    distances = schedule.distances(at, begin, end, device)
    return None if distances is None else rotation.tables(distances, schedule.plan, dtype, device, spread=True)


def _row_factors(
    schedule: Schedule, scales: list[Scale | None], accurate: torch.dtype, device: torch.device
) -> Tensor | None:
    """What the rows of the only query are multiplied with, (row, 1); None for nothing."""
    start = schedule.start
    if all(scale is None for scale in scales):
        return None
    if not is_accelerator(device) and all(isinstance(scale, Bounded | Product | None) for scale in scales):
        return _steps_factors(tuple(scales), start // STEPS, accurate)[start % STEPS]
    one = torch.ones(1, 1, dtype=accurate, device=device)
    factors = [schedule.factor(scale, start, schedule.plan.length, accurate, device) for scale in scales]
    return torch.cat([one if factor is None else factor for factor in factors])


@lru_cache(maxsize=16)
def _steps_factors(scales: tuple[Scale | None, ...], number: int, accurate: torch.dtype) -> Tensor:
    """Factors of STEPS tokens, (token, row, 1); number: how often as many come before them."""
    index = np.arange(number * STEPS, (number + 1) * STEPS)
    factors = [np.ones(STEPS) if scale is None else np.asarray(scale(index), np.float64) for scale in scales]
    return torch.from_numpy(np.stack(factors, 1)).to(accurate).unsqueeze(2)


def _halves(schedule: Schedule, keys: tuple[int, int], position: Position) -> list[tuple[int, int]]:
    """A range of keys in two where it is long and has to be rotated."""
    middle = (keys[0] + keys[1]) // 2
    if keys[1] - keys[0] < HALVED or schedule.rotation is None or position == schedule.cached:
        return [keys]
    return [(keys[0], middle), (middle, keys[1])]


def _exact(states: Tensor) -> bool:
    return states.dtype in (torch.float32, torch.float64)
