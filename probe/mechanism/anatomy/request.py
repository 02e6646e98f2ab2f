"""What `mesa-lens anatomy` is asked for, checked against the model's config before any weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method
from mesa.models import bytes_a_number, tokenizer_of
from mesa.support import no_phases
from probe.capture.memory import check_prompts, peak_bytes, prompt_bytes
from probe.capture.spec import CaptureSpec, Kept
from probe.evaluation.plan import PROMPTS
from probe.mechanism.anatomy.collect import collect_bytes
from probe.mechanism.anatomy.sliding import sliding_windows
from probe.options import parse_ranges
from probe.request import AnatomyRequest, tell_left_out
from probe.tasks import sources
from probe.tasks.base import Setting
from probe.tasks.finding import PASSKEY
from probe.tasks.likelihood import TAIL
from probe.tasks.retrieval import Prompt, first_ids
from probe.tasks.score import heldout_ids
from probe.thresholds.search import CrossingRule, check_positions

PARTS = ("heads", "retrieval", "frequencies", "lens", "vectors")
"""What is measured, in this order."""
Cell = tuple[str, str, int, int]
"""Part, method, length and the number of the prompt."""
LEAST_TEXTS = 4
"""Two a half: fewer say nothing of variance."""
_TEXTS = 256
_PASSKEYS = 2  # version of what retrieval reads; 1 had answers beyond the length
_WHOLE_BYTES = 2**30
"""Means above this are stored in float32."""


@dataclass(frozen=True)
class AnatomyPlan:
    """A request, checked: methods, lengths in rising order, prompts by length, and the texts that slide."""

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
        """The method that others are held against: Origin, or the first."""
        return "origin" if "origin" in self.methods else next(iter(self.methods))

    @property
    def spec(self) -> CaptureSpec:
        """What positional vectors are taken of."""
        return CaptureSpec(layers=parse_ranges(self.request.layers, "--layers"))

    @property
    def kept(self) -> Kept:
        """The same as indices."""
        return self.spec.resolve(self.config, self.lengths[-1])

    @property
    def dtype(self) -> str:
        """Of the stored means."""
        return "float64" if 16 * self.kept.values <= _WHOLE_BYTES else "float32"

    @property
    def cells(self) -> Iterator[Cell]:
        """What is journaled, in the order in which it is run."""
        for part in (part for part in self.parts if part != "vectors"):
            for length in self.lengths:
                prompts = self.passkeys if part == "retrieval" else self.texts
                for name in self.methods:
                    yield from ((part, name, length, number) for number in range(len(prompts[length])))

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that a cell depends on, beside its own name and its method; ready for JSON."""
        asked = asdict(self.request)
        return {
            **{name: asked[name] for name in ("model", "seed", "samples", "executor", "text", "layers")},
            **{key: value for key, value in self.request.load.items() if value is not None},
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
    texts, stride = {}, max(1, trained // 8)
    for length in lengths:
        if {"heads", "frequencies", "lens"} & {*parts}:
            texts[length] = TAIL.prepare(tokenizer, length, setting, request.samples)
    build = {
        "retrieval": lambda: {length: _passkeys(tokenizer, length, setting) for length in lengths},
        "vectors": lambda: _sliding(request, tokenizer, documents, lengths[-1], trained),
    }
    built = {part: made for part in build if part in parts and (made := _unless_default(request, part, build[part]))}
    passkeys, sliding = built.get("retrieval", {}), built.get("vectors", [])
    parts = [part for part in parts if part not in build or part in built]
    made = ids_fingerprint(documents)
    return AnatomyPlan(request, config, methods, parts, lengths, layers, texts, passkeys, sliding, stride, made)


def _parts(request: AnatomyRequest, config: Any) -> list[str]:
    """The parts, in order; without phases that go for all layers 'all' has no frequencies, which is said on stderr."""
    asked = PARTS if "all" in request.parts else request.parts
    reason = no_phases(config.model_type)
    if not reason or "frequencies" not in asked:
        return [part for part in PARTS if part in asked]
    problem = f"frequencies: model type {config.model_type!r} {reason}"
    if "frequencies" in request.parts:
        raise ValueError(f"--parts {problem}")
    tell_left_out({"frequencies": problem})
    return [part for part in PARTS if part in asked and part != "frequencies"]


def _unless_default(request: AnatomyRequest, part: str, build: Callable[[], Any]) -> Any:
    """What `build` makes for a part; None, which stderr explains, where it fails by default parts and lengths."""
    try:
        return build()
    except ValueError as error:
        if request.lengths is not None or part in request.parts:
            raise
        tell_left_out({part: f"{part}: {error}"})
        return None


def _passkeys(tokenizer: Any, length: int, setting: Setting) -> Sequence[Prompt]:
    """Prompts that end early enough for the answer's tokens to be asked for within `length`: at M, all inside M."""
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


def needed_bytes(made: AnatomyPlan) -> int:
    """Estimate of the memory beside the weights: one pass, and the vectors of all methods when they are read."""
    found = [pass_bytes(made, part, made.lengths[-1]) for part in made.parts]
    if "vectors" in made.parts:
        each = bytes_a_number(made.config, made.request.load)
        found.append(collect_bytes(made.config, made.kept, made.lengths[-1], each, made.dtype))
        found.append(reading_bytes(made))
    return max(found)


def pass_bytes(made: AnatomyPlan, part: str, length: int) -> int:
    """The same, of one pass."""
    each = bytes_a_number(made.config, made.request.load)
    return peak_bytes(made.config, length, each, prompt_bytes(made.config, length, each) * (part == "retrieval"))


def reading_bytes(made: AnatomyPlan) -> int:
    """The same, where vectors are read, which takes no model."""
    return made.kept.values * (5 * np.dtype(made.dtype).itemsize + 12 * len(made.methods))


def tokens(made: AnatomyPlan) -> dict[str, int]:
    """Tokens that each part reads, in one pass a prompt and method."""
    found = dict.fromkeys(made.parts, 0)
    for part, _, length, _ in made.cells:
        found[part] += length
    if "vectors" in found:
        found["vectors"] = sum(map(len, made.sliding)) * len(made.methods)
    return found


def work(made: AnatomyPlan) -> dict[tuple[Method, int], float]:
    """Passes of a run by method and length."""
    found: dict[tuple[Method, int], float] = {}
    for _, name, length, _ in made.cells:
        found[made.methods[name], length] = found.get((made.methods[name], length), 0.0) + 1
    for method in made.methods.values() if "vectors" in made.parts else ():
        at = method, made.lengths[-1]
        found[at] = found.get(at, 0.0) + len(made.sliding)
    return found


def estimate(made: AnatomyPlan) -> str:
    """Passes, tokens, memory and disk of a run, as text."""
    work = tokens(made)
    disk = 2 * made.kept.values * np.dtype(made.dtype).itemsize * len(made.methods) if "vectors" in work else 0
    passes = sum(1 for _ in made.cells) + len(made.sliding) * len(made.methods)
    return (
        f"{len(made.methods)} methods, lengths {', '.join(map(str, made.lengths))}: {passes:,} passes, "
        f"{sum(work.values()):,} tokens ({', '.join(f'{part} {count:,}' for part, count in work.items())})\n"
        f"memory beside the weights at {made.lengths[-1]} tokens: about {needed_bytes(made) / 2**20:,.0f} MiB\n"
        f"disk: about {disk / 2**20:,.0f} MiB"
    )
