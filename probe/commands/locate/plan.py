"""What `mesa-lens locate` is asked for, checked against the model's config before any weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mesa.errors import Refused
from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method, Origin
from mesa.models import bytes_a_number, tokenizer_of
from probe.capture.memory import check_prompts, peak_bytes
from probe.capture.spec import CaptureSpec
from probe.commands.eval.plan import PROMPTS
from probe.commands.locate.passes import Item, items
from probe.commands.locate.request import LocateRequest
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.likelihood import tail_tokens
from probe.eval_tasks.retrieval import word_ids
from probe.eval_tasks.score import documents_of, logits_bytes
from probe.eval_tasks.sources import TextSource
from probe.experiment.task import Key
from probe.files import JsonObject
from probe.heads import head_name
from probe.options import parse_heads, parse_ranges
from probe.thresholds.search import CrossingRule, check_positions

ORIGIN = "origin"
ItemGroup = tuple[str, int]
"""A measure, and a length in tokens."""
_MANY_HEADS = 64  # up to which all are tried where none are named


class LocateKey(NamedTuple):
    """What a row of the journal is of. item: its number, -1 for what is of all; tried: the key of the intervention."""

    measure: str
    length: int
    method: str
    item: int
    tried: tuple[str | int, ...]

    @classmethod
    def of(cls, key: Key) -> LocateKey:
        """Of a flat key, as the journal has it."""
        measure, length, method, item, *tried = (*key, -1) if len(key) == len(("kind", "length", "method")) else key
        return cls(str(measure), int(length), str(method), int(item), tuple(tried))

    @property
    def group(self) -> ItemGroup:
        """The items that it belongs to."""
        return self.measure, self.length


@dataclass(frozen=True)
class LocatePlan:
    """A checked request: methods ('origin' first), items by (measure, length), layers and (layer, head) pairs."""

    request: LocateRequest
    config: Any
    methods: dict[str, Method]
    items: dict[ItemGroup, list[Item]]
    layers: list[int]
    heads: list[tuple[int, int]]
    documents: tuple[np.ndarray, ...]
    text_source: TextSource

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return self.methods[ORIGIN].trained_length

    @property
    def compared(self) -> list[str]:
        """The methods but Origin."""
        return [name for name in self.methods if name != ORIGIN]

    @property
    def settings(self) -> JsonObject:
        """Everything that the losses of a task depend on beside its key and its method, as JSON."""
        return {
            **self.request.identity,
            "trained_length": self.trained_length,
            "longest": max(length for _, length in self.items),
            "prompts": PROMPTS,
            **identity(self.request.model, self.config),
            "documents": ids_fingerprint(self.documents),
        }


def plan(request: LocateRequest) -> LocatePlan:
    """Checks the request and builds every item. Raises Refused or FileNotFoundError, naming the value."""
    _check_samples(request)
    config, trained = request.checked_model()
    methods: dict[str, Method] = {ORIGIN: Origin(trained_length=trained), **_compared(request, config, trained)}
    layers, heads = _layers_and_heads(request, config)
    _check_places(request, config, heads)
    tokenizer = tokenizer_of(request.model, **request.source)
    word_ids(tokenizer, request.word)
    documents, text_source = documents_of(tokenizer, request.text)
    lengths = sorted(request.lengths or (4 * trained,))
    if lengths[0] <= trained:
        raise Refused(f"--lengths {lengths[0]} is not beyond the trained length {trained}; nothing fails there")
    check_prompts(lengths[-1], request.samples)
    for length in lengths if "clamp" in request.kinds else ():
        check_positions(range(length), trained, CrossingRule.scaled(trained))
    setting = PromptSpec(trained, tuple(lengths), request.samples, request.seed, documents)
    prompts = {
        (measure, length): items(measure, tokenizer, length, setting)
        for length in lengths
        for measure in request.measures
    }
    return LocatePlan(request, config, methods, prompts, layers, heads, documents, text_source)


def _check_samples(request: LocateRequest) -> None:
    """Raises Refused where one sample does not do."""
    reasons = {"smallest": "the smallest set is chosen on one half of them", "passkey": "one answer has no interval"}
    for name, reason in reasons.items() if request.samples < 2 else ():
        if name in (*request.kinds, *request.measures):
            raise Refused(f"--samples {request.samples}: {reason}, give at least 2")


def _compared(request: LocateRequest, config: Any, trained: int) -> dict[str, Method]:
    methods = request.checked_methods(config, trained)
    methods.pop(ORIGIN, None)
    if not methods:
        raise Refused(f"--methods {request.methods} names nothing to compare with Origin; try rerope,mesa")
    for name, method in methods.items():
        if method.layers is not None or method.heads is not None:
            raise Refused(f"--set gives {name} its layers or heads, which are what is varied here; leave them out")
    return methods


def _layers_and_heads(request: LocateRequest, config: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The layers, and the (layer, head) pairs, to try."""
    layers = list(CaptureSpec(layers=parse_ranges(request.layers, "--layers")).resolve(config, 1).layers)
    heads, named = config.num_attention_heads, request.heads
    if named is None:
        named = "all" if len(layers) * heads <= _MANY_HEADS else "none"
    if named == "none":
        return layers, []
    if pairs := parse_heads(named):
        depth = config.num_hidden_layers
        if missing := [head_name(*pair) for pair in pairs if pair[0] >= depth or pair[1] >= heads]:
            raise Refused(f"--heads {missing[0]} is not there: the model has {depth} layers of {heads} heads")
        return layers, sorted({*pairs})
    headed = CaptureSpec(layers=parse_ranges(named, "--heads")).resolve(config, 1).layers
    return layers, [(layer, head) for layer in headed if layer in layers or request.heads for head in range(heads)]


def _check_places(request: LocateRequest, config: Any, heads: list[tuple[int, int]]) -> None:
    """Raises Refused for a search without heads, or dims without controls."""
    if "smallest" in request.kinds and not heads:
        raise Refused("--try smallest has no heads to choose from; name the layers of some with --heads")
    if "clamp" in request.kinds and 2 * request.dims > config.hidden_size:
        raise Refused(
            f"--dims {request.dims} leaves too few of the {config.hidden_size} dims to draw as many controls from; "
            f"give at most {config.hidden_size // 2}"
        )


def task_bytes(plan: LocatePlan, kind: str, length: int) -> int:
    """Estimate of the memory beside the weights of a task: the states of both runs, one pass, and its logits."""
    config, depth = plan.config, plan.config.num_hidden_layers
    number_bytes = bytes_a_number(config, plan.request.load)
    streams = {
        "clamp": 6 * depth,  # the search for threshold dims
        "smallest": plan.request.samples * (depth + 2),  # every item's baseline at once
    }.get(kind, 2 * (depth + 1))
    logits = logits_bytes(config.vocab_size, tail_tokens(plan.trained_length), number_bytes)
    return peak_bytes(config, length, number_bytes, streams * length * config.hidden_size * number_bytes + logits)
