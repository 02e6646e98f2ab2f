"""What `mesa-lens anatomy` is asked for, checked against the model's config before any weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method
from mesa.models import bytes_a_number, tokenizer_of
from mesa.support import no_phases
from probe.attention.moments import moments_bytes, sliding_windows
from probe.capture.memory import check_prompts, peak_bytes, prompt_bytes
from probe.capture.spec import CaptureSpec, Selection
from probe.evaluation.plan import PROMPTS
from probe.options import parse_ranges
from probe.request import AnatomyRequest, tell_left_out
from probe.tasks import sources
from probe.tasks.base import Setting
from probe.tasks.likelihood import TAIL
from probe.tasks.retrieval import Prompt, first_ids
from probe.tasks.retrieval_tasks import PASSKEY
from probe.tasks.score import heldout_ids
from probe.thresholds.search import CrossingRule, check_positions

PARTS = ("heads", "retrieval", "frequencies", "lens", "vectors")
"""What is measured, in this order."""
Key = tuple[str, str, int, int]
"""Part, method, length and the number of the prompt."""
LEAST_TEXTS = 4
"""Two a half: fewer have no variance."""
_TEXTS = 256
_PASSKEYS = 2  # version of what retrieval reads; 1 had answers beyond the length
_FLOAT64_BYTES = 2**30  # means above this are stored in float32


@dataclass(frozen=True)
class AnatomyPlan:
    """A checked request: methods, lengths in rising order, prompts by length, and the texts that slide."""

    request: AnatomyRequest
    config: Any
    methods: dict[str, Method]
    parts: list[str]
    lengths: list[int]
    layers: list[int]
    texts: dict[int, Sequence[np.ndarray]]
    passkeys: dict[int, Sequence[Prompt]]
    sliding: list[np.ndarray]
    stride: int
    documents: str

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return next(iter(self.methods.values())).trained_length

    @property
    def reference(self) -> str:
        """The method that others are compared with: Origin, or the first."""
        return "origin" if "origin" in self.methods else next(iter(self.methods))

    @property
    def spec(self) -> CaptureSpec:
        """What positional vectors are taken of."""
        return CaptureSpec(layers=parse_ranges(self.request.layers, "--layers"))

    @property
    def indices(self) -> Selection:
        """The same as indices."""
        return self.spec.resolve(self.config, self.lengths[-1])

    @property
    def dtype(self) -> str:
        """Of the stored means."""
        return "float64" if 16 * self.indices.values <= _FLOAT64_BYTES else "float32"

    @property
    def keys(self) -> Iterator[Key]:
        """The rows of the journal, in the order in which they are measured."""
        for part in (part for part in self.parts if part != "vectors"):
            for length in self.lengths:
                prompts = self.passkeys if part == "retrieval" else self.texts
                for name in self.methods:
                    yield from ((part, name, length, number) for number in range(len(prompts[length])))

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that a row depends on beside its key and its method, ready for JSON."""
        return {
            **self.request.identity,
            "trained_length": self.trained_length,
            "longest": self.lengths[-1],
            "prompts": PROMPTS,
            "passkeys": _PASSKEYS,
            **identity(self.request.model, self.config),
            "documents": self.documents,
        }


