"""What `mesa-lens locate` is asked for, checked against the model's config before any weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method, Origin
from mesa.models import bytes_a_number, tokenizer_of
from probe.capture.memory import check_prompts, peak_bytes
from probe.capture.spec import CaptureSpec
from probe.evaluation.plan import PROMPTS
from probe.mechanism import interventions
from probe.mechanism.items import items
from probe.mechanism.passes import Item
from probe.options import parse_ranges
from probe.request import LocateRequest
from probe.tasks import sources
from probe.tasks.base import Setting
from probe.tasks.repeated import word_ids
from probe.tasks.score import heldout_ids
from probe.thresholds.search import CrossingRule, check_positions

ORIGIN = "origin"
Group = tuple[str, int]
"""A measure, and a length in tokens."""
KINDS = ("weave", "patch", "clamp", "attribution", "smallest")
_MANY = 64
"""Heads up to which all of them are gone over where none are named."""


@dataclass(frozen=True)
class LocatePlan:
    """A request, checked: methods ('origin' first), items by (measure, length), layers and (layer, head) pairs."""

    request: LocateRequest
    config: Any
    methods: dict[str, Method]
    items: dict[Group, list[Item]]
    layers: list[int]
    heads: list[tuple[int, int]]
    documents: tuple[np.ndarray, ...]

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return self.methods[ORIGIN].trained_length

    @property
    def mending(self) -> list[str]:
        """The methods that mend."""
        return [name for name in self.methods if name != ORIGIN]

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the losses of a cell depend on, beside its own name and its method; ready for JSON."""
        asked = asdict(self.request)
        kept = ("model", "seed", "samples", "executor", "text", "word", "dims")
        longest = max(length for _, length in self.items)
        return {
            **{name: asked[name] for name in kept},
            **{key: value for key, value in self.request.load.items() if value is not None},
            "trained_length": self.trained_length,
            "longest": longest,
            "prompts": PROMPTS,
            **identity(self.request.model, self.config),
            "documents": ids_fingerprint(self.documents),
        }

    @property
    def tried(self) -> Iterator[interventions.Intervention]:
        """The weaves and patches, in the order in which they are run."""
        asked = self.request
        if "weave" in asked.kinds:
            yield from interventions.weaves(self.layers, self.heads, asked.ways)
        if "patch" in asked.kinds:
            yield from interventions.patches(self.layers, self.heads, asked.hooks, asked.spans, asked.ways)


def plan(request: LocateRequest) -> LocatePlan:
    """Checks the request and builds every item. Raises ValueError or FileNotFoundError, naming the value."""
    if "smallest" in request.kinds and request.samples < 2:
        raise ValueError(
            f"--samples {request.samples}: the smallest set is chosen on one half of them, give at least 2"
        )
    if "passkey" in request.measures and request.samples < 2:
        raise ValueError(f"--samples {request.samples}: one answer has no interval, give at least 2")
    config, trained = request.checked_model()
    methods: dict[str, Method] = {ORIGIN: Origin(trained_length=trained), **_mending(request, config, trained)}
    layers, heads = _places(request, config)
    _check_places(request, config, layers, heads)
    tokenizer = tokenizer_of(request.model, **request.source)
    word_ids(tokenizer, request.word)
    documents = tuple(heldout_ids(tokenizer, sources.texts(request.text)))
    lengths = request.lengths or (4 * trained,)
    if min(lengths) <= trained:
        raise ValueError(f"--lengths {min(lengths)} is not beyond the trained length {trained}; nothing breaks there")
    check_prompts(max(lengths), request.samples)
    for length in sorted(lengths) if "clamp" in request.kinds else ():
        check_positions(range(length), trained, CrossingRule.scaled(trained))
    setting = Setting(trained, tuple(lengths), request.samples, request.seed, documents)
    made = {
        (measure, length): items(measure, tokenizer, length, setting)
        for length in sorted(lengths)
        for measure in request.measures
    }
    return LocatePlan(request, config, methods, made, layers, heads, documents)


def _mending(request: LocateRequest, config: Any, trained: int) -> dict[str, Method]:
    methods = {name: each for name, each in request.checked_methods(config, trained).items() if name != ORIGIN}
    if not methods:
        raise ValueError(f"--methods {request.methods} names nothing that mends Origin; try rerope,mesa,dynamic-ntk")
    for name, method in methods.items():
        if method.layers is not None or method.heads is not None:
            raise ValueError(f"--set gives {name} its layers or heads, which are what is varied here; leave them out")
    return methods


