"""The executor of devices other than CPUs: few launches, no copies of keys, memory for a few queries at a time.

It has not run on a GPU: it is tested on a CPU and counted on shapes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mesa.engine.compiled import one_launch
from mesa.engine.rope import Rotation, turned
from mesa.engine.schedule import Schedule
from mesa.engine.span_kernels import Scoring, attend_spans, by_varlen, kernel_for
from mesa.engine.spans import Part, Piecewise, sides_of
from mesa.plan import Position, Scale

LAUNCHES = 60
"""At most so many of a layer, about: queries are done in as many turns as that allows."""

_LEAST = 1024
"""Queries of a turn (tokens), at least."""


def on_device(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention output (batch, head, query, dim): part by part, some queries at a time, merged by log-sum-exp."""
    layer = _Layer(schedule, query, key, value, scale)
    for begin, end in layer.turns():
        layer.attend(begin, end)
    return layer.total.permute(1, 2, 0, 3)


class _Layer:
    """The states of one layer, shapes as in the executors, and its output (token, batch, head, dim)."""

    def __init__(self, schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> None:
        self.schedule, self.query, self.key, self.value, self.scale = schedule, query, key, value, scale
        batch, heads, tokens, dim = query.shape
        self.total = query.new_empty(tokens, batch, heads, dim)
        self._keys: dict[Any, tuple[int, int, Tensor]] = {}

    def turns(self) -> list[tuple[int, int]]:
        """The queries of each turn, as many turns as `LAUNCHES` allow, so that memory is least; the last ones first.

        Keys that are turned for those serve the ones before as well. At least as many turns as queries to a key head,
        so that what they take is no more than keys and values.
        """
        start, length, known = self.schedule.start, self.schedule.plan.length, self.schedule.known
        whole = self.schedule.parts(start, length)
        scoring = Scoring(self.scale, self.schedule.softcap, self.schedule.slopes)
        direct = bool(whole) and kernel_for(self.query, whole[0].spans, scoring) is by_varlen
        place = "turns", direct
        if place not in known:

            def cut(count: int) -> list[tuple[int, int]]:
                size = max(_LEAST, -(-(length - start) // count))
                return [(begin, min(begin + size, length)) for begin in range(start, length, size)]

            few = self.query.shape[1] // self.key.shape[1]
            many = max(few, LAUNCHES)
            if direct and len(whole) == 1 and not self._placed(whole[0])[0]:
                few = many = 1
            while few < many:
                count = (few + many + 1) // 2
                fits = sum(self._launches(*turn, direct) for turn in cut(count)) <= LAUNCHES
                few, many = (count, many) if fits else (few, count - 1)
            known[place] = cut(few)[::-1]
        return known[place]

    def _launches(self, begin: int, end: int, direct: bool) -> int:
        """About how many launches a turn is; direct: the first part's output goes where it belongs by itself."""
        parts = self.schedule.parts(begin, end)
        runs = [sum(1 for _ in part.runs) for part in parts]
        turned = sum(map(sum, map(self._placed, parts)))
        return turned + 2 * sum(runs) - direct + (self.schedule.sinks is not None)

    def _placed(self, part: Part) -> tuple[bool, bool]:
        """Whether a part's queries are turned or scaled, and whether its keys are."""
        schedule = self.schedule
        sides = (part.query_position, part.query_scale), (part.key_position, part.key_scale)
        queries, keys = (
            scale is not None
            or isinstance(at, Piecewise)
            or schedule.turns(at, schedule.first_key, schedule.plan.length) is not None
            for at, scale in sides
        )
        return queries, keys

    def attend(self, begin: int, end: int) -> None:
        """Fills in the output of the queries begin .. end - 1."""
        parts, total = self.schedule.parts(begin, end), self.total.narrow(0, begin - self.schedule.start, end - begin)
        total, log_sum = total.flatten(1, 2), None
        covered = sum(span.queries[1] - span.queries[0] for span in parts[0].spans) if parts else 0
        if covered < end - begin:
            total.zero_()
        for number, part in enumerate(parts):
            log_sum = self._add(part, begin, total, log_sum, fresh=number == 0)
        if self.schedule.sinks is not None and log_sum is not None:
            one_launch(_sink, total, log_sum, self.schedule.sinks)

    def _add(self, part: Part, begin: int, total: Tensor, log_sum: Tensor | None, fresh: bool) -> Tensor:
        """Adds a part to the output (query, batch * head, dim) of the queries from `begin` on; returns the log-sum-exp.

        fresh: none of these queries has one yet.
        """
        schedule, (low, high) = self.schedule, part.queries
        rows = self.query.narrow(2, low - schedule.start, high - low)
        rows = self._turned(rows, part.query_position, part.query_scale, low, high, schedule.query_weight)
        for run in part.runs:
            (first, last), (first_key, last_key) = sides_of(run)
            given = (
                rows.narrow(2, first - low, last - first),
                self._keys_of(part, first_key, last_key),
                self.value.narrow(2, first_key - schedule.first_key, last_key - first_key),
                run, self._scoring(part, (first, last), (first_key, last_key)), schedule.known,
            )  # fmt: skip
            into = total.narrow(0, first - begin, last - first)
            if not fresh:
                assert log_sum is not None
                one_launch(_merge, into, log_sum.narrow(1, first - begin, last - first), *attend_spans(*given))
                continue
            _, own = attend_spans(*given, into)
            if len(into) == len(total):
                return own
            if log_sum is None:
                log_sum = own.new_full((len(own), len(total)), -math.inf)
            log_sum.narrow(1, first - begin, last - first).copy_(own)
        assert log_sum is not None
        return log_sum

    def _scoring(self, part: Part, queries: tuple[int, int], keys: tuple[int, int]) -> Scoring:
        slopes = self.schedule.slopes
        if slopes is None:
            return Scoring(self.scale, self.schedule.softcap)
        at = (
            self.schedule.index(position, *span, self.query.device)
            for position, span in ((part.query_position, queries), (part.key_position, keys))
        )
        known, place = self.schedule.known, ("slopes", slopes, self.query.device)
        if place not in known:
            known[place] = slopes.float().to(self.query.device, non_blocking=True)
        return Scoring(self.scale, self.schedule.softcap, known[place], *at)

    def _turned(
        self,
        states: Tensor,
        position: Position,
        scale: Scale | None,
        begin: int,
        end: int,
        weight: Tensor | None = None,
    ) -> Tensor:
        """States of the tokens begin .. end - 1 at a position and a scale."""
        schedule, turn = self.schedule, self.schedule.turn
        table = schedule.tables(position, begin, end, states.dtype, states.device)
        factors = schedule.factor(scale, begin, end, torch.promote_types(states.dtype, torch.float32), states.device)
        if table is None and factors is None and weight is None:
            return states
        layout = turn.layout if isinstance(turn, Rotation) else None
        return one_launch(turned, states, *(table or (None, None)), factors, weight, layout)

    def _keys_of(self, part: Part, begin: int, end: int) -> Tensor:
        """Keys of the tokens begin .. end - 1, turned if they were not yet; kept where turns to come read from them."""
        place = part.key_position, part.key_scale
        low, high, keys = self._keys.get(place, (0, 0, self.key))
        if not low <= begin <= end <= high:
            self._keys.pop(place, None)
            low, high = part.keys
            keys = self.key.narrow(2, low - self.schedule.first_key, high - low)
            keys = self._turned(keys, *place, low, high)
            if low == self.schedule.first_key or len(part.spans) > 1:
                self._keys[place] = low, high, keys
        return keys.narrow(2, begin - low, end - begin)


def _merge(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor) -> None:
    """Adds a part's output (query, head, dim) and log-sum-exp (head, query) to what is there, over disjoint keys."""
    both = torch.logaddexp(log_sum, other)
    share = (other - both).exp().nan_to_num(nan=0.0).t().unsqueeze(-1)  # NaN: neither part saw a key
    accurate = total.to(share.dtype)
    total.copy_(accurate + share * (output.to(share.dtype) - accurate))
    log_sum.copy_(both)


def _sink(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """A further term of each head's softmax, as a score (head,)."""
    share = (log_sum - sinks.to(log_sum).repeat(log_sum.shape[0] // sinks.shape[0]).unsqueeze(1)).sigmoid()
    total.copy_(total * share.t().unsqueeze(-1))
