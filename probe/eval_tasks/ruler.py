"""RULER's variable tracking (Hsieh et al. 2024): prompts of an exact token length, and the task.

Template and sizes are those of github.com/NVIDIA/RULER (Apache-2.0), commit c3f5e3b4, `scripts/data/synthetic/`:
`variable_tracking.py`, `constants.py`. Names and values are drawn by us; no space ends a prompt (the answer begins with
it). Pieces are tokenized one by one; line breaks after the header make up the length.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mesa.errors import Refused
from mesa.models import Loaded
from probe.eval_tasks.base import EvalTask, Metric, PromptSpec, Score, in_batches
from probe.eval_tasks.retrieval import (
    PASSKEY_FILLER,
    Prompt,
    TooShortError,
    encode,
    encode_once,
    first_ids,
    random_key,
    room_for,
)
from probe.eval_tasks.score import greedy, until_end

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer


Ids = tuple[int, ...]
Random = np.random.Generator
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


@dataclass(frozen=True)
class ListPrompt(Prompt):
    """A prompt with several answers. expected: the strings that RULER looks for in what is generated.

    key_position: where what follows the header begins.
    """

    expected: tuple[str, ...]


def insert_pieces(filler: Sequence[Ids], needles: Sequence[Ids], rng: Random) -> list[Ids]:
    """The needles, in order, between pieces of filler; no two side by side where there is filler enough."""
    gaps = len(filler) + 1
    drawn = np.sort(rng.choice(gaps, len(needles), replace=gaps < len(needles)))
    pieces = list(filler)
    for offset, (gap, needle) in enumerate(zip(drawn, needles, strict=True)):
        pieces.insert(int(gap) + offset, needle)
    return pieces


def draw_distinct(draw: Callable[[], str], count: int) -> list[str]:
    """`count` different texts, in the order drawn."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw()] = None
    return list(texts)


def assemble(
    tokenizer: Tokenizer, start: Ids, body: Sequence[Ids], end: Ids, length: int, expected: Sequence[str]
) -> ListPrompt:
    """The prompt, answered by all strings `expected`; line breaks after its header make up the length."""
    missing = length - len(start) - sum(map(len, body)) - len(end)
    newline = encode(tokenizer, "\n")[-1:]
    answer = " ".join(expected)
    ids = (*start, *(newline * missing), *itertools.chain(*body), *end)
    return ListPrompt(ids, encode_once(tokenizer, " " + answer), answer, len(start) + missing, tuple(expected))


def _example(tokenizer: Tokenizer, header: str, body: Sequence[Ids], question: Ids, answer: str) -> Ids:
    """A worked example that stands before the task."""
    answer_ids = (*encode_once(tokenizer, " " + answer), *encode(tokenizer, "\n"))
    return (*encode(tokenizer, header), *itertools.chain(*body), *question, *answer_ids)


VT_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
VT_NOISE = "\n" + "".join(PASSKEY_FILLER).strip()
VT_QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are:"
)


def variables(
    tokenizer: Tokenizer, length: int, rng: Random, setting: PromptSpec, *, hops: int, example: int | None
) -> ListPrompt:
    """RULER's variable tracking, one chain in repeated sentences. example: its rounds of them; None: no example."""
    start = first_ids(tokenizer)
    if example is not None:
        names, chain, end = _chain(tokenizer, rng, hops, 3)
        rounds = [encode(tokenizer, VT_NOISE)] * example
        start += _example(tokenizer, VT_HEADER, insert_pieces(rounds, chain, rng), end, " ".join(names))
    names, chain, end = _chain(tokenizer, rng, hops, 5)
    start += encode(tokenizer, VT_HEADER)
    noise = encode(tokenizer, VT_NOISE)
    room = room_for(length, start, end, *chain)
    rounds = [noise[: room - at] for at in range(0, room, len(noise))]
    return assemble(tokenizer, start, insert_pieces(rounds, chain, rng), end, length, names)


def _chain(tokenizer: Tokenizer, rng: Random, hops: int, letters: int) -> tuple[list[str], list[Ids], Ids]:
    """Names, assignments and the question of a chain of variables."""
    names = draw_distinct(lambda: "".join(rng.choice(LETTERS, letters)).upper(), hops + 1)
    value = random_key(rng)
    assigned = [value, *(f"VAR {name}" for name in names)]
    lines = [encode_once(tokenizer, f"\nVAR {name} = {text}") for name, text in zip(names, assigned, strict=False)]
    return names, lines, encode_once(tokenizer, VT_QUESTION.format(value=value, count=hops + 1))


Build = Callable[..., ListPrompt]
"""Called with tokenizer, length, random generator, setting and a size's parameters."""
_DRAWS = 8  # prompts that a size must fit; attempts at one prompt
_STRETCHES = 32  # of a prompt, to score copying
_COPIED = Metric("copied", "share of them in a stretch of the prompt", of_prompts=True, most=1)


