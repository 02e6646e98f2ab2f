"""A plan bound to the tokens of one pass: its parts, and where their queries and keys are rotated and scaled to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from mesa.engine.rope import Rotation
from mesa.engine.spans import Part, Piecewise, parts, with_carries
from mesa.plan import Plan, Position, Region, Scale

Angles = Tensor | tuple[Tensor, Tensor]
"""Distances (token,), or the cos and sin of `Rotation.stepped`."""

Rotate = Callable[[Tensor, Angles, Plan], Tensor]
"""Rotates (batch, head, token, dim) by these distances under a plan's frequencies."""


class Span(NamedTuple):
    """The part of the past that a layer sees: the last `size` tokens, or those of its own chunk of `size`."""

    size: int
    chunked: bool = False


@dataclass
class Schedule:
    """A plan, bound to the queries from token `start` on and the keys from `first_key` on.

    Positions enter by rotation (`rotation`, with keys and queries rotated to `cached` already) or, for ALiBi models, as
    a bias `-slope * (query position - key position)` with one slope a head (`slopes`, (head,)).
    query_weight: factors (dim,) on queries after their rotation: those of norms after the model's own.
    softcap: c in c tanh(s / c), which each score s becomes. sinks: a score (head,) next to each query's, without value.
    cache: what an executor lays out once for all layers that see the same keys, each under keys of its own.
    """

    plan: Plan
    start: int
    cached: Position
    rotation: Rotate | None = None
    slopes: Tensor | None = None
    first_key: int = 0
    softcap: float | None = None
    sinks: Tensor | None = None
    query_weight: Tensor | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    _shared: dict[Any, Any] = field(default_factory=dict)
    """Distances and factors of tokens, for the layers of every rotation and window."""

    @property
    def members(self) -> tuple[Member, ...]:
        """The schedules that it is: itself, for all rows of the batch and all heads."""
        return (Member(self),)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for schedules of the same parts."""
        return self.plan, self.start, self.first_key, self.cached, self.rotation is None

    @property
    def turns(self) -> dict[Any, Schedule]:
        """A schedule for each kind of rotation: of frequencies, and of how a plan scales them."""
        return {None: self}

    def parts(self, begin: int, end: int) -> list[Part]:
        """The parts of the queries begin .. end - 1."""
        aligned = self.query_weight is None  # a weight goes with the states that are rotated
        key = "parts", begin, end, aligned
        if key not in self.cache:
            self.cache[key] = self._parts(begin, end, aligned)
        return self.cache[key]

    def _parts(self, begin: int, end: int, aligned: bool) -> list[Part]:
        return parts(self.plan, begin, end, self.first_key, aligned)

    def rotated(self, states: Tensor, position: Position, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1, rotated on to a position."""
        angles = self.distances((position,), begin, end, states.device)
        return states if angles is None or self.rotation is None else self.rotation(states, angles, self.plan)

    def distances(self, at: tuple[Position, ...], begin: int, end: int, device: torch.device) -> Tensor | None:
        """By how much cached states are rotated to each of some positions, (position * token,); None for nothing."""
        if self.rotation is None or (set(at) == {self.cached} and self.plan.frequency_scale is None):
            return None
        key = "distances", at, begin, end, device
        if key not in self._shared:
            index = np.arange(begin, end)
            distances = np.concatenate([position(index) - self.cached(index) for position in at])
            self._shared[key] = torch.from_numpy(distances.astype(np.float32)).to(device, non_blocking=True)
        return self._shared[key]

    def scaled(self, states: Tensor, scale: Scale | None, begin: int, end: int) -> Tensor:
        """`states` of the tokens begin .. end - 1 times the factors that `scale` gives them."""
        accurate = torch.promote_types(states.dtype, torch.float32)  # rounded to states' dtype it would move all scores
        return times(states, self.factor(scale, begin, end, accurate, states.device))

    def factor(
        self, scale: Scale | None, begin: int, end: int, accurate: torch.dtype, device: torch.device
    ) -> Tensor | None:
        """What `scaled` multiplies with, (token, 1), by row (row, 1, token, 1); None for nothing."""
        if scale is None:
            return None
        key = "factors", scale, begin, end, accurate, device
        if key not in self._shared:
            factors = np.asarray(scale(np.arange(begin, end)), np.float64)
            by_token = factors[:, None] if factors.ndim == 1 else factors[:, None, :, None]  # of all rows, or by row
            tensor = torch.from_numpy(by_token).to(accurate).to(device, non_blocking=True)
            self._shared[key] = None if (factors == 1).all() else tensor
        return self._shared[key]

    def query(self, states: Tensor, region: Region | Part, begin: int, end: int) -> Tensor:
        """The queries begin .. end - 1 at the positions and the scale of a region, or of a part."""
        rotated = self.rotated(states, region.query_position, begin, end)
        weighted = rotated if self.query_weight is None else rotated * self.query_weight
        return self.scaled(weighted, region.query_scale, begin, end)

    def key(self, states: Tensor, region: Region | Part, begin: int, end: int) -> Tensor:
        """The keys begin .. end - 1 at the positions and the scale of a region, or of a part."""
        return self.scaled(self.rotated(states, region.key_position, begin, end), region.key_scale, begin, end)

    def scoring(self, softcap: float | None, sinks: Tensor | None, query_weight: Tensor | None = None) -> Self:
        """The same with a layer's own soft cap, sinks and weight, if any; it shares what was laid out."""
        if softcap is None and sinks is None and query_weight is None:
            return self
        return replace(self, softcap=softcap, sinks=sinks, query_weight=query_weight)

    def of_heads(self, heads: Sequence[int]) -> Schedule:
        """The same for those query heads only."""
        if self.slopes is None and self.sinks is None:
            return self
        slopes, sinks = (part if part is None else part[list(heads)] for part in (self.slopes, self.sinks))
        return replace(self, slopes=slopes, sinks=sinks)

    def seeing(self, span: Span, first_key: int) -> Schedule:
        """The same for layers that see a window or a chunk of the past, without keys before `first_key`."""
        regions = _chunks(self.plan, span.size, self.start) if span.chunked else _within(self.plan, span.size)
        return replace(self, plan=replace(self.plan, regions=regions), first_key=first_key, cache={})

    def rotating_by(self, rotation: Rotation | None) -> Schedule:
        """The same for layers of this rotary embedding; None: of none."""
        return replace(self, rotation=rotation, cache={})