def plan(request: AnatomyRequest) -> AnatomyPlan:
    """Checks the request and builds every prompt. Raises ValueError or FileNotFoundError, naming the value."""
    config, trained = request.checked_model()
    parts = _parts(request, config)
    methods = request.checked_methods(config, trained)
    layers = list(CaptureSpec(layers=parse_ranges(request.layers, "--layers")).resolve(config, 1).layers)
    lengths = sorted(set(request.lengths or (trained, 4 * trained)))
    check_prompts(lengths[-1], request.samples)
    tokenizer = tokenizer_of(request.model, **request.source)
    documents = tuple(heldout_ids(tokenizer, sources.texts(request.text)))
    setting = Setting(trained, tuple(lengths), request.samples, request.seed, documents)
    texts: dict[int, Sequence[np.ndarray]] = {}
    if {"heads", "frequencies", "lens"} & {*parts}:
        texts = {length: TAIL.prepare(tokenizer, length, setting, request.samples) for length in lengths}
    build = {
        "retrieval": lambda: {length: _passkeys(tokenizer, length, setting) for length in lengths},
        "vectors": lambda: _sliding(request, tokenizer, documents, lengths[-1], trained),
    }
    wanted = {part: _unless_default(request, part, make) for part, make in build.items() if part in parts}
    built = {part: prompts for part, prompts in wanted.items() if prompts}
    return AnatomyPlan(
        request,
        config,
        methods,
        parts=[part for part in parts if part not in build or part in built],
        lengths=lengths,
        layers=layers,
        texts=texts,
        passkeys=built.get("retrieval", {}),
        sliding=built.get("vectors", []),
        stride=max(1, trained // 8),
        documents=ids_fingerprint(documents),
    )


def _parts(request: AnatomyRequest, config: Any) -> list[str]:
    """The parts, in order; without common phases of all layers, 'all' leaves frequencies out, with a note on stderr."""
    parts = PARTS if "all" in request.parts else request.parts
    reason = no_phases(config.model_type)
    if reason and "frequencies" in parts:
        problem = f"frequencies: model type {config.model_type!r} {reason}"
        if "frequencies" in request.parts:
            raise ValueError(f"--parts {problem}")
        tell_left_out({"frequencies": problem})
        parts = [part for part in parts if part != "frequencies"]
    return [part for part in PARTS if part in parts]


def _unless_default(request: AnatomyRequest, part: str, build: Callable[[], Any]) -> Any:
    """What `build` makes for a part; None, with a note on stderr, where it fails by default parts and lengths."""
    try:
        return build()
    except ValueError as error:
        if request.lengths is not None or part in request.parts:
            raise
        tell_left_out({part: f"{part}: {error}"})
        return None


def _passkeys(tokenizer: Any, length: int, setting: Setting) -> Sequence[Prompt]:
    """Prompts that end early enough for the answer's tokens to be predicted within `length`: at M, all inside M."""
    room = 0
    while True:
        prompts = PASSKEY.prepare(tokenizer, length - room, setting, setting.samples)
        needed = max(len(prompt.answer_ids) for prompt in prompts) - 1
        if needed <= room:
            return prompts
        room = needed


def _sliding(
    request: AnatomyRequest, tokenizer: Any, documents: Sequence[np.ndarray], length: int, trained: int
) -> list[np.ndarray]:
    """The texts that slide by M / 8, with the tokenizer's special token before each."""
    if length <= trained:
        raise ValueError(
            f"--lengths {length} is not beyond the trained length {trained}, and positional vectors are compared "
            "there; give a longer one, or leave vectors out of --parts"
        )
    check_positions(range(length), trained, CrossingRule.scaled(trained))
    first = np.array(first_ids(tokenizer), np.int64)
    tokens, stride = length - len(first), max(1, trained // 8)
    room = 2 * ((sum(map(len, documents)) // 2 - tokens) // stride + 1)
    runs = sliding_windows(documents, tokens, request.texts or max(LEAST_TEXTS, min(_TEXTS, room)), stride)
    return [np.concatenate([first, run]) for run in runs]


def needed_bytes(plan: AnatomyPlan) -> int:
    """Estimate of the memory beside the weights: one pass, and the vectors of all methods when they are read."""
    needed = [pass_bytes(plan, part, plan.lengths[-1]) for part in plan.parts]
    if "vectors" in plan.parts:
        indices, number_bytes = plan.indices, bytes_a_number(plan.config, plan.request.load)
        one_layer = (
            4 * 8 * len(indices.positions) * len(indices.dims)
        )  # float64: states, their deviations, before and after
        stored = moments_bytes(indices, plan.dtype) + states_bytes(plan) + one_layer
        needed += [peak_bytes(plan.config, plan.lengths[-1], number_bytes, stored), reading_bytes(plan)]
    return max(needed)


def pass_bytes(plan: AnatomyPlan, part: str, length: int) -> int:
    """The same, of one pass."""
    number_bytes = bytes_a_number(plan.config, plan.request.load)
    cache = prompt_bytes(plan.config, length, number_bytes) * (part == "retrieval")
    return peak_bytes(plan.config, length, number_bytes, cache)


def states_bytes(plan: AnatomyPlan) -> int:
    """Memory of the states of one text, in float32."""
    return 4 * plan.indices.values


def reading_bytes(plan: AnatomyPlan) -> int:
    """Memory for the results on vectors, which take no model."""
    return plan.indices.values * (5 * np.dtype(plan.dtype).itemsize + 12 * len(plan.methods))


def work(plan: AnatomyPlan) -> dict[tuple[Method, int], float]:
    """Passes of a run by method and length."""
    counts: dict[tuple[Method, int], float] = {}
    passes = [(name, length, 1) for _, name, length, _ in plan.keys]
    passes += [(name, plan.lengths[-1], len(plan.sliding)) for name in plan.methods if "vectors" in plan.parts]
    for name, length, count in passes:
        key = plan.methods[name], length
        counts[key] = counts.get(key, 0.0) + count
    return counts


def estimate(plan: AnatomyPlan) -> str:
    """Passes, tokens, memory and disk of a run, as text."""
    tokens = dict.fromkeys(plan.parts, 0)
    for part, _, length, _ in plan.keys:
        tokens[part] += length
    disk = 0
    if "vectors" in tokens:
        tokens["vectors"] = sum(map(len, plan.sliding)) * len(plan.methods)
        disk = 2 * plan.indices.values * np.dtype(plan.dtype).itemsize * len(plan.methods)
    passes = sum(1 for _ in plan.keys) + len(plan.sliding) * len(plan.methods)
    return (
        f"{len(plan.methods)} methods, lengths {', '.join(map(str, plan.lengths))}: {passes:,} passes, "
        f"{sum(tokens.values()):,} tokens ({', '.join(f'{part} {count:,}' for part, count in tokens.items())})\n"
        f"memory beside the weights at {plan.lengths[-1]} tokens: about {needed_bytes(plan) / 2**20:,.0f} MiB\n"
        f"disk: about {disk / 2**20:,.0f} MiB"
    )