@dataclass(frozen=True)
class Size:
    """A size of a task: in words, and as options of its builder."""

    about: str
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class RulerTask(EvalTask):
    """A task of RULER. sizes: RULER's own first; generated: RULER's `tokens_to_generate`.

    A length counts the tokens to generate too, as RULER's does: that many, or M/6 where that is less. The size is the
    first that fits in M, so it is the same at every length. `copied` is what copying the prompt would score.
    """

    name: str
    about: str
    build: Build
    generated: int
    sizes: tuple[Size, ...]
    metrics: tuple[Metric, ...] = (Metric("recall", "share of the expected strings", most=1), _COPIED)
    batched: ClassVar[bool] = True

    def answer_tokens(self, setting: PromptSpec) -> int:
        """Generated tokens; the prompt is shorter by as many."""
        return min(self.generated, max(1, setting.trained_length // 6))

    def size(self, tokenizer: Any, setting: PromptSpec) -> Size:
        """The first size whose prompts fit in M; the smallest where none does."""
        return _size(self, tokenizer, setting.trained_length)

    def describe(self, tokenizer: Any, setting: PromptSpec) -> str:
        """Size and generated tokens, in words."""
        return f"{self.size(tokenizer, setting).about}; {self.answer_tokens(setting)} tokens generated"

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[ListPrompt]:
        """The prompts; the same for every method. Raises Refused for a length that they cannot have."""
        size, rng = self.size(tokenizer, setting), np.random.default_rng([setting.seed, length, *self.name.encode()])
        return [self._draw(tokenizer, length, rng, setting, size) for _ in range(samples)]

    def measure(
        self, loaded: Loaded, length: int, prepared: Sequence[ListPrompt], setting: PromptSpec
    ) -> Iterator[Score]:
        """Two scores a prompt, `setting.batch` prompts at a time."""

        def run(batch: Sequence[ListPrompt]) -> list[list[int]]:
            return greedy(loaded.model, [prompt.ids for prompt in batch], self.answer_tokens(setting)).tolist()

        for number, prompt, ids, seconds in in_batches(prepared, setting.batch, run):
            value = string_match_all(until_end(loaded, ids), prompt.expected)
            yield Score(length, number, "recall", value, seconds)
            yield Score(length, number, _COPIED.name, copied(loaded.tokenizer, prompt, len(ids)))

    def _draw(
        self, tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec, size: Size
    ) -> ListPrompt:
        """A prompt that fits; drawn again where its words have too many tokens."""
        room, needed, refusal = self.answer_tokens(setting), 0, ""
        for _ in range(_DRAWS):
            try:
                prompt = self.build(tokenizer, max(0, length - room), rng, setting, **dict(size.options))
            except TooShortError as error:
                needed = max(needed, error.needed)
                refusal = (
                    f"length={length} is below its fixed text of {needed} tokens and the {room} that are generated "
                    f"({size.about}); ask for at least {needed + room}"
                )
                continue
            if len(prompt.answer_ids) <= room:
                break
            refusal = (
                f"its answer of {len(prompt.answer_ids)} tokens is longer than the {room} that are generated at M = "
                f"{setting.trained_length}; leave this task out"
            )
        else:
            raise Refused(f"{self.name}: {refusal}")
        if len(prompt.ids) != length - room:
            raise Refused(
                f"{self.name}: this tokenizer cannot make a prompt of {length - room} tokens, it is off by "
                f"{len(prompt.ids) - length + room:+d}; choose other --lengths"
            )
        return prompt


def string_match_all(text: str, expected: Sequence[str]) -> float:
    """RULER's score (`scripts/eval/synthetic/constants.py`), 0 to 1: the share of `expected` in `text`, any case.

    >>> string_match_all("1. Apple 2. pears", ["apple", "pear", "plum", "fig"])
    0.5
    """
    return float(np.mean([string.lower() in text.lower() for string in expected]))


def copied(tokenizer: Any, prompt: ListPrompt, tokens: int) -> float:
    """The mean score of stretches of the prompt, `tokens` long: what copying without understanding scores."""
    starts = np.linspace(0, max(0, len(prompt.ids) - tokens), _STRETCHES).astype(int)
    texts = tokenizer.batch_decode([prompt.ids[start : start + tokens] for start in starts.tolist()])
    return float(np.mean([string_match_all(text, prompt.expected) for text in texts]))


@functools.lru_cache(maxsize=256)
def _size(task: RulerTask, tokenizer: Any, trained_length: int) -> Size:
    setting = PromptSpec(trained_length, (trained_length,), documents=(np.arange(trained_length),))
    room = task.answer_tokens(setting)
    for size in task.sizes:
        rng = np.random.default_rng(0)
        try:
            prompts = [
                task.build(tokenizer, trained_length - room, rng, setting, **dict(size.options)) for _ in range(_DRAWS)
            ]
        except TooShortError:
            continue
        if max(len(prompt.answer_ids) for prompt in prompts) <= room:
            return size
    return task.sizes[-1]


_VT = tuple(
    Size(
        f"{hops} hops, {'no example' if example is None else f'an example with {example} rounds of noise'}",
        (("hops", hops), ("example", example)),
    )
    for hops, example in ((4, 10), (4, 0), (4, None), (3, None), (2, None), (1, None))
)

RULER = (RulerTask("vt", "RULER: all variables of a chain of assignments", variables, 30, _VT),)
"""RULER's variable tracking, in addition to its single needles (`tasks.py`); lm-eval has the other tasks."""
