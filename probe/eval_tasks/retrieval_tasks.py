"""Retrieval tasks: passkey (three prompts), RULER's single needle (three haystacks), LongEval's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mesa.errors import Refused
from mesa.models import Loaded
from probe.eval_tasks import retrieval
from probe.eval_tasks.base import EvalTask, Metric, PromptSpec, Score, in_batches
from probe.eval_tasks.retrieval import Prompt
from probe.eval_tasks.score import retrieval_hits

Build = Callable[[Any, int, np.random.Generator, PromptSpec], Prompt]
"""Called with tokenizer, length, random generator and setting."""


@dataclass(frozen=True)
class RetrievalTask(EvalTask):
    """A task whose answer stands in its prompt; scores 1 where greedy decoding begins with it."""

    name: str
    about: str
    build: Build
    metrics: tuple[Metric, ...] = (Metric("accuracy", "share found", binary=True),)
    reads_depth: bool = True
    reads_documents: bool = False
    batched: ClassVar[bool] = True

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[Prompt]:
        """The prompts; the same for every method. Raises Refused for a length that they cannot have."""
        key = [len(self.name)] if self.name == "passkey" else self.name.encode()  # so that measured failures stay
        rng = np.random.default_rng([setting.seed, length, *key])
        prompts = [self.build(tokenizer, length, rng, setting) for _ in range(samples)]
        for prompt in prompts:
            if len(prompt.ids) != length:
                raise Refused(
                    f"{self.name}: this tokenizer cannot make a prompt of {length} tokens, it is off by "
                    f"{len(prompt.ids) - length:+d}; choose other --lengths"
                )
        return prompts

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Prompt], setting: PromptSpec) -> Iterator[Score]:
        """One score a prompt, `setting.batch` prompts at a time."""

        def run(batch: Sequence[Prompt]) -> list[bool]:
            return retrieval_hits(loaded.model, loaded.tokenizer, batch)

        for number, _, hit, seconds in in_batches(prepared, setting.batch, run):
            yield Score(length, number, "accuracy", float(hit), seconds)


def _passkey(
    tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec, *, enhanced: str | None = None
) -> Prompt:
    return retrieval.passkey(tokenizer, length, rng, depth=setting.depth, enhanced=enhanced)


def _niah(tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec, *, haystack: str) -> Prompt:
    fillers = {
        "repeat": lambda: retrieval.repeated_sentences(tokenizer),
        "essay": lambda: retrieval.text_filler(setting.documents, rng),
        "noise": lambda: retrieval.random_sentences(tokenizer, rng),
    }
    return retrieval.needle(tokenizer, length, rng, filler=fillers[haystack](), depth=setting.depth)


_QUESTION = "passkey, enhanced: 'Q: what is the passkey in below text? ... A:'"
_ANSWER = "passkey, enhanced: 'Q: ... A: the passkey is'"

RETRIEVAL = (
    RetrievalTask("passkey", "the paper's passkey prompt", _passkey),
    RetrievalTask("passkey-question", _QUESTION, partial(_passkey, enhanced="question")),
    RetrievalTask("passkey-answer", _ANSWER, partial(_passkey, enhanced="answer")),
    RetrievalTask("niah-repeat", "RULER's single needle in repeated sentences", partial(_niah, haystack="repeat")),
    RetrievalTask(
        "niah-essay", "RULER's single needle in running text", partial(_niah, haystack="essay"), reads_documents=True
    ),
    RetrievalTask("niah-noise", "RULER's single needle in random words", partial(_niah, haystack="noise")),
    RetrievalTask("lines", "LongEval's lines", lambda *args: retrieval.lines(*args[:-1]), reads_depth=False),
)
PASSKEY = RETRIEVAL[0]
"""The task of every measured failure."""
