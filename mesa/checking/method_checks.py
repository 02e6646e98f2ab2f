"""Checks of a method on the model: fused against dense and against pairs, decoding and padding against one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from mesa.checking.oracle import Positions, Seen, attention_output, seen_by
from mesa.checking.recorded_attention import AttentionCall, Calls, before_rotation, record_method
from mesa.checking.rows import NOT_RUN, CheckRow, Comparison, worst_row
from mesa.checking.subject import (
    ALLOWED,
    PromptSizes,
    Subject,
    array,
    max_difference,
    perturbed,
    rounding_perturbed,
    run,
)
from mesa.engine.plug import Attachment, applied
from mesa.methods import Method, NoPE
from mesa.outside import with_cache
from mesa.plan import Plan, rotary_base, turn_alike
from mesa.support import unfit

CHECKS = {
    "fused against dense": ("logits of both executors", "use executor='dense', and report it with this table"),
    "fused against pairs": (
        "attention outputs against float64 sums over pairs",
        "do not use this method on this model, and report it with this table",
    ),
    "decoding against one pass": (
        "logits of tokens decoded one by one with the cache",
        "use generate(use_cache=False, ...) with prompt_length stated, and report it with this table",
    ),
    "left padding against none": (
        "logits of a row padded on the left, in a batch",
        "give prompts one by one, and report it with this table",
    ),
}
"""What each check compares, and what to do where it failed."""

_PADDING = 7


def method_rows(subject: Subject, method: Method) -> Iterator[CheckRow]:
    """A row for each of `CHECKS`, each over all settings; not run where the model cannot have the method."""
    if why := unfit(subject.model.config, type(method)):
        yield from (CheckRow(check, NOT_RUN, why, method.name) for check in CHECKS)
        return
    comparisons: dict[str, list[Comparison]] = defaultdict(list)
    last = subject.settings[-1]
    mistake = 0.0
    for setting in reversed(subject.settings):
        stock, ids = subject.stock[setting], subject.ids(setting.length)
        with (
            applied(subject.model, method, prompt_length=setting.prompt) as attachment,
            record_method(attachment) as calls,
        ):
            fused = run(subject.model, ids).logits
        comparisons["fused against pairs"] += against_pairs(subject, setting, attachment, calls)
        if setting == last:
            nope = NoPE(trained_length=subject.pretended)
            other = _logits(subject, nope, setting, "fused") if method.uses_model_rope else fused
            mistake = max_difference(other, stock.logits)
        results = {
            "fused against dense": _logits(subject, method, setting, "dense"),
            "decoding against one pass": _decoded(subject, method, setting),
        }
        if attachment.state is None or attachment.state.left_padding:
            results["left padding against none"] = _left_padded(subject, method, setting)
        for check, logits in results.items():
            reference, where = fused[:, -logits.shape[1] :], f"at {setting.length} tokens"
            plans = (method.plan(length, setting.prompt) for length in setting)
            if check == "decoding against one pass" and not turn_alike(*plans):  # earlier tokens had other frequencies
                reference = _decoded(subject, method, setting, "dense")
                where += ", against dense decoding since frequencies follow the length"
            difference, allowed = max_difference(logits, reference), stock.allowed
            if widened := difference > allowed:  # a method may amplify what rounding does
                with rounding_perturbed(subject.model):
                    allowed = max(allowed, ALLOWED * max_difference(_logits(subject, method, setting, "fused"), fused))
            comparisons[check].append(Comparison(difference, allowed, mistake, where, widened))
    for check, (detail, remedy) in CHECKS.items():
        if check in comparisons:
            yield worst_row(check, method.name, comparisons[check], detail, remedy)
        else:
            yield CheckRow(check, NOT_RUN, "refused: padding would change the state that layers carry", method.name)


def _logits(subject: Subject, method: Method, setting: PromptSizes, executor: str) -> Tensor:
    """Of a setting's tokens, in one pass."""
    with applied(subject.model, method, executor=executor, prompt_length=setting.prompt):
        return run(subject.model, subject.ids(setting.length)).logits


