"""The executor of devices other than CPUs: few launches, no copies of keys, memory for a few queries at a time.

What is turned for some queries, and a part's output for them, lies where the output of queries to come will be: those
are done from the last ones on, in blocks so large that little new memory is needed. It has not run on a GPU: it is
tested on a CPU and counted on shapes.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from mesa.engine.compiled import one_launch
from mesa.engine.rope import RotaryLayout, Rotation, turned
from mesa.engine.schedule import Schedule
from mesa.engine.span_kernels import Scoring, by_flex, by_varlen, kernel_for
from mesa.engine.spans import PairSpan, Part, Piecewise, sides_of
from mesa.plan import Position, Scale

LAUNCHES = 60
"""At most so many of a layer: blocks are made as small as that allows."""

_SHARES = (0.415, 0.35, 0.3, 0.25, 0.2, 0.15)
"""New memory of a block, as shares of all keys and values: the first, or the last of those that `LAUNCHES` allow."""

_LITTLE = 2**23
"""New memory that is little at any length (bytes)."""

_LEAST = 64
"""Queries of a block (tokens): a multiple of them, or of a 128th of all that are left."""

_FLOAT = 4
"""Bytes of a number of a log-sum-exp."""


def on_device(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention output (batch, head, query, dim): part by part, some queries at a time, merged by log-sum-exp."""
    layer = _Layer(schedule, query, key, value, scale)
    blocks = layer.query_blocks()
    layer.lay_out(blocks)
    for begin, end in blocks:
        layer.attend(begin, end)
    return layer.output()


Kernel = Callable[..., tuple[Tensor, Tensor]]


class _Workspace:
    """Memory for what one part of a block needs: that of the output which is not computed yet, then new one."""

    def __init__(self, free: Tensor) -> None:
        self.free = free.view(-1)

    def take(self, states: Tensor, tokens: int) -> Tensor:
        """An empty tensor (batch, head, token, dim) like some states, of so many tokens."""
        batch, heads, _, dim = states.shape
        size = batch * heads * tokens * dim
        if size <= len(self.free):
            flat, self.free = self.free[:size], self.free[size:]
        else:
            flat = states.new_empty(size)
        return flat.view(tokens, batch, heads, dim).permute(1, 2, 0, 3)


