"""A plan's calls as data: what its regions are to a kernel that knows windows, however many of them it does at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mesa.plan import Carry, Plan, Position, Region, Scale, Stepped, token_index


class PairSpan(NamedTuple):
    """Queries and keys by index: query t sees key i where nearest <= t - i <= farthest, if `holds` says so too.

    Every query sees a key, but for what `holds` says. period: of `holds`, as a `Region`'s. row: of the batch; None: all
    rows. first: where token 0 is, from which `holds` counts, in a row with padding before it.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    nearest: int
    farthest: int | None
    holds: Callable[[Any, Any], Any] | None = None
    period: int = 0
    row: int | None = None
    first: int = 0

    def moved(self, first: int, row: int | None) -> PairSpan:
        """The same pairs in a row whose token 0 is at `first`."""
        (begin, end), (low, high) = self.queries, self.keys
        return self._replace(
            queries=(begin + first, end + first), keys=(low + first, high + first), row=row, first=first
        )

    @property
    def window(self) -> tuple[int, int]:
        """How many keys a query sees before and after its own, -1 for all; the last key is the last query's own."""
        (first, end), (first_key, end_key) = self.queries, self.keys
        back = end - end_key
        left = -1 if self.farthest is None or end - 1 - first_key <= self.farthest else self.farthest - back
        return left, -1 if first - end_key + 1 >= self.nearest else back - self.nearest

    def joined(self, other: PairSpan) -> bool:
        """Whether a kernel does the other one in the same launch: it comes next and looks alike."""
        follows = self.queries[1] == other.queries[0] and self.keys[1] == other.keys[0]
        return follows and self.holds is None and other.holds is None and self.window == other.window

    def seen(self, query: Any, key: Any) -> Any:
        """Whether queries see keys (elementwise for arrays)."""
        distance = query - key
        inside = distance >= self.nearest
        if self.farthest is not None:
            inside = inside & (distance <= self.farthest)
        return inside if self.holds is None else inside & self.holds(query, key)


def sides_of(spans: Sequence[PairSpan]) -> tuple[tuple[int, int], tuple[int, int]]:
    """From the first query of several spans to the last one's end, and so of keys."""
    queries, keys = (
        (min(low for low, _ in side), max(high for _, high in side))
        for side in zip(*((span.queries, span.keys) for span in spans), strict=True)
    )
    return queries, keys


def tiles_of(spans: Sequence[PairSpan], rows: int, columns: int, batch: int = 1) -> np.ndarray:
    """What each program does, the longest first: (program, 11) of int32.

    Its first query and its span's end; from which key on it reads, from which and up to which all of its queries see
    all keys of a tile, and where it ends; the least and the largest difference of query and key; its row of the batch;
    what its queries' and its keys' numbers are more than those that a carry counts. Counted from the first query and
    the first key of all spans. Queries that no span of their row has get tiles as well, without keys.
    """
    (first, end), (first_key, _) = sides_of(spans)
    tiles, table = dict[tuple[PairSpan, ...], np.ndarray](), list[np.ndarray]()
    for row in range(batch):
        own = tuple(span for span in spans if span.row in (None, row))
        if own not in tiles:
            edges = first, *(edge for span in own for edge in span.queries), end
            between = zip(edges[::2], edges[1::2], strict=True)
            empty = (
                PairSpan(queries, (first_key, first_key), 0, None) for queries in between if queries[0] < queries[1]
            )
            tiles[own] = np.array(
                [tile for span in (*own, *empty) for tile in _tiles(span, first, first_key, rows, columns)], np.int32
            )
        table.append(np.insert(tiles[own], 8, row, 1))
    joined = np.concatenate(table)
    return joined[np.argsort(joined[:, 2] - joined[:, 5], kind="stable")]


