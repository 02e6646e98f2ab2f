"""The executor of devices other than CPUs: few launches, no copies of keys, memory for a few queries at a time.

What is rotated for some queries, and a part's output for them, lies where the output of queries to come will be: those
are done from the last ones on, in blocks so large that little new memory is needed. It is tested on a CPU and counted
on shapes; `make test-gpu` tests it on a GPU.

Why blocks are searched for (`_Planner._ranges`), and not of one size: counted on the shapes of Llama-3-8B for a prompt
of 32768 tokens, in launches and in new memory as a share of all keys and values, the search takes 25 and 0.32 for
ReRoPE, 36 and 0.31 for Stair PE. Eight even blocks take 40 and 0.38, 48 and 0.45; six take 30 and 0.49, 36 and 0.74.
Blocks of a third of what is left, an eighth of the prompt at least, take 30 and 0.32, 36 and 0.74. One block takes 17
and 2.04 for ReRoPE. benchmarks/blocks.py counts this again.
"""

import math
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mesa.engine.gpu.kernels import (
    Scoring,
    add_sinks,
    by_flex,
    by_sdpa,
    by_triton,
    by_varlen,
    is_usable,
    kernel_for,
    merge,
    rotate,
)
from mesa.engine.rope import Rotation
from mesa.engine.schedule import ByRow, JointSchedule, Schedule
from mesa.engine.spans import PairSpan, Part, Piecewise, sides_of, with_carries
from mesa.plan import Position, Scale

MAX_LAUNCHES = 60
"""At most so many of a layer: blocks are made as small as that allows."""

_MEMORY_SHARES = (0.2, 0.3, 0.415)
"""New memory of a block, as shares of all keys and values: the first that `MAX_LAUNCHES` allow, or the last."""

_KEY_PIECES = 4
"""Of all keys, where they are rotated a piece at a time."""

_SMALL_BYTES = 2**25
"""New memory that is little at any length (bytes): as much as the hidden states of 8192 tokens of 2048 dims."""

_QUERIES_UNIT = 64
"""Queries of a block (tokens): a multiple of them, or of a 128th of all that are left."""

_BLOCKS: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
"""The blocks' queries by plan and shapes: a text's serve the next one of its length. `_CACHED_BLOCKS` at most."""

_CACHED_BLOCKS = 64

_LOG_SUM_BYTES = 4
"""Bytes of a number of a log-sum-exp."""


