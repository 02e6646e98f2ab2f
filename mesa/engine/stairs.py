"""Stair PE's far part with every pair computed once.

Its distance is a difference of two floors, less one where the residues of query and key carry. Among keys sorted by
residue, those without a carry for one query are a prefix and the others a suffix, so queries grouped by residue need no
mask but for the few residues inside their group. Far keys are a triangle; it is halved into rectangles, in which every
query sees every key, down to triangles that are small enough for a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
from torch import Tensor

from mesa.engine.kernels import Mask, Merged, attend
from mesa.plan import Carry, Region, Stepped

GROUP = 192
"""Queries a call, about (tokens): fewer read keys too often, more have more residues to mask."""

MIN_RESIDUE_QUERIES = 256
"""Queries below which keys are read residue by residue: sorting them costs more (tokens)."""

_MIN_RESIDUE_KEYS = 16
"""Keys of a residue (tokens): with fewer, all are read twice with a mask."""

_LEAF = 256
"""Queries of a triangle that is left to a mask (tokens)."""

_KEYS = 2048
"""Keys sorted at a time (tokens)."""

Span = tuple[int, int]
StairPart = tuple[Span, Tensor, Tensor]
"""Queries, their output (batch, head, query, dim) and log-sum-exp (batch, head, query)."""


def stairs(regions: Sequence[Region]) -> dict[Region, Region]:
    """The regions without a carry, and for each the one with a carry over the same queries and keys."""
    pairs = {}
    for plain in regions:
        carry, position = plain.holds, plain.query_position
        if not (isinstance(carry, Carry) and isinstance(position, Stepped) and isinstance(plain.key_position, Stepped)):
            continue
        whole = plain.farthest is None and plain.keys[1] >= plain.queries[1] - plain.nearest
        one_less = replace(position, offset=position.offset - 1)
        carried = replace(plain, holds=replace(carry, carried=True), query_position=one_less)
        if whole and not carry.carried and carried in regions:
            pairs[plain] = carried
    return pairs


@dataclass
class Stair:
    """A stair's regions without and with a carry, for the queries `begin` .. `end` - 1 and the keys from `low` on.

    queries, keys: those of a span at a region's positions, values: those of a span; all (batch, head, tokens, dim). A
    carry is one position less of the query, or one more of the key.
    """

    region: Region
    carried: Region
    begin: int
    end: int
    low: int
    queries: Callable[[Region, int, int], Tensor]
    keys: Callable[[Region, int, int], Tensor]
    values: Callable[[int, int], Tensor]
    scale: float
    masks: dict[tuple[object, ...], Mask]
    softcap: float | None = None

    def parts(self) -> Iterator[StairPart]:
        """Attention in parts that have no pair twice."""
        low, end = self.low, self.end
        edge = self.begin - self.region.nearest + 1  # keys before it are seen by every query
        if edge - low >= GROUP:
            yield from self._rectangle((self.begin, end), (low, edge))
            low = edge
        yield from self._triangle(self.begin, end, low)

    def _triangle(self, begin: int, end: int, low: int) -> Iterator[StairPart]:
        """All keys from `low` on that these queries see."""
        step = _LEAF // self._carry.width * self._carry.width or _LEAF  # masks look alike one period on
        if end - begin <= step:
            if low < end - self.region.nearest:
                yield self._leaf((begin, end), (low, end - self.region.nearest))
            return
        middle = begin + -(-(end - begin) // (2 * step)) * step
        edge = middle - self.region.nearest + 1
        yield from self._triangle(begin, middle, low)
        yield from self._rectangle((middle, end), (low, edge))
        yield from self._triangle(middle, end, edge)

    def _leaf(self, queries: Span, keys: Span) -> StairPart:
        width = self._carry.width
        offset = queries[0] - keys[0]
        rows = self.queries(self.region, *queries)
        sizes = queries[1] - queries[0], keys[1] - keys[0]
        known = (self.region, offset, sizes, queries[0] % width, rows.dtype)
        if known not in self.masks:
            query, key = torch.arange(*queries)[:, None], torch.arange(*keys)
            seen = query - key >= self.region.nearest
            carried = self._carry(query, key) != self._carry.carried
            both = torch.cat([seen & carried, seen & ~carried], 1)
            self.masks[known] = Mask.of(both, rows.dtype)
        output = attend(
            rows, self._both(keys), self._twice(keys), self.scale, False, self.masks[known], 0, self.softcap
        )
        return (queries, *output)

    def _rectangle(self, queries: Span, keys: Span) -> Iterator[StairPart]:
        """All these keys, which each of these queries sees."""
        whole = keys[0] + (keys[1] - keys[0]) // self._carry.width * self._carry.width
        if queries[1] - queries[0] >= MIN_RESIDUE_QUERIES:
            yield self._grouped(queries, keys)
        elif whole - keys[0] >= _MIN_RESIDUE_KEYS * self._carry.width:
            yield self._by_residue(queries, (keys[0], whole))
            if whole < keys[1]:
                yield self._leaf(queries, (whole, keys[1]))
        else:
            yield self._leaf(queries, keys)

    def _by_residue(self, queries: Span, keys: Span) -> StairPart:
        """One call for the keys of each residue: for one query all of them have a carry or none has."""
        width, plain = self._carry.width, self.queries(self.region, *queries)
        residues = (torch.arange(*queries) + self._carry.shift) % width
        carries = residues < (torch.arange(keys[0], keys[0] + width) % width)[:, None]
        rows = torch.where(carries[:, None, :, None], self.queries(self.carried, *queries)[:, None], plain[:, None])
        columns, values = (
            states.unflatten(2, (-1, width)).permute(0, 3, 1, 2, 4)  # (batch, residue, head, key, dim)
            for states in (self.keys(self.region, *keys), self.values(*keys))
        )
        parts = [
            attend(*text, self.scale, False, None, 0, self.softcap) for text in zip(rows, columns, values, strict=True)
        ]
        outputs, log_sums = map(torch.stack, zip(*parts, strict=True))
        return queries, (outputs * log_sums.softmax(1)[..., None]).sum(1), log_sums.logsumexp(1)

    def _grouped(self, queries: Span, keys: Span) -> StairPart:
        """Queries and keys in the order of their residues."""
        residues = (torch.arange(*queries) + self._carry.shift) % self._carry.width
        order = residues.argsort(stable=True)
        states = self.queries(self.region, *queries)
        rows = states[:, :, order]
        merged = Merged(rows)
        for low in range(keys[0], keys[1], _KEYS):
            self._sorted(rows, residues[order], (low, min(low + _KEYS, keys[1])), merged)
        assert merged.whole is not None
        back = order.argsort()
        output, log_sum = merged.whole
        return queries, output[:, :, back], log_sum[:, :, back, 0]

    def _sorted(self, rows: Tensor, residues: Tensor, keys: Span, merged: Merged) -> None:
        """Adds the attention of queries in the order of their residues over these keys."""
        width = self._carry.width
        key_residues = torch.arange(*keys) % width
        order = key_residues.argsort(stable=True)
        key_residues, count, chosen = key_residues[order], len(order), torch.cat([order + len(order), order])
        both, values = self._both(keys)[:, :, chosen], self._twice(keys)[:, :, chosen]  # with a carry, then without
        group = max(1, round(GROUP * width / len(residues)))
        for first in range(0, width, group):  # residues
            last = min(first + group, width) - 1
            begin, end = torch.searchsorted(residues, torch.tensor([first, last + 1])).tolist()
            if begin == end:
                continue
            low, high = torch.searchsorted(key_residues, torch.tensor([first + 1, last + 1])).tolist()
            span, mask = slice(low, count + high), None
            if low < high:  # keys whose carry depends on the query: twice among these, at both ends
                carries = residues[begin:end, None] < key_residues[low:high]
                mask = Mask(rows.new_zeros(end - begin, span.stop - span.start), None)
                mask.added[:, : high - low].masked_fill_(~carries, -math.inf)
                mask.added[:, low - high :].masked_fill_(carries, -math.inf)
            part = attend(
                rows[:, :, begin:end], both[:, :, span], values[:, :, span], self.scale, False, mask, 0, self.softcap
            )
            merged.add(itemgetter((..., slice(begin, end), slice(None))), *part, merged.begins(begin, end))

    @property
    def _carry(self) -> Carry:
        assert isinstance(self.region.holds, Carry)
        return self.region.holds

    def _both(self, keys: Span) -> Tensor:
        """The keys without a carry, then those with one."""
        position = self.region.key_position
        assert isinstance(position, Stepped)
        further = replace(self.region, key_position=replace(position, offset=position.offset + 1))
        return torch.cat([self.keys(self.region, *keys), self.keys(further, *keys)], 2)

    def _twice(self, keys: Span) -> Tensor:
        return self.values(*keys).repeat(1, 1, 2, 1)