class Member(NamedTuple):
    """One schedule of several in a `JointSchedule`: that of some rows of the batch and some query heads.

    rows, heads: None for all. first: where the rows' token 0 is, behind their padding.
    """

    schedule: Schedule
    rows: tuple[int, ...] | None = None
    first: int = 0
    heads: tuple[int, ...] | None = None


class RowPiece(NamedTuple):
    """A function of the token indices of some rows (None: all), whose token 0 is at `first`; turn: one of `turns`."""

    rows: tuple[int, ...] | None
    first: int
    function: Callable[[Any], Any]
    turn: int


@dataclass(frozen=True)
class ByRow:
    """Positions or factors that differ by row of the batch: (row, slot) for slots (numpy), which count padding too."""

    batch: int
    pieces: tuple[RowPiece, ...]
    otherwise: float = 0.0

    def __call__(self, slots: Any) -> Any:
        """The values; `otherwise` in rows that have none."""
        return self._each(lambda piece, tokens: piece.function(tokens), slots)

    def distances(self, cached: Position, slots: np.ndarray) -> np.ndarray:
        """By how much states cached at a position are rotated, 0 in rows that have no piece."""
        return self._each(lambda piece, tokens: piece.function(tokens) - cached(tokens), slots)

    def _each(self, value: Callable[[RowPiece, np.ndarray], Any], slots: np.ndarray) -> np.ndarray:
        result = np.full((self.batch, len(slots)), self.otherwise)
        for piece in self.pieces:
            rows = slice(None) if piece.rows is None else list(piece.rows)
            result[rows] = value(piece, np.maximum(slots - piece.first, 0))
        return result

    def rows_of(self, turn: int) -> list[int]:
        """The rows that are rotated by a number of `turns`."""
        chosen = [piece.rows for piece in self.pieces if piece.turn == turn]
        return [row for rows in chosen for row in (range(self.batch) if rows is None else rows)]

    @property
    def piecewise(self) -> bool:
        """Whether some row's differs from token to token by where parts begin."""
        return any(isinstance(piece.function, Piecewise) for piece in self.pieces)


