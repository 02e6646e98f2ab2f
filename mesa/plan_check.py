"""Whether a plan keeps to what executors count on; for methods of other packages."""

from __future__ import annotations

import numpy as np

from mesa.plan import Plan

PAIRS = 2_000_000
"""Pairs looked at (of all, where there are no more)."""


def check_plan(name: str, plan: Plan, length: int, start: int = 0) -> None:
    """ValueError when a plan's regions overlap, see the future, or are for another length.

    Looks at the queries from `start` on: at all in a short prompt, in a long one at those where regions begin and end
    and at some between.
    """
    if plan.length != length:
        raise ValueError(f"{name}: its plan for {length} tokens is one for {plan.length}")
    count = max(16, PAIRS // length)
    edges = {edge + step for region in plan.regions for edge in region.queries for step in (-1, 0)}
    chosen = sorted({*np.linspace(start, length - 1, count).astype(int).tolist(), *edges} & set(range(start, length)))
    query, key = np.array(chosen)[:, None], np.arange(length)[None, :]
    held = [np.broadcast_to(region.contains(query, key), (len(chosen), length)) for region in plan.regions]
    found = sum((each.astype(np.int8) for each in held), np.zeros((len(chosen), length), np.int8))
    for wrong, why in (((found > 0) & (key > query), "which comes after it"), (found > 1, "in more than one region")):
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            regions = [number for number, each in enumerate(held) if each[row, column]]
            raise ValueError(
                f"{name}: in its plan for {length} tokens, query {chosen[row]} sees key {column} {why} (regions "
                f"{', '.join(map(str, regions))}); regions must be causal and must not overlap"
            )
