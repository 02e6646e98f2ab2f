"""A method on the model: one executor against the other and against pairs, decoding and padding against one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from transformers import DynamicCache

from mesa.checking.by_pairs import by_pairs
from mesa.checking.heard import heard_under
from mesa.checking.rounding import ALLOWED, rounded_once_more
from mesa.checking.rows import Found, Row, judged
from mesa.checking.subject import Setting, Subject, apart, run
from mesa.engine.apply import applied
from mesa.methods import Method, NoPE
from mesa.plan import turn_alike

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


def method_rows(subject: Subject, method: Method) -> Iterator[Row]:
    """A row for each of `CHECKS`, each over all settings."""
    found: dict[str, list[Found]] = defaultdict(list)
    last = subject.settings[-1]
    mistake = 0.0
    for setting in reversed(subject.settings):
        stock, ids = subject.stock[setting], subject.ids(setting.length)
        with applied(subject.model, method, prompt_length=setting.prompt) as attachment:
            with heard_under(attachment) as calls:
                fused = run(subject.model, ids).logits
            found["fused against pairs"] += by_pairs(subject, setting, attachment, calls)
        if setting == last:
            mistake = apart(fused if not method.as_trained else _without_positions(subject, setting), stock.logits)
        results = {
            "fused against dense": _logits(subject, method, setting, "dense"),
            "decoding against one pass": _decoded(subject, method, setting),
            "left padding against none": _padded(subject, method, setting),
        }
        for check, logits in results.items():
            reference, where = fused[:, -logits.shape[1] :], f"at {setting.where}"
            if check == "decoding against one pass" and _changes(method, setting):  # earlier tokens had other ones
                reference = _decoded(subject, method, setting, "dense")
                where += ", against dense decoding since frequencies follow the length"
            found[check].append(Found(difference := apart(logits, reference), stock.allowed, mistake, where))
            if difference > stock.allowed:  # a method may amplify what rounding does
                allowed = max(stock.allowed, _disturbed(subject, method, setting, fused))
                found[check][-1] = replace(found[check][-1], allowed=allowed, widened=True)
    for check, (says, remedy) in CHECKS.items():
        yield judged(check, method.name, found[check], says, remedy)


def _disturbed(subject: Subject, method: Method, setting: Setting, fused: Tensor) -> float:
    """What rounding may make of the logits under the method."""
    with rounded_once_more(subject.model):
        return ALLOWED * apart(_logits(subject, method, setting, "fused"), fused)


def _without_positions(subject: Subject, setting: Setting) -> Tensor:
    return _logits(subject, NoPE(trained_length=subject.pretended), setting, "fused")


def _logits(subject: Subject, method: Method, setting: Setting, executor: str) -> Tensor:
    """Of a setting's tokens, in one pass."""
    with applied(subject.model, method, executor=executor, prompt_length=setting.prompt):
        return run(subject.model, subject.ids(setting.length)).logits


def _decoded(subject: Subject, method: Method, setting: Setting, executor: str = "fused") -> Tensor:
    """Of the tokens after the prompt, one by one."""
    ids, cache = subject.ids(setting.length), DynamicCache(config=subject.model.config)
    parts = []
    with applied(subject.model, method, executor=executor):
        for part in (ids[:, : setting.prompt], *ids[:, setting.prompt :].split(1, 1)):
            parts.append(run(subject.model, part, past_key_values=cache).logits)
    return torch.cat(parts[1:], 1)


def _padded(subject: Subject, method: Method, setting: Setting) -> Tensor:
    """Of a setting's tokens, behind padding, beside a longer row of other tokens."""
    ids, other = subject.ids(setting.length), subject.ids(setting.length + _PADDING, row=1)
    batch = torch.cat([torch.cat([other[:, :_PADDING], ids], 1), other])
    mask = torch.ones_like(batch)
    mask[0, :_PADDING] = 0
    with applied(subject.model, method, prompt_length=setting.prompt + _PADDING):
        return run(subject.model, batch, attention_mask=mask).logits[:1, _PADDING:]


def _changes(method: Method, setting: Setting) -> bool:
    """Whether rotary frequencies change while tokens are decoded."""
    return not turn_alike(*(method.plan(length, setting.prompt) for length in setting))