def _places(request: LocateRequest, config: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The layers, and the (layer, head) pairs, to go over."""
    layers = list(CaptureSpec(layers=parse_ranges(request.layers, "--layers")).resolve(config, 1).layers)
    heads, asked = config.num_attention_heads, request.heads
    if asked is None:
        asked = "all" if len(layers) * heads <= _MANY else "none"
    if asked == "none":
        return layers, []
    chosen = CaptureSpec(layers=parse_ranges(asked, "--heads")).resolve(config, 1).layers
    return layers, [(layer, head) for layer in chosen if layer in layers or request.heads for head in range(heads)]


def _check_places(request: LocateRequest, config: Any, layers: list[int], heads: list[tuple[int, int]]) -> None:
    """Raises ValueError where something that is to be tried has no place, or dims no stand-ins."""
    if "smallest" in request.kinds and not heads:
        raise ValueError("--try smallest has no heads to choose from; name the layers of some with --heads")
    if "clamp" in request.kinds and 2 * request.dims > config.hidden_size:
        raise ValueError(
            f"--dims {request.dims} leaves too few of the {config.hidden_size} dims to choose as many others from; "
            f"give at most {config.hidden_size // 2}"
        )
    counts = {
        "weave": sum(1 for _ in interventions.weaves(layers, heads, request.ways)),
        "patch": sum(1 for _ in interventions.patches(layers, heads, request.hooks, request.spans, request.ways)),
    }
    empty = [kind for kind, count in counts.items() if kind in request.kinds and not count]
    if empty and not {*request.kinds} - {*empty}:
        raise ValueError(
            f"--try {','.join(empty)} has nothing to try with --ways {','.join(request.ways)} and {len(heads)} heads; "
            "weaves go only, without; patches mend, break; hook z needs --heads"
        )


def needed_bytes(made: LocatePlan) -> int:
    """Estimate of the memory beside the weights: the states of both runs, and of a hook, and one pass."""
    longest = max(length for _, length in made.items)
    return max(cell_bytes(made, kind, longest) for kind in ("run", *made.request.kinds) if kind != "attribution")


def cell_bytes(made: LocatePlan, kind: str, length: int) -> int:
    """The same, of a cell of one kind; an attribution's backward pass is left out."""
    config, depth = made.config, made.config.num_hidden_layers
    each = bytes_a_number(config, made.request.load)
    streams = {
        "patch": 4 * depth + 2,
        "clamp": 6 * depth,  # what is searched for observable dims
        "smallest": made.request.samples * (depth + 2),  # every item's broken run at once
    }.get(kind, 2 * (depth + 1))
    return peak_bytes(config, length, each, streams * length * config.hidden_size * each)


def passes(made: LocatePlan) -> float:
    """Whole passes that one item of one method takes for weaves and patches; a pass from a layer on is a part."""
    depth = made.config.num_hidden_layers
    return 2 + sum((depth - each.layer) / depth for each in made.tried)


def work(made: LocatePlan) -> dict[tuple[Method, int], float]:
    """Passes of weaves and patches by method and length."""
    each: dict[tuple[Method, int], float] = {}
    for name in made.mending:
        for items_ in made.items.values():
            for item in items_:
                at = made.methods[name], len(item.ids)
                each[at] = each.get(at, 0.0) + passes(made)
    return each


def estimate(made: LocatePlan) -> str:
    """Passes, tokens and memory of a run, as text."""
    count, prompts = passes(made) * len(made.mending), sum(map(len, made.items.values()))
    tokens = sum(count * len(item.ids) for each in made.items.values() for item in each)
    more = [kind for kind in KINDS[2:] if kind in made.request.kinds]
    return (
        f"{len(made.layers)} layers, {len(made.heads)} heads, {len(made.mending)} methods, {prompts} prompts: about "
        f"{count:,.0f} passes a prompt, {tokens:,.0f} tokens{', beside ' + ', '.join(more) if more else ''}\n"
        f"memory beside the weights at {max(length for _, length in made.items)} tokens: "
        f"about {needed_bytes(made) / 2**20:,.0f} MiB"
    )
