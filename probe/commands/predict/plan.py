"""What `mesa-lens predict` is asked for, checked before any weights are loaded, and the passes it comes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.errors import Refused
from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method, make
from mesa.models import bytes_a_number, tokenizer_of
from mesa.plan import follows_length, query_scales, relative_positions
from mesa.settings import method_settings
from mesa.support import check_method
from probe.capture.memory import check_prompts, peak_bytes
from probe.commands.predict.calibration import LOG_N, ORIGIN, REFERENCE, Key, gap_methods
from probe.commands.predict.formula import scored_queries
from probe.commands.predict.kind import moved_methods
from probe.commands.predict.request import PredictRequest
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import documents_of, logits_bytes, text_windows
from probe.eval_tasks.sources import TextSource
from probe.files import JsonObject

GAP_TOKENS = 4096
"""A calibration prompt has M tokens, and no more than these."""
_TIMES = (1.25, 1.5, 2, 3, 4, 6, 8)
_PART = 16  # tokens, of which runs are compared


@dataclass(frozen=True)
class PlannedPass:
    """A prompt under a method. scored: how many of its last tokens are scored."""

    method: Method
    length: int
    scored: int


@dataclass(frozen=True)
class PredictPlan:
    """A request, checked. methods: by name; refused: those that nothing is predicted of, and why. texts: token ids."""

    request: PredictRequest
    config: Any
    trained_length: int
    lengths: tuple[int, ...]
    methods: dict[str, Method]
    refused: dict[str, str]
    texts: tuple[np.ndarray, ...]
    text_source: TextSource

    @property
    def longest(self) -> int:
        """The longest prompt, in tokens."""
        return max(self.lengths)

    @property
    def gap_tokens(self) -> int:
        """Tokens of a calibration prompt."""
        return min(self.trained_length, GAP_TOKENS)

    @property
    def passes(self) -> dict[Key, PlannedPass]:
        """Every pass over a text, by the name of its method and its tokens."""
        trained, longest, tokens = self.trained_length, self.longest, self.gap_tokens
        predicted = {name: method for name, method in self.methods.items() if name not in self.refused}
        fixed = {ORIGIN: make(ORIGIN, trained), REFERENCE: make(REFERENCE, trained)}
        if any((query_scales(method.plan(longest)) != 1).any() for method in predicted.values()):
            fixed[LOG_N] = make(ORIGIN, trained, log_n=True)
        passes = {(name, longest): PlannedPass(method, longest, longest - 1) for name, method in fixed.items()}
        for name, method in (gap_methods(trained, tokens, longest) | moved_methods(trained, tokens, longest)).items():
            passes[name, tokens] = PlannedPass(method, tokens, tokens // 4)
        for name, method in {ORIGIN: fixed[ORIGIN], **predicted}.items():
            passes[name, trained] = PlannedPass(method, trained, trained // 4)
        for name, method in self.methods.items() if self.request.check else ():
            for length in self.checked_lengths(method):
                scored = length - 1 if length == longest else trained // 4
                passes.setdefault((name, length), PlannedPass(method, length, scored))
        return passes

    def checked_lengths(self, method: Method) -> tuple[int, ...]:
        """The prompts that measure a method: the longest alone, where a shorter one is its beginning."""
        whole = method.plan(self.longest)
        for length in self.lengths:
            plan, queries = method.plan(length), scored_queries(length, self.trained_length, 4)
            keys = np.arange(length)
            same = np.array_equal(relative_positions(plan, queries, keys), relative_positions(whole, queries, keys))
            if not same or (length < self.longest and follows_length(plan, whole)):
                return self.lengths
        return (self.longest,)

    @property
    def settings(self) -> JsonObject:
        """Everything that losses depend on beside method, length and text, as JSON."""
        return {
            **self.request.identity,
            "trained_length": self.trained_length,
            "longest": self.longest,
            "documents": ids_fingerprint(self.texts),
            **identity(self.request.model, self.config),
        }


def plan(request: PredictRequest) -> PredictPlan:
    """Checks the request and cuts the texts. Raises Refused or FileNotFoundError, naming the value."""
    config, trained = request.checked_model()
    lengths = tuple(
        sorted({round(trained * times) for times in _TIMES} if request.lengths is None else {*request.lengths})
    )
    if lengths[0] <= trained:
        raise Refused(f"--lengths {lengths[0]} is not beyond the trained length {trained}; nothing is predicted there")
    if lengths[-1] < (least := trained + min(trained, GAP_TOKENS)):
        raise Refused(
            f"--lengths up to {lengths[-1]}: the longest must be at least {least}, so that gaps of M/2 and of M "
            "tokens, which p is fitted to, give no distance that Origin does not have there"
        )
    if trained < 16:
        raise Refused(f"--trained-length {trained} is below 16, too short for the calibration")
    if request.samples < 2:
        raise Refused(f"--samples {request.samples}: one text has no interval; give at least 2")
    check_prompts(lengths[-1], request.samples)
    methods = {ORIGIN: make(ORIGIN, trained), **request.checked_methods(config, trained)}
    for name in (ORIGIN, REFERENCE):  # their losses are what predictions rest on
        if methods.get(name, make(name, trained)) != make(name, trained):
            raise Refused(
                f"--set gives {name} parameters, but predictions rest on it as it is; give the variant a line of its "
                f"own, such as --config {name}:log_n=true"
            )
    methods |= configs(request.configs, trained)
    for method in methods.values():
        check_method(config, method)
    refused = {name: reason for name, method in methods.items() if (reason := unsupported_reason(method))}
    tokenizer = tokenizer_of(request.model, **request.source)
    first = np.array(first_ids(tokenizer), np.int64)
    documents, text_source = documents_of(tokenizer, request.text)
    needed = lengths[-1] - len(first)
    windows = text_windows(documents, needed, request.samples, scored=needed)  # without overlap
    if len(windows) < 2:
        raise Refused(f"the text holds one run of {lengths[-1]} tokens; give a longer --text or shorter --lengths")
    parts = [window[at : at + _PART].tobytes() for window in windows for at in range(0, needed - _PART, _PART)]
    if len({*parts}) < len(parts) / 2:
        raise Refused(
            f"the text repeats itself: of {len(parts)} runs of {_PART} tokens only {len({*parts})} differ, so its "
            "parts are not independent texts; give another --text"
        )
    texts = tuple(np.concatenate([first, window]) for window in windows)
    return PredictPlan(request, config, trained, lengths, methods, refused, texts, text_source)


def configs(texts: Sequence[str], trained_length: int) -> dict[str, Method]:
    """Methods with parameters, by their texts, such as 'leaky-rerope:k=2,log_n=false'. Refused names a wrong one."""
    methods = {}
    for text in texts:
        name, colon, values = text.partition(":")
        if not colon or not values:
            raise Refused(f"--config {text!r} is not METHOD:PARAMETER=VALUE,..., e.g. leaky-rerope:k=2,log_n=false")
        if text in methods:
            raise Refused(f"--config {text!r} is given twice")
        try:
            each = re.split(r",(?=\s*\w+\s*=)", values)  # a value may hold commas, as heads=0:0,3
            parameters = method_settings([f"{name}.{value}" for value in each], "parameter")[name]
            methods[text] = make(name, trained_length, **parameters)
        except Refused as error:
            raise Refused(f"--config {text!r}: {error}") from None
    return methods


def unsupported_reason(method: Method) -> str:
    """Why the law says nothing of a method; empty where it does."""
    if method.needs_rotary:
        return "rotary frequencies are changed, and predictions use distances alone"
    if method.layers is not None or method.heads is not None:
        return "some layers or heads alone have the method, and predictions are for all of them"
    return ""


def needed_bytes(plan: PredictPlan) -> int:
    """Estimate of the memory beside the weights: a pass at the longest length, and its logits."""
    number_bytes = bytes_a_number(plan.config, plan.request.load)
    logits = logits_bytes(plan.config.vocab_size, plan.longest, number_bytes)
    return peak_bytes(plan.config, plan.longest, number_bytes, logits)
