"""What `mesa-lens anatomy` is asked for, checked against the model's config before any weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mesa.errors import Refused
from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method
from mesa.models import bytes_a_number, tokenizer_of
from probe.capture.memory import check_prompts, peak_bytes, prompt_bytes
from probe.capture.spec import CaptureSpec
from probe.commands.anatomy.request import AnatomyRequest
from probe.commands.eval.plan import PROMPTS
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.likelihood import TAIL
from probe.eval_tasks.retrieval import Prompt
from probe.eval_tasks.retrieval_tasks import PASSKEY
from probe.eval_tasks.score import documents_of, logits_bytes
from probe.eval_tasks.sources import TextSource
from probe.eval_tasks.token_texts import token_texts
from probe.files import JsonObject
from probe.options import parse_ranges
from probe.request import warn_skipped

PARTS = ("heads", "retrieval", "tokens")
"""What is measured, in this order."""
_PASSKEYS = 2  # version of what retrieval reads; 1 had answers beyond the length


class AnatomyKey(NamedTuple):
    """What a row of the journal is of; length in tokens, prompt: its number."""

    part: str
    method: str
    length: int
    prompt: int


@dataclass(frozen=True)
class AnatomyPlan:
    """A checked request: methods, lengths in rising order, and prompts by length; without passkeys none is read.

    words: the tokens of the first text of the longest length, as texts.
    """

    request: AnatomyRequest
    config: Any
    methods: dict[str, Method]
    lengths: list[int]
    layers: list[int]
    texts: dict[int, Sequence[Any]]
    passkeys: dict[int, Sequence[Prompt]]
    documents: str
    text_source: TextSource
    words: tuple[str, ...] = ()

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return next(iter(self.methods.values())).trained_length

    @property
    def reference(self) -> str:
        """The method that others are compared with: Origin, or the first."""
        return "origin" if "origin" in self.methods else next(iter(self.methods))

    @property
    def keys(self) -> Iterator[AnatomyKey]:
        """The rows of the journal, in the order in which they are measured."""
        longest = self.lengths[-1]
        tokens = {longest: self.texts[longest][:1]} if "tokens" in self.request.parts else {}
        texts = self.texts if "heads" in self.request.parts else {}
        for part, by_length in zip(PARTS, (texts, self.passkeys, tokens), strict=True):
            for length, prompts in by_length.items():
                for name in self.methods:
                    yield from (AnatomyKey(part, name, length, number) for number in range(len(prompts)))

    @property
    def settings(self) -> JsonObject:
        """Everything that a row depends on beside its key and its method, as JSON."""
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
    """Checks the request and builds every prompt. Raises Refused or FileNotFoundError, naming the value.

    Where no length is given and passkeys do not fit into the default ones, retrieval is left out, with a note on
    stderr.
    """
    config, trained = request.checked_model()
    methods = request.checked_methods(config, trained)
    layers = list(CaptureSpec(layers=parse_ranges(request.layers, "--layers")).resolve(config, 1).layers)
    lengths = sorted(set(request.lengths or (trained, 4 * trained)))
    check_prompts(lengths[-1], request.samples)
    tokenizer = tokenizer_of(request.model, **request.source)
    documents, text_source = documents_of(tokenizer, request.text)
    setting = PromptSpec(trained, tuple(lengths), request.samples, request.seed, documents)
    texts: dict[int, Sequence[Any]] = {}
    passkeys: dict[int, Sequence[Prompt]] = {}
    if {"heads", "tokens"} & {*request.parts}:
        texts = {length: TAIL.prepare(tokenizer, length, setting, request.samples) for length in lengths}
    if "retrieval" in request.parts:
        try:
            passkeys = {length: _passkeys(tokenizer, length, setting) for length in lengths}
        except Refused as error:
            if request.lengths is not None or not texts:
                raise
            warn_skipped({"retrieval": f"retrieval: {error}"})
    words: tuple[str, ...] = ()
    if "tokens" in request.parts:
        words = tuple(token_texts(tokenizer, texts[lengths[-1]][0]))
    return AnatomyPlan(
        request, config, methods, lengths, layers, texts, passkeys, ids_fingerprint(documents), text_source, words
    )


def _passkeys(tokenizer: Any, length: int, setting: PromptSpec) -> Sequence[Prompt]:
    """Prompts that end early enough for the answer's tokens to be predicted within `length`: at M, all inside M."""
    room = 0
    while True:
        prompts = PASSKEY.prepare(tokenizer, length - room, setting, setting.samples)
        needed = max(len(prompt.answer_ids) for prompt in prompts) - 1
        if needed <= room:
            return prompts
        room = needed


def pass_bytes(plan: AnatomyPlan, part: str, length: int) -> int:
    """Estimate of the memory of one pass beside the weights.

    Retrieval decodes with a cache, tokens have logits at every position.
    """
    number_bytes = bytes_a_number(plan.config, plan.request.load)
    beside: dict[str, int] = {"heads": 0, "retrieval": prompt_bytes(plan.config, length, number_bytes)}
    logits = logits_bytes(plan.config.vocab_size, length, number_bytes)
    return peak_bytes(plan.config, length, number_bytes, beside.get(part, logits))
