"""What a pass takes on an H100, computed from plan and config and never measured: operations, bytes, launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.methods import Method
from mesa.plan import Plan, Region

FLOPS, BANDWIDTH, LAUNCH = 989e12, 3.35e12, 4e-6
"""An H100's operations a second in half precision, bytes a second, and seconds between launches, at most."""
SLOWER = {"float32": 15, "float64": 30}
"""How many times fewer operations a second it does in other dtypes."""
LAUNCHES, DECODED, OTHERS = 60, 2, 14
"""Launches of a layer: of its attention under a method at most, on a prompt and on a token; and of all else."""


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, bytes read and written, launches."""

    flops: float = 0.0
    bytes: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Both, one after the other."""
        return Cost(self.flops + other.flops, self.bytes + other.bytes, self.launches + other.launches)

    def __mul__(self, count: float) -> Cost:
        """So many of it."""
        return Cost(self.flops * count, self.bytes * count, self.launches * count)


def seconds(*parts: Cost, slower: float = 1) -> float:
    """The least time of parts, each bound by operations or bytes; a device waits where launches take longer."""
    work = sum(max(part.flops * slower / FLOPS, part.bytes / BANDWIDTH) for part in parts)
    return max(work, LAUNCH * sum(part.launches for part in parts))


def pass_parts(
    config: Any, method: Method, length: int, new: int, itemsize: int = 2, launches: float | None = None
) -> list[Cost]:
    """A pass over the last `new` of `length` tokens, without the output layer, as parts that follow one another.

    Attention calls, what they need beside (states turned to other positions, merged outputs), and all else. Every
    layer counts as dense and as seeing the whole past. launches: of a layer's attention; default the most allowed.
    """
    plan = method.plan(length, length - new or length)
    limit = LAUNCHES if new > 1 else DECODED
    calls, beside = _attention(config, plan, method, length - new, itemsize, limit if launches is None else launches)
    return [part * config.num_hidden_layers for part in (calls, beside, _others(config, new, itemsize))]


def stock_parts(config: Any, length: int, new: int, itemsize: int = 2) -> list[Cost]:
    """As `pass_parts` without a method: one causal call a layer."""
    heads, key_heads, dim = shapes(config)
    pairs = new * length - new * (new - 1) / 2
    size = itemsize * dim * (2 * heads * new + 2 * key_heads * length)
    return [
        Cost(4 * pairs * heads * dim, size, 1) * config.num_hidden_layers,
        _others(config, new, itemsize) * config.num_hidden_layers,
    ]


def shapes(config: Any) -> tuple[int, int, int]:
    """Heads, key heads and head dim."""
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, key_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def _others(config: Any, new: int, itemsize: int) -> Cost:
    """A layer's projections, MLP, norms and rotary embedding on `new` tokens."""
    (heads, key_heads, dim), hidden = shapes(config), config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    weights = 2 * hidden * dim * (heads + key_heads) + 3 * hidden * inner
    states = new * (10 * hidden + 3 * inner + 4 * dim * (heads + key_heads))
    return Cost(2.0 * weights * new, itemsize * (weights + states), OTHERS)


def _attention(
    config: Any, plan: Plan, method: Method, start: int, itemsize: int, launches: float
) -> tuple[Cost, Cost]:
    """A layer's attention calls; and the turning of states to other positions and the merging of outputs.

    A single query's calls turn keys as they read them, once for all regions that have them at the same positions.
    """
    heads, key_heads, dim = shapes(config)
    row, key_row, cached = itemsize * dim * heads, itemsize * dim * key_heads, method.cached_position
    flops = size = 0.0
    single, read = plan.length - start == 1, set[Any]()
    parts = np.zeros(plan.length - start)
    turned: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for region in plan.regions:
        tokens, seen, keys = _pairs(region, start, plan.length)
        if not len(tokens):
            continue
        flops += (4 if single or region.holds is None else 3) * float(seen.sum()) * heads * dim
        place = keys, region.key_position, region.key_scale
        size += 2 * row * len(tokens) + (0 if single and place in read else 2 * key_row * (keys[1] - keys[0]))
        read.add(place)
        parts[tokens - start] += 1
        for kind, position, scale, span in (
            ("query", region.query_position, region.query_scale, (int(tokens[0]), int(tokens[-1]) + 1)),
            ("key", region.key_position, region.key_scale, keys),
        ):
            if position != cached or scale is not None or plan.frequency_scale is not None:
                turned.setdefault((kind, position, scale), []).append(span)
    if single:
        return Cost(flops, size, launches), Cost()
    beside = 0.0
    for (kind, *_), spans in turned.items():
        count = max(end for _, end in spans) - min(begin for begin, _ in spans)
        beside += 2 * (row if kind == "query" else key_row) * count
    merged = float(np.maximum(parts - 1, 0).sum())  # a further part is read, and a float32 sum read and written
    return Cost(flops, size, launches), Cost(bytes=beside + merged * dim * heads * (itemsize + 8))


def _pairs(region: Region, start: int, length: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """The queries of a region that see keys, how many each sees, and the first key and the end of the keys.

    A pattern counts as all pairs in its range: the two sides of a carry have products with keys of their own, and share
    that with values.
    """
    tokens = np.arange(max(region.queries[0], start), min(region.queries[1], length))
    low = np.maximum(region.keys[0], tokens - (length if region.farthest is None else region.farthest))
    high = np.minimum(min(region.keys[1], length), tokens - region.nearest + 1)
    some = high > low
    tokens, low, high = tokens[some], low[some], high[some]
    if not len(tokens):
        return tokens, low, (0, 0)
    return tokens, high - low, (int(low.min()), int(high.max()))