def attend_blocks(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention output (batch, head, query, dim): part by part, some queries at a time, merged by log-sum-exp."""
    key_of_plan = (
        "execution plan", query.shape, key.shape, query.dtype, query.device, schedule.softcap,
        *(part is None for part in (schedule.slopes, schedule.sinks, schedule.query_weight)),
    )  # fmt: skip
    if key_of_plan not in schedule.cache:
        schedule.cache[key_of_plan] = _Planner(schedule, query, key, scale).plan(key_of_plan)
    return _LayerRun(schedule, schedule.cache[key_of_plan], query, key, value, scale).output()


def is_jointly(schedule: JointSchedule, query: Tensor, scale: float) -> bool:
    """Whether our own kernel does all parts of a joint schedule, as no other does: rows apart, and heads."""
    shapes = "jointly", query.shape, query.dtype, query.device, schedule.softcap is None
    if shapes not in schedule.cache:
        scoring, every = Scoring(scale, schedule.softcap), schedule.parts(schedule.start, schedule.plan.length)
        schedule.cache[shapes] = all(
            len({span.holds for span in part.spans}) == 1
            and is_usable(by_triton, query, part.spans, scoring, part.carried is not None)
            for part in every
        )
    return schedule.cache[shapes]


def _index(schedule: Schedule, position: Position, begin: int, end: int, device: torch.device) -> Tensor:
    """The positions of the tokens begin .. end - 1, (token,) in float32."""
    key = "index", position, begin, end, device
    if key not in schedule.cache:
        at = np.asarray(position(np.arange(begin, end)), np.float32)
        schedule.cache[key] = torch.from_numpy(at).to(device, non_blocking=True)
    return schedule.cache[key]


def _distances(schedule: Schedule, position: Position, begin: int, end: int) -> np.ndarray | None:
    """By how much cached states of the tokens begin .. end - 1 are rotated to a position, (token or 1,), or by row."""
    key = "device distances", position, begin, end
    if key not in schedule.cache:
        index = np.arange(begin, end)
        by_row = position.distances(schedule.cached, index) if isinstance(position, ByRow) else None
        by = np.asarray(position(index) - schedule.cached(index) if by_row is None else by_row, np.float32)
        by = by[..., :1] if (by == by[..., :1]).all() else by
        schedule.cache[key] = by if schedule.rotation is not None and by.any() else None
    return schedule.cache[key]


def _rotation_table(
    schedule: Schedule, places: tuple[tuple[Position, int, int], ...], dtype: torch.dtype, device: torch.device
) -> tuple[tuple[Tensor, Tensor] | None, dict[tuple[Position, int, int], Tensor]]:
    """cos and sin (distance, pair) of all rotations of cached states to positions, and the row that each token has.

    places: positions, and from which token on to which. A place's rows are (token or 1,), or (row, token or 1); it has
    none where nothing is rotated, nor is there then a table if no place has.
    """
    key = "rotation table", places, dtype, device
    if key not in schedule.cache:
        by = {place: some for place in places if (some := _distances(schedule, *place)) is not None}
        rows, tables, count = {place: np.zeros(some.shape, np.int32) for place, some in by.items()}, [], 0
        for number, bound in enumerate(schedule.turns.values()):
            mine = {place: place[0].rows_of(number) if isinstance(place[0], ByRow) else ... for place in by}
            distances = (some[mine[place]].ravel() for place, some in by.items())
            values = np.unique(np.concatenate([np.empty(0, np.float32), *distances]))
            if by and isinstance(bound.rotation, Rotation):
                distinct = torch.from_numpy(values).to(device, non_blocking=True)
                tables.append(bound.rotation.tables(distinct, bound.plan, dtype, device))
            for place, some in by.items():
                rows[place][mine[place]] = count + np.searchsorted(values, some[mine[place]])
            count += len(values)
        table = tables[0] if len(tables) == 1 else tuple(map(torch.cat, zip(*tables, strict=True))) or None
        on_device = {place: torch.from_numpy(own).to(device, non_blocking=True) for place, own in rows.items()}
        schedule.cache[key] = table, on_device
    return schedule.cache[key]


Kernel = Callable[..., tuple[Tensor, Any]]

_DIRECT = frozenset({by_varlen, by_triton})
"""Kernels that write where the output goes."""


class _Operand(NamedTuple):
    """The tokens of a part's queries or keys: by which row of the table each is rotated, and times what."""

    begin: int
    end: int
    rows: Tensor | None
    factors: Tensor | None


class _Launch(NamedTuple):
    """A call of a kernel: from the first of its queries to the end, and so of its keys."""

    kernel: Kernel
    spans: tuple[PairSpan, ...]
    queries: tuple[int, int]
    keys: tuple[int, int]


class _Task(NamedTuple):
    """What is done for a part of a block.

    carry_query: the queries as pairs with a carry have them, if any. joint: whether its launches give one output;
    full: of all of its queries; adds: whether they add it to what is there; opens: whether nothing is there of its
    heads. chosen: its heads (int32), None for all.
    """

    part: Part
    queries: _Operand
    carry_query: _Operand | None
    keys: _Operand
    launches: tuple[_Launch, ...]
    joint: bool
    full: bool
    adds: bool
    opens: bool
    chosen: Tensor | None


class _QueryBlock(NamedTuple):
    """The queries begin .. end - 1.

    alone: whether one launch gives the output of all queries, in memory of its own. filled: whether the first part of
    all heads is of all of them. merged: the part whose merge takes in sinks, if any.
    """

    begin: int
    end: int
    tasks: tuple[_Task, ...]
    alone: bool
    filled: bool
    merged: int | None


class _ExecutionPlan(NamedTuple):
    """What all layers of a schedule do. table: cos and sin of all rotations."""

    table: tuple[Tensor | None, Tensor | None]
    blocks: tuple[_QueryBlock, ...]


class _Workspace:
    """Memory for what one part of a block needs: that of the output which is not computed yet, then new one."""

    def __init__(self, free: Tensor) -> None:
        self.free = free.transpose(0, 1).flatten(1)  # by row of the batch

    def take(self, states: Tensor, tokens: int) -> Tensor:
        """An empty tensor (batch, head, token, dim) like some states, of `tokens` tokens."""
        batch, heads, _, dim = states.shape
        size = heads * tokens * dim
        if size <= self.free.shape[1]:
            flat, self.free = self.free[:, :size], self.free[:, size:]
        else:
            flat = states.new_empty(batch, size)
        return flat.unflatten(1, (tokens, heads, dim)).transpose(1, 2)


class _Planner:
    """Lays out what the layers of a schedule do, for queries and keys of these shapes."""

    def __init__(self, schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> None:
        self.schedule, self.query, self.key = schedule, query, key
        self.scoring = Scoring(scale, schedule.softcap, schedule.slopes)
        self.start, self.length = schedule.start, schedule.plan.length
        self._parts_of: dict[tuple[int, int], list[Part]] = {}
        self._kernels: dict[tuple[Any, bool], Kernel] = {}

    def plan(self, shapes: tuple[Any, ...]) -> _ExecutionPlan:
        """The blocks, the last queries first, and what they share on the device. shapes: and scoring, as a key."""
        bound = self.schedule
        key = shapes, bound.identity
        ranges = _BLOCKS.get(key)  # once: another thread may clear them
        if ranges is None:
            if len(_BLOCKS) >= _CACHED_BLOCKS:
                _BLOCKS.clear()
            ranges = _BLOCKS[key] = self._ranges()
        parts = [part for block in ranges for part in self._parts(*block)]
        sides = [(part.query_position, *part.queries) for part in parts]
        sides += [(part.carried[0], *part.queries) for part in parts if part.carried]
        sides += [(part.key_position, *part.keys) for part in parts]
        places = tuple(dict.fromkeys(self._place(*side) for side in sides))
        table, rows = _rotation_table(self.schedule, places, self.query.dtype, self.query.device)
        return _ExecutionPlan(table or (None, None), tuple(self._block(*block, rows) for block in ranges))

    def _parts(self, begin: int, end: int) -> list[Part]:
        """The parts of these queries; pairs with a carry and without in one, where a kernel does both."""
        if (begin, end) not in self._parts_of:
            apart = self.schedule.parts(begin, end)
            parts = with_carries(apart)
            both = [part for part in parts if part.carried]
            can = all(self._kernel(part.spans[0], True) is by_triton for part in both)
            parts = parts if can else apart
            self._parts_of[begin, end] = [piece for part in parts for piece in self._pieces(part, begin)]
        return self._parts_of[begin, end]

    def _pieces(self, part: Part, begin: int) -> list[Part]:
        """A part, cut up by keys that have to be rotated where no output to come has room for them."""
        low, high = part.keys
        room = (begin - self.start) * self.query.shape[1] >= (high - low) * self.key.shape[1]
        size = -(-self.key.shape[2] // _KEY_PIECES)
        if room or high - low <= size or not self._adds(part) or not self._placed(part)[1]:
            return [part]
        pieces = (part.of_keys(first, min(first + size, high)) for first in range(low, high, size))
        return [piece for piece in pieces if piece]

    def _kernel(self, span: PairSpan, carries: bool) -> Kernel:
        """The kernel of a part's spans; the same for all that hold alike."""
        key = span.holds, carries
        if key not in self._kernels:
            joint = isinstance(self.schedule, JointSchedule)  # of which `is_jointly` was asked
            self._kernels[key] = by_triton if joint else kernel_for(self.query, [span], self.scoring, carries)
        return self._kernels[key]

    def _block(self, begin: int, end: int, rows: dict[Any, Tensor]) -> _QueryBlock:
        parts = self._parts(begin, end)
        opening = {part.heads: number for number, part in reversed([*enumerate(parts)])}  # the first part of each
        firsts = [parts[number] for number in opening.values()]
        every = len({member.heads for member in self.schedule.members})
        filled = len(firsts) == every and all(part.queries == (begin, end) and self._is_full(part) for part in firsts)
        tasks = tuple(
            self._task(part, rows, filled and opening[part.heads] == number) for number, part in enumerate(parts)
        )
        merged = self._merged_with(parts, (begin, end))
        return _QueryBlock(begin, end, tasks, self._alone(parts), filled, merged)

    def _task(self, part: Part, rows: dict[Any, Tensor], opens: bool) -> _Task:
        queries = self._side(part.query_position, part.query_scale, *part.queries, rows)
        carry_query = self._side(*part.carried, *part.queries, rows) if part.carried else None
        keys = self._side(part.key_position, part.key_scale, *part.keys, rows)
        launches = tuple(_Launch(kernel, spans, *sides_of(spans)) for kernel, spans in self._launches_of(part))
        ends = self._joint(part), self._is_full(part), self._adds(part), opens, self._chosen(part)
        return _Task(part, queries, carry_query, keys, launches, *ends)

    def _chosen(self, part: Part) -> Tensor | None:
        cache, key = self.schedule.cache, ("heads", part.heads, self.query.device)
        if part.heads is not None and key not in cache:
            cache[key] = torch.tensor(part.heads, dtype=torch.int32).to(self.query.device, non_blocking=True)
        return cache.get(key)

    def _is_full(self, part: Part) -> bool:
        """Whether a part gives all of its queries, from the first to the last, an output: also those between spans."""
        launches = self._launches_of(part)
        return _gapless(part.spans) or (len(launches) == 1 and launches[0][0] is by_triton)

    def _side(self, position: Position, scale: Scale | None, begin: int, end: int, rows: dict[Any, Tensor]) -> _Operand:
        place, accurate = self._place(position, begin, end), torch.promote_types(self.query.dtype, torch.float32)
        own = rows.get(place)
        if own is not None and own.shape[-1] > 1:
            own = own.narrow(-1, begin - place[1], end - begin)
        return _Operand(begin, end, own, self.schedule.factor(scale, begin, end, accurate, self.query.device))

    def _ranges(self) -> list[tuple[int, int]]:
        """The queries of each block, the last ones first: of the least new memory that `MAX_LAUNCHES` allow."""
        blocks = self._cut(_MEMORY_SHARES[0])
        for share in _MEMORY_SHARES[1:]:
            if sum(self._count(*block) for block in blocks) <= MAX_LAUNCHES:
                break
            blocks = self._cut(share)
        return blocks

    def _cut(self, share: float) -> list[tuple[int, int]]:
        """Blocks that need no more new memory than a share of all keys and values, each as large as possible."""
        most = max(_SMALL_BYTES, share * 2 * self.key.numel() * self.key.itemsize)
        blocks, end = list[tuple[int, int]](), self.length
        while end > self.start:
            unit = -(-(end - self.start) // (128 * _QUERIES_UNIT)) * _QUERIES_UNIT
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
        """Bytes that a block needs next to the output, as `_Workspace` gives them."""
        row, key_row = (len(part) * part.shape[1] * part.shape[3] * part.itemsize for part in (self.query, self.key))
        logs = len(self.query) * self.query.shape[1] * _LOG_SUM_BYTES
        most, parts = 0, self._parts(begin, end)
        for number, part in enumerate(parts):
            free, new = (begin - self.start) * row, (end - begin) * logs * (number > 0)
            queries, keys = (side[1] - side[0] for side in (part.queries, part.keys))
            moved, keys_moved = self._placed(part)
            adds, direct = number > 0 and self._adds(part), {kernel in _DIRECT for kernel, _ in self._launches_of(part)}
            output = queries * row * (number > 0 and True in direct and not adds)
            for size in (keys * key_row * keys_moved, *(queries * row,) * moved, output):
                free, new = (free - size, new) if size <= free else (free, new + size)
            if False in direct:
                new += queries * (logs + row * (not self._alone(parts)))
            most = max(most, new + queries * logs * (not adds))
        return most

    def _count(self, begin: int, end: int) -> int:
        """How many launches a block is."""
        parts = self._parts(begin, end)
        merged = self._merged_with(parts, (begin, end))
        count = (self.schedule.sinks is not None and merged is None) - self._alone(parts)
        for number, part in enumerate(parts):
            launches = self._launches_of(part)
            copies = sum(kernel not in _DIRECT for kernel, _ in launches)
            merges = 1 + (len(launches) > 1) if self._joint(part) else len(launches)
            merges = 0 if self._adds(part) else merges
            count += sum(self._placed(part)) + len(launches) + (merges if number else copies + (len(launches) > 1))
        return count

    def _alone(self, parts: list[Part]) -> bool:
        """Whether one launch gives the output of all queries, and in memory of its own."""
        if len(parts) != 1 or parts[0].queries != (self.start, self.length) or not _gapless(parts[0].spans):
            return False
        (kernel, _), *others = self._launches_of(parts[0])
        return kernel not in _DIRECT and not others

    def _launches_of(self, part: Part) -> list[tuple[Kernel, tuple[PairSpan, ...]]]:
        """The kernel and the spans of each launch of a part."""
        every, farthest = (0, self.length), part.spans[0].farthest
        alone = part.spans[0]._replace(farthest=None) == PairSpan(every, every, 0, None)
        if alone and (farthest is None or farthest >= self.length - 1) and self._causal(part):
            return [(by_sdpa, part.spans)]
        launches = list[tuple[Kernel, tuple[PairSpan, ...]]]()
        for _, group in groupby(part.spans, lambda span: span.holds):
            spans = tuple(group)
            kernel = self._kernel(spans[0], part.carried is not None)
            is_joint = kernel in (by_flex, by_triton)
            launches += [(kernel, run) for run in ([spans] if is_joint else part._replace(spans=spans).runs)]
        return launches

    def _causal(self, part: Part) -> bool:
        """Whether a part of all pairs is all that there is, so that no log-sum-exp is needed."""
        plain = self.scoring.plain and self.schedule.sinks is None and self.start == self.schedule.first_key == 0
        return plain and self.schedule.parts(self.start, self.length) == [part]

    def _placed(self, part: Part) -> tuple[int, bool]:
        """How often a part's queries are rotated or scaled, and whether its keys are."""
        schedule = self.schedule
        sides = (part.key_position, part.key_scale), (part.query_position, part.query_scale)
        keys, *queries = (
            scale is not None
            or _is_piecewise(at)
            or _distances(schedule, at, schedule.first_key, schedule.plan.length) is not None
            for at, scale in (*sides, *([part.carried] if part.carried else []))
        )
        return sum(moved or schedule.query_weight is not None for moved in queries), keys

    def _place(self, position: Position, begin: int, end: int) -> tuple[Position, int, int]:
        """The tokens for which a position is laid out: all where it is one for all."""
        return (position, begin, end) if _is_piecewise(position) else (position, self.schedule.first_key, self.length)

    def _merged_with(self, parts: list[Part], queries: tuple[int, int]) -> int | None:
        """The part whose merge can take in sinks as well: one launch over all queries of a block."""
        merged = (at for at in range(1, len(parts)) if not self._adds(parts[at]))
        return next((at for at in merged if parts[at].queries == queries and self._joint(parts[at])), None)

    def _joint(self, part: Part) -> bool:
        """Whether a part that is not the first is merged by one launch."""
        kernels = [kernel for kernel, _ in self._launches_of(part)]
        return len(kernels) == 1 or (_gapless(part.spans) and {*kernels} <= _DIRECT)

    def _adds(self, part: Part) -> bool:
        """Whether a part that is not the first is added to what is there, with no merge."""
        return all(kernel is by_triton for kernel, _ in self._launches_of(part))


class _LayerRun:
    """The states of one layer, shapes as in the executors, and its output (token, batch, head, dim)."""

    def __init__(
        self, schedule: Schedule, program: _ExecutionPlan, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> None:
        self.schedule, self.program = schedule, program
        self.query, self.key, self.value, self.scale = query, key, value, scale
        self.scoring, self.start = Scoring(scale, schedule.softcap, schedule.slopes), schedule.start
        self.layout = schedule.rotation.layout if isinstance(schedule.rotation, Rotation) else None
        self._total: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The output, so far."""
        if self._total is None:
            batch, heads, tokens, dim = self.query.shape
            self._total = self.query.new_empty(batch, tokens, heads, dim).transpose(0, 1)
        return self._total

    def output(self) -> Tensor:
        """The output (batch, head, query, dim)."""
        for block in self.program.blocks:
            self._attend(block)
        return self.total.permute(1, 2, 0, 3)

    def _attend(self, block: _QueryBlock) -> None:
        """Fills in the output of a block's queries."""
        tasks, log_sum, sinks = block.tasks, None, self.schedule.sinks
        if block.alone:
            nothing = self.query.new_empty(0, *self.query.shape[:2], 0)
            ((_, self._total, log_sum),), tasks = self._outputs(tasks[0], _Workspace(nothing), None), ()
        total = self.total.narrow(0, block.begin - self.start, block.end - block.begin)
        if log_sum is None and not block.filled:
            total.zero_()
            if any(task.chosen is not None for task in tasks):
                log_sum = total.new_full((total[0, ..., 0].numel(), len(total)), -math.inf, dtype=torch.float32)
        for number, task in enumerate(tasks):
            log_sum = self._add(task, block.begin, total, log_sum, sinks if number == block.merged else None)
        if sinks is not None and log_sum is not None and block.merged is None:
            add_sinks(total, log_sum, sinks)

    def _add(
        self, task: _Task, begin: int, total: Tensor, log_sum: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Adds a part to the output (query, batch, head, dim) of the queries from `begin` on; returns the log-sum-exp.

        log_sum: of what is there; None where nothing is. sinks: to be taken in on the way, if any.
        """
        low, high = task.queries[:2]
        workspace = _Workspace(self.total.narrow(0, 0, begin - self.start))
        rows = low - begin, high - low
        if log_sum is not None and task.adds:
            self._outputs(task, workspace, total.narrow(0, *rows), log_sum.narrow(1, *rows))
            return log_sum
        outputs = self._outputs(task, workspace, total.narrow(0, *rows) if log_sum is None else None)
        if log_sum is not None:
            for (first, last), output, log in outputs:
                rows = first - begin, last - first
                merge(total.narrow(0, *rows), log_sum.narrow(1, *rows), output, log, sinks)
            return log_sum
        logs = [log for _, _, log in outputs]
        if high - low == total.shape[0] and task.full:
            return torch.cat(logs, 1) if len(logs) > 1 else logs[0]
        log_sum = logs[0].new_full((logs[0].shape[0], total.shape[0]), -math.inf)
        for (first, last), _, log in outputs:
            log_sum.narrow(1, first - begin, last - first).copy_(log)
        return log_sum

    def _outputs(
        self, task: _Task, workspace: _Workspace, into: Tensor | None, log_sum: Tensor | None = None
    ) -> list[tuple[tuple[int, int], Tensor, Tensor]]:
        """The queries, the output (query, batch, head, dim) and the log-sum-exp of a part's launches.

        One of all where they follow one another. into: where outputs go, those of the part's queries; None for memory
        of their own. log_sum: of what is there already, to which they are added; None where nothing is.
        """
        (low, high), (low_key, high_key), first_key = task.queries[:2], task.keys[:2], self.schedule.first_key
        values = self.value.narrow(2, low_key - first_key, high_key - low_key)
        keys = self._rotated(self.key.narrow(2, low_key - first_key, high_key - low_key), task.keys, workspace)
        own, weight = self.query.narrow(2, low - self.start, high - low), self.schedule.query_weight
        rows = self._rotated(own, task.queries, workspace, weight)
        carry_query = None if task.carry_query is None else self._rotated(own, task.carry_query, workspace, weight)
        apart, results = None, []
        if into is None and any(launch.kernel in _DIRECT for launch in task.launches):
            apart = workspace.take(self.query, high - low).permute(2, 0, 1, 3)
        for kernel, spans, (first, last), (from_key, to_key) in task.launches:
            place, at, options = apart if into is None and kernel in _DIRECT else into, (first - low, last - first), {}
            if kernel is by_triton:
                options["carry_query"] = None if carry_query is None else carry_query.narrow(2, *at)
                options["log_sum"] = None if log_sum is None else log_sum.narrow(1, *at)
                options |= {"added": not task.opens, "chosen": task.chosen}
            output, log = kernel(
                rows.narrow(2, *at),
                *(states.narrow(2, from_key - low_key, to_key - from_key) for states in (keys, values)),
                spans, self._scoring(task.part, (first, last), (from_key, to_key)), self.schedule.cache,
                None if place is None else place.narrow(0, *at), **options,
            )  # fmt: skip
            results.append(((first, last), output, log))
        if len(results) > 1 and apart is not None and task.joint:
            return [((low, high), apart, torch.cat([log for _, _, log in results], 1))]
        return results

    def _scoring(self, part: Part, queries: tuple[int, int], keys: tuple[int, int]) -> Scoring:
        slopes = self.schedule.slopes
        if slopes is None:
            return self.scoring
        at = (
            _index(self.schedule, position, *span, self.query.device)
            for position, span in ((part.query_position, queries), (part.key_position, keys))
        )
        cache, key = self.schedule.cache, ("slopes", slopes, self.query.device)
        if key not in cache:
            cache[key] = slopes.float().to(self.query.device, non_blocking=True)
        return Scoring(self.scale, self.schedule.softcap, cache[key], *at)

    def _rotated(self, states: Tensor, side: _Operand, workspace: _Workspace, weight: Tensor | None = None) -> Tensor:
        """A part's states at its position and scale."""
        begin, end, rows, factors = side
        if rows is None and factors is None and weight is None:
            return states
        table = (None, None) if rows is None else self.program.table
        into = workspace.take(states, end - begin)
        rotate(into, rows, states, *table, factors, weight, self.layout)
        return into


def _is_piecewise(position: Position) -> bool:
    """Whether a position is another one from part to part of the queries."""
    return position.piecewise if isinstance(position, ByRow) else isinstance(position, Piecewise)


def _gapless(spans: tuple[PairSpan, ...]) -> bool:
    """Whether the spans' queries follow one another, in all rows."""
    return all(one.queries[1] == other.queries[0] and one.row is other.row is None for one, other in pairwise(spans))