@dataclass
class JointSchedule(Schedule):
    """Several schedules as one: of rows with different padding, and of query heads by different plans.

    Its tokens are slots of the batch: they count padding. Its parts hold as many spans, positions and factors as there
    are rows; those of the same number in each row are one, so that a launch does them for all.
    """

    joined: tuple[Member, ...] = ()
    batch: int = 1

    @classmethod
    def of(cls, members: Sequence[Member], batch: int, start: int, first_key: int, total: int) -> JointSchedule:
        """Of members with one way of caching keys. batch: rows; start, first_key, total: in slots."""
        one, by_row = members[0].schedule, any(member.rows is not None for member in members)
        plan = Plan(total, ())
        return cls(
            plan, start, one.cached, one.rotation, first_key=first_key, joined=(*members,), batch=batch if by_row else 1
        )

    @property
    def members(self) -> tuple[Member, ...]:
        """Those with queries in the pass, one kind of rotation after another."""
        some = (member for member in self.joined if member.schedule.start < member.schedule.plan.length)
        return tuple(sorted(some, key=lambda member: self.turn_of(member.schedule)))

    @property
    def identity(self) -> tuple[Any, ...]:
        """As a schedule's."""
        members = ((*member.schedule.identity, *member[1:]) for member in self.joined)
        return self.start, self.first_key, self.plan.length, self.batch, *members

    @property
    def turns(self) -> dict[Any, Schedule]:
        """As a schedule's."""
        if "turns" not in self.cache:
            self.cache["turns"] = {_turn(member.schedule): member.schedule for member in self.joined}
        return self.cache["turns"]

    def turn_of(self, schedule: Schedule) -> int:
        """The number of a member's rotation among `turns`."""
        return [*self.turns].index(_turn(schedule))

    def _parts(self, begin: int, end: int, aligned: bool) -> list[Part]:
        by_kind: dict[Any, list[tuple[Member, Part]]] = {}
        for member in self.members:
            first, bound = member.first, member.schedule
            own = with_carries(parts(bound.plan, begin - first, end - first, bound.first_key, aligned))
            kinds = [(member.heads, part.spans[0].holds, part.carried is None) for part in own]
            for number, (kind, part) in enumerate(zip(kinds, own, strict=True)):
                by_kind.setdefault((*kind, kinds[:number].count(kind)), []).append((member, part))
        return [self._joined(held) for held in by_kind.values()]

    def _joined(self, held: list[tuple[Member, Part]]) -> Part:
        """The parts of several members as one."""
        spans = [
            span.moved(member.first, row)
            for member, part in held
            for row in ((None,) if member.rows is None else member.rows)
            for span in part.spans
        ]
        queries = self._placed([(member, part.query_position, part.query_scale) for member, part in held])
        keys = self._placed([(member, part.key_position, part.key_scale) for member, part in held])
        carried = [(member, *part.carried) for member, part in held if part.carried]
        return Part(tuple(spans), *queries, *keys, self._placed(carried) if carried else None, held[0][0].heads)

    def _placed(self, held: list[tuple[Member, Position, Scale | None]]) -> tuple[Position, Scale | None]:
        """The positions and the factors of several members as one."""

        def joined(functions: list[Any], otherwise: float) -> ByRow:
            pieces = (
                RowPiece(member.rows, member.first, function, self.turn_of(member.schedule))
                for (member, *_), function in zip(held, functions, strict=True)
                if function is not None
            )
            return ByRow(self.batch, tuple(pieces), otherwise)

        scales = [scale for *_, scale in held]
        scaled = any(scale is not None for scale in scales)
        return joined([position for _, position, _ in held], 0.0), joined(scales, 1.0) if scaled else None


def _turn(schedule: Schedule) -> Any:
    frequencies = getattr(schedule.rotation, "frequencies", None)
    return id(frequencies), schedule.plan.frequency_scale


def times(states: Tensor, factors: Tensor | float | None) -> Tensor:
    """States times factors, in the states' dtype; as they are where there are none."""
    return states if factors is None else (states * factors).to(states.dtype)


def _within(plan: Plan, window: int) -> tuple[Region, ...]:
    """A plan's regions without keys `window` or more tokens back."""
    return tuple(
        replace(region, farthest=window - 1 if region.farthest is None else min(region.farthest, window - 1))
        for region in plan.regions
        if region.nearest < window
    )


def _chunks(plan: Plan, size: int, start: int) -> tuple[Region, ...]:
    """A plan's regions cut to chunks of `size` tokens, in which queries from `start` on see the keys of their own."""
    regions = list[Region]()
    for begin in range(start // size * size, plan.length, size):
        for region in plan.regions:
            queries = max(region.queries[0], begin), min(region.queries[1], begin + size)
            keys = max(region.keys[0], begin), min(region.keys[1], begin + size)
            if queries[0] < queries[1] and keys[0] < keys[1] and region.nearest < size:
                regions.append(replace(region, queries=queries, keys=keys))
    return tuple(regions)
