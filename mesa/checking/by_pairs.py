"""What a method's attention gave in some layers, heads and tokens, against the same pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from mesa.checking.heard import Calls, Heard, unturned
from mesa.checking.oracle import Pair, Positions, attended, pairs
from mesa.checking.rounding import ALLOWED, shaken
from mesa.checking.rows import Found
from mesa.checking.subject import Setting, Subject, array
from mesa.engine.plug import Attachment
from mesa.plan import Plan, rotary_base

_LAYERS, _HEADS, _TOKENS = 6, 2, 6


def by_pairs(subject: Subject, setting: Setting, attachment: Attachment, calls: Calls) -> Iterator[Found]:
    """What was found in some layers; to be read while the method is attached."""
    plan = attachment.method.plan(setting.length, setting.prompt)
    bare = unturned(subject.model, calls)
    for layer in _some(sorted(calls.functions), _LAYERS):
        at = _scaled(subject.positions(setting, attachment, layer), plan)
        where = f"in layer {layer} at {setting.where}"
        yield _of_layer(calls.functions[layer], bare[layer], plan, at, subject.model.dtype, where)


def _of_layer(heard: Heard, bare: Heard, plan: Plan, at: Positions, dtype: torch.dtype, where: str) -> Found:
    """The largest difference, with what rounding makes, and what every distance one too large would."""
    query, keys, values = (array(each[0]) for each in (bare.query, bare.key, heard.value))
    group, output, largest = len(query) // len(keys), array(heard.output[0]), np.zeros(3)
    for token in _some(range(1, plan.length), _TOKENS):
        seen = pairs(plan, token, heard.window)
        for head in _some(range(len(query)), _HEADS):
            given = query[head, token], keys[head // group], values[head // group]
            shaky = shaken(given[0], dtype, 0), shaken(given[1], dtype, 1), shaken(given[2], dtype, 2)
            true = attended(given, seen, heard.scaling, at, head)
            others = (
                output[token, head],
                shaken(attended(shaky, _blurred(seen, plan.length), heard.scaling, at, head), dtype, 3),
                attended(given, _farther(seen, token), heard.scaling, at, head),
            )
            apart = [np.nan_to_num(abs(other - true), nan=np.inf).max() for other in others]
            largest = np.maximum(largest, apart)
    difference, rounding, mistake = largest.tolist()
    return Found(difference, ALLOWED * rounding, mistake, where)


def _farther(seen: Sequence[Pair], token: int) -> list[Pair]:
    """The pairs, all but the token's own one token farther: the nearest mistake."""
    return [pair._replace(distance=pair.distance + (pair.key < token)) for pair in seen]


def _blurred(seen: Sequence[Pair], length: int) -> list[Pair]:
    """The pairs at distances as exact as float32 angles of `length` tokens are."""
    sign = np.random.default_rng(4).choice((-1.0, 1.0), len(seen))
    return [
        pair._replace(distance=pair.distance + length * 2**-24 * each) for pair, each in zip(seen, sign, strict=True)
    ]


def _scaled(at: Positions, plan: Plan) -> Positions:
    """Positions with the plan's frequencies."""
    if at.frequencies is None or plan.frequency_scale is None:
        return at
    number = np.arange(len(at.frequencies), dtype=np.float64)
    scale = plan.frequency_scale(number, 2 * len(number), rotary_base(at.frequencies))
    return replace(at, frequencies=at.frequencies * scale)


def _some(items: Sequence[int], count: int) -> list[int]:
    """At most so many of the items, evenly spread, the first and the last among them."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in dict.fromkeys(places.tolist())]