def _tiles(span: PairSpan, first: int, first_key: int, rows: int, columns: int) -> Iterator[tuple[int, ...]]:
    """The rows of `tiles_of` for a span, without its row of the batch."""
    (begin, end), (low, high) = (
        (one - at, other - at) for (one, other), at in zip(span[:2], (first, first_key), strict=True)
    )
    nearest = span.nearest - first + first_key
    farthest = 2**30 if span.farthest is None else min(2**30, span.farthest - first + first_key)
    carry = span.holds
    width, shift = (carry.width, carry.shift) if isinstance(carry, Carry) else (1, 0)
    phases = (first - span.first + shift) % width, (first_key - span.first) % width
    for row in range(begin, end, rows):
        last = min(row + rows, end) - 1
        from_key, to_key = max(low, row - farthest), min(high, last - nearest + 1)
        all_from, all_to = max(low, last - farthest), min(high, row - nearest + 1)
        full = from_key - (from_key - all_from) // columns * columns
        full_to = max(full, full + (all_to - full) // columns * columns)
        yield row, end, from_key, full, full_to, to_key, nearest, farthest, *phases


def span_of(region: Region | PairSpan, begin: int, end: int, first_key: int) -> PairSpan | None:
    """A region's span of the queries begin .. end - 1 and the keys from `first_key` on; None where it has no pair."""
    low, high = max(region.keys[0], first_key), region.keys[1]
    begin, end = max(region.queries[0], begin, low + region.nearest), min(region.queries[1], end)
    if region.farthest is not None:
        end, low = min(end, high + region.farthest), max(low, begin - region.farthest)
    high = min(high, end - region.nearest)
    if begin >= end or low >= high:
        return None
    if isinstance(region, PairSpan):
        return region._replace(queries=(begin, end), keys=(low, high))
    period = region.period if region.holds is not None else 0
    return PairSpan((begin, end), (low, high), region.nearest, region.farthest, region.holds, period)


@dataclass(frozen=True)
class Piecewise:
    """A function of token indices (numpy) that is another one in each range of them; 0 elsewhere, or `otherwise`."""

    pieces: tuple[tuple[tuple[int, int], Callable[[Any], Any]], ...]
    otherwise: float = 0.0

    def __call__(self, index: Any) -> Any:
        """The values, in the shape of `index`."""
        result = np.full(np.shape(index), self.otherwise)
        for (begin, end), function in self.pieces:
            inside = (index >= begin) & (index < end)
            result[inside] = function(index[inside])
        return result


@dataclass(frozen=True)
class Shifted:
    """A position less an integer."""

    position: Position
    by: int

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        return self.position(index) - self.by


class Part(NamedTuple):
    """Spans in none of which a query is twice, and where their queries and keys are placed and scaled."""

    spans: tuple[PairSpan, ...]
    query_position: Position
    query_scale: Scale | None
    key_position: Position
    key_scale: Scale | None
    carried: tuple[Position, Scale | None] | None = None
    """Where the queries of pairs with a carry are placed and scaled, which the spans' `holds` leaves out, if they are
    in the part as well."""
    heads: tuple[int, ...] | None = None
    """The query heads that attend by it; None: all."""

    @property
    def queries(self) -> tuple[int, int]:
        """From the first query to the end."""
        return sides_of(self.spans)[0]

    @property
    def keys(self) -> tuple[int, int]:
        """From the first key to the end."""
        return sides_of(self.spans)[1]

    def of_keys(self, low: int, high: int) -> Part | None:
        """The pairs with the keys low .. high - 1; None where there are none."""
        cut = (span._replace(keys=(span.keys[0], min(span.keys[1], high))) for span in self.spans)
        spans = tuple(part for span in cut if (part := span_of(span, *span.queries, low)))
        return self._replace(spans=spans) if spans else None

    @property
    def runs(self) -> Iterator[tuple[PairSpan, ...]]:
        """The spans of each launch."""
        run = self.spans[:1]
        for span in self.spans[1:]:
            if not run[-1].joined(span):
                yield run
                run = ()
            run = *run, span
        yield run


def parts(plan: Plan, begin: int, end: int, first_key: int, aligned: bool = True) -> list[Part]:
    """The parts of the queries begin .. end - 1 and the keys from `first_key` on, each pair in one of them.

    aligned: whether queries may be moved in place of keys, as where a distance says a score.
    """
    groups: list[tuple[Any, list[tuple[Region, Position, PairSpan]]]] = []
    for region in plan.regions:
        span = span_of(region, begin, min(end, plan.length), first_key)
        if span is None:
            continue
        at = region.query_position, region.key_position
        query_position, key_position = _aligned(*at) if aligned else at
        key = key_position, region.key_scale
        into = next((held for at, held in groups if at == key and held[-1][2].queries[1] <= span.queries[0]), None)
        if into is None:
            groups.append((key, into := []))
        into.append((region, query_position, span))
    return [_part(held, *key) for key, held in groups]


def with_carries(parts: Sequence[Part]) -> list[Part]:
    """The parts, those of pairs without a carry and with one that have the same queries and keys as one."""
    result = list[Part]()
    for part in parts:
        for number, other in enumerate(result):
            if other.carried is None and other[3:] == part[3:] and _carried(other.spans) == part.spans:
                result[number] = other._replace(carried=(part.query_position, part.query_scale))
                break
        else:
            result.append(part)
    return result


def _carried(spans: Sequence[PairSpan]) -> tuple[PairSpan, ...] | None:
    """Spans of pairs without a carry, of those with one; None where they are others."""
    carries = [span.holds for span in spans if isinstance(span.holds, Carry) and not span.holds.carried]
    if len(carries) < len(spans):
        return None
    return tuple(span._replace(holds=replace(carry, carried=True)) for span, carry in zip(spans, carries, strict=True))


def _part(held: Sequence[tuple[Region, Position, PairSpan]], key_position: Position, key_scale: Scale | None) -> Part:
    positions, scales, spans = {}, {}, list[PairSpan]()
    for region, position, span in held:
        positions[span.queries], scales[span.queries] = position, region.query_scale
        last = spans[-1] if spans else None
        alike = last and last.holds is span.holds is None and last.window == span.window == (-1, -1)
        if last and alike and (last.keys, last.queries[1]) == (span.keys, span.queries[0]):  # one rectangle
            spans[-1] = span._replace(queries=(last.queries[0], span.queries[1]), nearest=0, farthest=None)
        else:
            spans.append(span)
    scaled = {rows: scale for rows, scale in scales.items() if scale is not None}
    return Part(tuple(spans), _joined(positions, positions), _joined(scaled, scales, 1.0), key_position, key_scale)


def _joined(pieces: dict[tuple[int, int], Any], ranges: dict[tuple[int, int], Any], otherwise: float = 0.0) -> Any:
    if len(pieces) == len(ranges) and len(set(pieces.values())) == 1:
        return next(iter(pieces.values()))
    return Piecewise(tuple(pieces.items()), otherwise) if pieces else None


def _aligned(query: Position, key: Position) -> tuple[Position, Position]:
    """Positions of queries and of keys, those moved where these are indices that are moved."""
    if isinstance(key, Stepped) and key.width == 1:
        return Shifted(query, key.shift + key.offset), token_index
    return query, key