class _Layer:
    """The states of one layer, shapes as in the executors, and its output (token, batch, head, dim)."""

    def __init__(self, schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> None:
        self.schedule, self.query, self.key, self.value, self.scale = schedule, query, key, value, scale
        self.scoring = Scoring(scale, schedule.softcap, schedule.slopes)
        self.start, self.length = schedule.start, schedule.plan.length
        self._total: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The output, so far."""
        if self._total is None:
            batch, heads, tokens, dim = self.query.shape
            self._total = self.query.new_empty(tokens, batch, heads, dim)
        return self._total

    def output(self) -> Tensor:
        """The output (batch, head, query, dim)."""
        return self.total.permute(1, 2, 0, 3)

    def query_blocks(self) -> list[tuple[int, int]]:
        """The queries of each block, the last ones first: of the least new memory that `LAUNCHES` allow."""
        whole = self.schedule.parts(self.start, self.length)
        kernels = [kernel for part in whole for kernel, _ in self._launches_of(part)]
        place = "blocks", self.query.shape, self.key.shape, self.schedule.sinks is None, *kernels
        if place not in self.schedule.known:
            for share in _SHARES:
                blocks = self._cut(share)
                fits = sum(self._count(*block) for block in blocks) <= LAUNCHES
                if fits or share == _SHARES[0]:
                    self.schedule.known[place] = blocks
                if not fits:
                    break
        return self.schedule.known[place]

    def _cut(self, share: float) -> list[tuple[int, int]]:
        """Blocks that need no more new memory than a share of all keys and values, each as large as possible."""
        most = max(_LITTLE, share * 2 * self.key.numel() * self.key.itemsize)
        blocks, end = list[tuple[int, int]](), self.length
        while end > self.start:
            unit = -(-(end - self.start) // (128 * _LEAST)) * _LEAST
            least, many = 1, -(-(end - self.start) // unit)
            if self._new_memory(self.start, end) <= most:
                least = many
            while least < many:
                size = (least + many + 1) // 2
                least, many = (size, many) if self._new_memory(end - size * unit, end) <= most else (least, size - 1)
            begin = max(self.start, end - many * unit)
            blocks.append((begin, end))
            end = begin
        return blocks

    def _new_memory(self, begin: int, end: int) -> int:
        """Bytes that a block needs beside the output, as `_Workspace` gives them."""
        row, key_row = (len(part) * part.shape[1] * part.shape[3] * part.itemsize for part in (self.query, self.key))
        logs = len(self.query) * self.query.shape[1] * _FLOAT
        most, parts = 0, self.schedule.parts(begin, end)
        for number, part in enumerate(parts):
            free, new = (begin - self.start) * row, (end - begin) * logs * (number > 0)
            queries, keys = (side[1] - side[0] for side in (part.queries, part.keys))
            moved, keys_moved = self._placed(part)
            direct = {kernel is by_varlen for kernel, _ in self._launches_of(part)}
            output = queries * row * (number > 0 and True in direct)
            for size in (keys * key_row * keys_moved, queries * row * moved, output):
                free, new = (free - size, new) if size <= free else (free, new + size)
            if False in direct:
                new += queries * (logs + row * (not self._alone(parts)))
            most = max(most, new + queries * logs)
        return most

    def _count(self, begin: int, end: int) -> int:
        """How many launches a block is."""
        parts = self.schedule.parts(begin, end)
        merged = self._merged_with(parts, (begin, end))
        count = (self.schedule.sinks is not None and merged is None) - self._alone(parts)
        for number, part in enumerate(parts):
            launches = self._launches_of(part)
            copies = sum(kernel is not by_varlen for kernel, _ in launches)
            merges = 1 + (len(launches) > 1) if self._joint(part) else len(launches)
            count += sum(self._placed(part)) + len(launches) + (merges if number else copies + (len(launches) > 1))
        return count

    def _alone(self, parts: list[Part]) -> bool:
        """Whether one launch gives the output of all queries, and in memory of its own."""
        if len(parts) != 1 or parts[0].queries != (self.start, self.length) or not _gapless(parts[0].spans):
            return False
        (kernel, _), *others = self._launches_of(parts[0])
        return kernel is not by_varlen and not others

    def _launches_of(self, part: Part) -> list[tuple[Kernel, tuple[PairSpan, ...]]]:
        """The kernel and the spans of each launch of a part."""
        launches = list[tuple[Kernel, tuple[PairSpan, ...]]]()
        for _, group in groupby(part.spans, lambda span: span.holds):
            spans = tuple(group)
            kernel = kernel_for(self.query, spans[:1], self.scoring)
            launches += [(kernel, run) for run in ([spans] if kernel is by_flex else part._replace(spans=spans).runs)]
        return launches

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
        return queries or schedule.query_weight is not None, keys

    def lay_out(self, blocks: list[tuple[int, int]]) -> None:
        """Makes what all layers share, which takes memory on the way, before this one takes its own."""
        parts = [part for block in blocks for part in self.schedule.parts(*block)]
        sides = [(part.query_position, part.query_scale, *part.queries) for part in parts]
        sides += [(part.key_position, part.key_scale, *part.keys) for part in parts]
        places = tuple(dict.fromkeys(self._place(at, begin, end) for at, _, begin, end in sides))
        self._table, self._rows = self.schedule.turning(places, self.query.dtype, self.query.device)
        for _, scale, begin, end in sides:
            self._factors(scale, begin, end)

    def _place(self, position: Position, begin: int, end: int) -> tuple[Position, int, int]:
        """The tokens for which a position is laid out: all where it is one for all."""
        apart = isinstance(position, Piecewise)
        return (position, begin, end) if apart else (position, self.schedule.first_key, self.length)

    def _factors(self, scale: Scale | None, begin: int, end: int) -> Tensor | None:
        accurate = torch.promote_types(self.query.dtype, torch.float32)
        return self.schedule.factor(scale, begin, end, accurate, self.query.device)

    def attend(self, begin: int, end: int) -> None:
        """Fills in the output of the queries begin .. end - 1."""
        parts, log_sum = self.schedule.parts(begin, end), None
        if self._alone(parts):
            ((_, output, log_sum),) = self._outputs(parts[0], _Workspace(self.query.new_empty(0)), None)
            self._total, parts = output.unflatten(1, (len(self.query), -1)), []
        total = self.total.narrow(0, begin - self.start, end - begin).flatten(1, 2)
        if log_sum is None and not (parts and parts[0].queries == (begin, end) and _gapless(parts[0].spans)):
            total.zero_()
        merged, sinks = self._merged_with(parts, (begin, end)), self.schedule.sinks
        for part in parts:
            log_sum = self._add(part, begin, total, log_sum, sinks if part is merged else None)
        if sinks is not None and log_sum is not None and merged is None:
            one_launch(_sink, total, log_sum, sinks)

    def _merged_with(self, parts: list[Part], queries: tuple[int, int]) -> Part | None:
        """The part whose merge can take in sinks as well: one launch over all queries of a block."""
        return next((part for part in parts[1:] if part.queries == queries and self._joint(part)), None)

    def _joint(self, part: Part) -> bool:
        """Whether a part that is not the first is merged by one launch."""
        kernels = [kernel for kernel, _ in self._launches_of(part)]
        return len(kernels) == 1 or (_gapless(part.spans) and {*kernels} == {by_varlen})

    def _add(
        self, part: Part, begin: int, total: Tensor, log_sum: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Adds a part to the output (query, batch * head, dim) of the queries from `begin` on; returns the log-sum-exp.

        log_sum: of what is there; None where nothing is. sinks: to be taken in on the way, if any.
        """
        (low, high), workspace = part.queries, _Workspace(self.total.narrow(0, 0, begin - self.start))
        given = self._outputs(part, workspace, total.narrow(0, low - begin, high - low) if log_sum is None else None)
        logs = [log for _, _, log in given]
        if log_sum is not None:
            for (first, last), output, log in given:
                rows = first - begin, last - first
                _merge(total.narrow(0, *rows), log_sum.narrow(1, *rows), output, log, sinks)
            return log_sum
        if high - low == len(total) and _gapless(part.spans):
            return torch.cat(logs, 1) if len(logs) > 1 else logs[0]
        log_sum = logs[0].new_full((len(logs[0]), len(total)), -math.inf)
        for (first, last), _, log in given:
            log_sum.narrow(1, first - begin, last - first).copy_(log)
        return log_sum

    def _outputs(
        self, part: Part, workspace: _Workspace, into: Tensor | None
    ) -> list[tuple[tuple[int, int], Tensor, Tensor]]:
        """The queries, the output (query, batch * head, dim) and the log-sum-exp of a part's launches.

        One of all where they follow one another. into: where outputs go, those of the part's queries; None for memory
        of their own.
        """
        (low, high), (low_key, high_key) = part.queries, part.keys
        first_key, launches = self.schedule.first_key, self._launches_of(part)
        values = self.value.narrow(2, low_key - first_key, high_key - low_key)
        keys = self.key.narrow(2, low_key - first_key, high_key - low_key)
        keys = self._turned(keys, part.key_position, part.key_scale, *part.keys, workspace)
        rows = self.query.narrow(2, low - self.start, high - low)
        weight = self.schedule.query_weight
        rows = self._turned(rows, part.query_position, part.query_scale, *part.queries, workspace, weight)
        apart, results = None, []
        if into is None and any(kernel is by_varlen for kernel, _ in launches):
            apart = workspace.take(self.query, high - low).permute(2, 0, 1, 3).flatten(1, 2)
        for kernel, spans in launches:
            (first, last), (from_key, to_key) = sides_of(spans)
            place = apart if into is None and kernel is by_varlen else into
            output, log = kernel(
                rows.narrow(2, first - low, last - first),
                *(states.narrow(2, from_key - low_key, to_key - from_key) for states in (keys, values)),
                spans, self._scoring(part, (first, last), (from_key, to_key)), self.schedule.known,
                None if place is None else place.narrow(0, first - low, last - first),
            )  # fmt: skip
            results.append(((first, last), output, log))
        if len(launches) > 1 and apart is not None and self._joint(part):
            return [((low, high), apart, torch.cat([log for _, _, log in results], 1))]
        return results

    def _scoring(self, part: Part, queries: tuple[int, int], keys: tuple[int, int]) -> Scoring:
        slopes = self.schedule.slopes
        if slopes is None:
            return self.scoring
        at = (
            self.schedule.index(position, *span, self.query.device)
            for position, span in ((part.query_position, queries), (part.key_position, keys))
        )
        known, place = self.schedule.known, ("slopes", slopes, self.query.device)
        if place not in known:
            known[place] = slopes.float().to(self.query.device, non_blocking=True)
        return Scoring(self.scale, self.schedule.softcap, known[place], *at)

    def _turned(
        self, states: Tensor, position: Position, scale: Scale | None, begin: int, end: int, workspace: _Workspace,
        weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """States of the tokens begin .. end - 1 at a position and a scale."""
        place, factors, turn = self._place(position, begin, end), self._factors(scale, begin, end), self.schedule.turn
        rows = self._rows.get(place)
        if rows is None and factors is None and weight is None:
            return states
        if rows is not None and len(rows) > 1:
            rows = rows.narrow(0, begin - place[1], end - begin)
        table = (None, None) if rows is None or self._table is None else self._table
        layout, into = turn.layout if isinstance(turn, Rotation) else None, workspace.take(states, end - begin)
        _turn(into, rows, states, *table, factors, weight, layout)
        return into


def _gapless(spans: tuple[PairSpan, ...]) -> bool:
    """Whether the spans' queries follow one another."""
    return all(one.queries[1] == other.queries[0] for one, other in pairwise(spans))


def _turn(into: Tensor, *given: Any) -> None:
    """`_turned_plainly`, in one launch."""
    kernels = _triton_kernels(into.device, into.dtype)
    kernels.turn(into, *given) if kernels else one_launch(_turned_plainly, into, *given)


def turned_anew(states: Tensor, cos: Tensor, sin: Tensor, layout: RotaryLayout) -> Tensor:
    """States (batch, head, token, dim) turned by cos and sin (token, pair), in one launch."""
    into = torch.empty_like(states)
    _turn(into, None, states, cos, sin, None, None, layout)
    return into


def _turned_plainly(
    into: Tensor, rows: Tensor | None, states: Tensor, cos: Tensor | None, sin: Tensor | None, *given: Any
) -> None:
    """`turned`, to where it is wanted, by those rows of cos and sin."""
    if rows is not None and cos is not None and sin is not None:
        cos, sin = cos[rows], sin[rows]
    into.copy_(turned(states, cos, sin, *given))


def _merge(total: Tensor, *given: Any) -> None:
    """`_merged_plainly`, in one launch."""
    kernels = _triton_kernels(total.device, total.dtype)
    kernels.merge(total, *given) if kernels else one_launch(_merged_plainly, total, *given)


def _merged_plainly(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor, sinks: Tensor | None = None) -> None:
    """Adds a part's output (query, head, dim) and log-sum-exp (head, query) to what is there, over disjoint keys.

    sinks: a further term of each head's softmax as well, as a score (head,).
    """
    both = torch.logaddexp(log_sum, other)
    share = (other - both).exp().nan_to_num(nan=0.0).t().unsqueeze(-1)  # NaN: neither part saw a key
    accurate = total.to(share.dtype)
    accurate = accurate + share * (output.to(share.dtype) - accurate)
    if sinks is not None:
        accurate, both = accurate * _beside(both, sinks), torch.logaddexp(both, _scores_of(sinks, both))
    total.copy_(accurate)
    log_sum.copy_(both)


def _sink(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Takes in a further term of each head's softmax, as a score (head,)."""
    total.copy_(total * _beside(log_sum, sinks))


def _beside(log_sum: Tensor, sinks: Tensor) -> Tensor:
    """What is left to keys beside sinks (query, head, 1)."""
    return (log_sum - _scores_of(sinks, log_sum)).sigmoid().t().unsqueeze(-1)


def _scores_of(sinks: Tensor, log_sum: Tensor) -> Tensor:
    """Sinks (batch * head, 1)."""
    return sinks.to(log_sum).repeat(log_sum.shape[0] // sinks.shape[0]).unsqueeze(1)


@functools.cache
def _triton_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The module of Triton kernels where they run on the device and were found to do right; None where not."""
    if device.type not in ("cuda", "xpu") or dtype == torch.float64:
        return None
    try:
        from mesa.engine import triton_kernels
    except ImportError:
        return None
    try:
        error = _difference(triton_kernels, device)
    except torch.OutOfMemoryError:
        raise
    except Exception as refusal:  # Triton's own errors have no class in common
        error = str(refusal).partition("\n")[0]
    if error is None:
        return triton_kernels
    warnings.warn(f"no Triton kernels on {device}: {error}; torch.compile in their place", stacklevel=2)
    return None


def _difference(kernels: Any, device: torch.device) -> str | None:
    """How the kernels differ from plain operations, if they do."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    pairs = []
    for layout in (RotaryLayout(2, 4), RotaryLayout(0, 6, interleaved=True, backwards=True)):
        given = torch.arange(40, device=device).flip(0), drawn(1, 3, 40, 12), drawn(40, layout.pairs)
        given = *given, drawn(40, layout.pairs), drawn(40, 1), drawn(12), layout
        pairs.append([torch.zeros(1, 3, 40, 12, device=device) for _ in range(2)])
        _turned_plainly(pairs[-1][0], *given)
        kernels.turn(pairs[-1][1], *given)
    states = drawn(40, 6, 12), drawn(6, 40), drawn(40, 6, 12), drawn(6, 40), drawn(3)
    plain, by_kernel = ([part.clone() for part in states] for _ in range(2))
    _merged_plainly(*plain)
    kernels.merge(*by_kernel)
    largest = max(float((one - other).abs().max()) for one, other in [*pairs, *zip(plain, by_kernel, strict=True)])
    return None if largest <= 1e-4 else f"off by {largest:.2g}"
