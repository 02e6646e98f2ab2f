"""A plan in some query heads of a layer, the plan as trained in the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mesa.engine.schedule import Schedule

Execute = Callable[[Sequence[int], Schedule, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor | None]]
"""An executor, told which query heads it is given."""


def by_head(
    execute: Execute,
    woven: Schedule,
    as_trained: Schedule,
    chosen: Sequence[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor | None]:
    """What `execute` returns, by `woven` in the `chosen` query heads and by `as_trained` in the others.

    Shapes as in the executors; heads are those of `query`.
    """
    group = query.shape[1] // key.shape[1]
    others = [head for head in range(query.shape[1]) if head not in chosen]
    output, weights = torch.zeros_like(query), None
    for schedule, heads in ((woven, chosen), (as_trained, others)):
        for part, key_heads in _parts(heads, group):
            own = schedule if schedule.slopes is None else replace(schedule, slopes=schedule.slopes[part])
            states = _taken(query, part), _taken(key, key_heads), _taken(value, key_heads)
            output[:, part], part_weights = execute(part, own, *states, scale)
            if part_weights is not None:
                weights = part_weights.new_zeros(*query.shape[:3], key.shape[2]) if weights is None else weights
                weights[:, part] = part_weights
    return output, weights


def _parts(heads: Sequence[int], group: int) -> Iterator[tuple[list[int], list[int]]]:
    """Query heads with their key heads, as many to each key head, so that a part is grouped attention by itself.

    Every key head is in one part, so no key is copied, or turned, for each of its queries.
    """
    members: dict[int, list[int]] = {}
    for head in heads:
        members.setdefault(head // group, []).append(head)
    for count in sorted({len(each) for each in members.values()}):
        alike = {key_head: each for key_head, each in members.items() if len(each) == count}
        yield [head for each in alike.values() for head in each], list(alike)


def _taken(states: Tensor, heads: list[int]) -> Tensor:
    """Those heads of `states` (batch, head, token, dim); a view where they are evenly spaced."""
    first, last, step = heads[0], heads[-1], heads[1] - heads[0] if len(heads) > 1 else 1
    if heads == list(range(first, last + 1, step)):
        return states[:, first : last + 1 : step]
    return states[:, heads]