def _decoded(subject: Subject, method: Method, setting: PromptSizes, executor: str = "fused") -> Tensor:
    """Of the tokens after the prompt, one by one."""
    ids, cache = subject.ids(setting.length), DynamicCache(config=subject.model.config)
    parts = []
    with applied(subject.model, method, executor=executor):
        for part in (ids[:, : setting.prompt], *ids[:, setting.prompt :].split(1, 1)):
            parts.append(run(subject.model, part, **with_cache(subject.model, cache)).logits)
    return torch.cat(parts[1:], 1)


def _left_padded(subject: Subject, method: Method, setting: PromptSizes) -> Tensor:
    """Of a setting's tokens, behind padding, beside a longer row of other tokens."""
    ids, other = subject.ids(setting.length), subject.ids(setting.length + _PADDING, row=1)
    batch = torch.cat([torch.cat([other[:, :_PADDING], ids], 1), other])
    mask = torch.ones_like(batch)
    mask[0, :_PADDING] = 0
    with applied(subject.model, method, prompt_length=setting.prompt + _PADDING):
        return run(subject.model, batch, attention_mask=mask).logits[:1, _PADDING:]


_LAYERS, _HEADS, _TOKENS = 6, 2, 6


def against_pairs(subject: Subject, setting: PromptSizes, attachment: Attachment, calls: Calls) -> Iterator[Comparison]:
    """Comparisons in some layers."""
    plan = attachment.method.plan(setting.length, setting.prompt)
    unrotated = before_rotation(subject.model, subject.ids(setting.length), calls)
    for number in _some(range(len(calls.functions)), _LAYERS):
        call = calls.functions[number]
        if attachment.slopes is None:
            at = _scaled(subject.stock[setting].positions[number], plan)
        else:
            at = Positions(slopes=attachment.slopes.double().numpy())
        where = f"in layer {call.attends.layer} at {setting.length} tokens"
        yield _of_layer(call, unrotated[number], plan, at, subject.model.dtype, where)


def _of_layer(
    call: AttentionCall, unrotated: AttentionCall, plan: Plan, at: Positions, dtype: torch.dtype, where: str
) -> Comparison:
    """The largest difference, with what rounding makes, and what every distance one too large would.

    Where no position enters, the mistake is a key too few.
    """
    query, keys, values = (array(states[0]) for states in (unrotated.query, unrotated.key, call.value))
    group, output, largest = len(query) // len(keys), array(call.output[0]), np.zeros(3)
    for token in _some(range(1, plan.length), _TOKENS):
        seen = seen_by(plan, token, None if unrotated.seen is None else unrotated.seen[token].cpu().numpy())
        there = seen.query_position
        farther = seen._replace(query_position=there + (seen.keys < token))  # all but itself: the nearest mistake
        if at.none:
            farther = Seen(*(part[1:] for part in seen)) if len(seen.keys) > 1 else seen
        sign = np.random.default_rng(4).choice((-1.0, 1.0), len(seen.keys))
        blurred = seen._replace(query_position=there + plan.length * 2**-24 * sign)  # as float32 angles are
        for head in _some(range(len(query)), _HEADS):
            states = query[head, token], keys[head // group], values[head // group]
            sink = None if call.sinks is None else float(call.sinks[head])
            noisy = perturbed(states[0], dtype, 0), perturbed(states[1], dtype, 1), perturbed(states[2], dtype, 2)
            true, rounded, mistaken = (
                attention_output(given, pairs, call.scaling, at, head, call.softcap, sink)
                for given, pairs in ((states, seen), (noisy, blurred), (states, farther))
            )
            others = output[token, head], perturbed(rounded, dtype, 3), mistaken
            largest = np.maximum(largest, [np.nan_to_num(abs(other - true), nan=np.inf).max() for other in others])
    difference, rounding, mistake = largest.tolist()
    return Comparison(difference, ALLOWED * rounding, mistake, where)


def _scaled(at: Positions, plan: Plan) -> Positions:
    """Positions with the plan's frequencies."""
    if plan.frequency_scale is None or at.frequencies is None:
        return at
    number = np.arange(len(at.frequencies), dtype=np.float64)
    scale = plan.frequency_scale(number, 2 * len(number), rotary_base(at.frequencies))
    return replace(at, frequencies=at.frequencies * scale)


def _some(items: Sequence[int], count: int) -> list[int]:
    """At most so many of the items, evenly spread, the first and the last among them."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in dict.fromkeys(places.tolist())]
