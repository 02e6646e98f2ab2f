"""RULER's synthetic tasks, scored as RULER does: the share of the expected strings in what is generated."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mesa.models import Loaded
from probe.tasks import counting, needles, tracking
from probe.tasks.base import Metric, Score, Setting, Task
from probe.tasks.listed import Listed, TooShortError
from probe.tasks.score import greedy, text_filler, until_end

Build = Callable[..., Listed]
"""Called with tokenizer, length, random generator, setting and a size's parameters."""
_DRAWN = 8  # prompts that a size must fit; draws after which a prompt is given up
_STRETCHES = 32  # of a prompt
_COPIED = Metric("copied", "share of them in a stretch of the prompt", of_prompts=True, most=1)


@dataclass(frozen=True)
class Size:
    """How large a task is: its words, parameters of its builder, and the lengths from which RULER takes it."""

    about: str
    given: tuple[tuple[str, Any], ...] = ()
    least: int = 0


@dataclass(frozen=True)
class Recall(Task):
    """A task of RULER. sizes: RULER's own first; generated: RULER's `tokens_to_generate`.

    A length counts the tokens to generate too, as RULER's does: that many, or M/6 where that is less. The size is the
    first that fits in M, so it is the same at every length. Beside the score stands what copying would give.
    """

    name: str
    about: str
    build: Build
    generated: int
    sizes: tuple[Size, ...] = (Size("RULER's size"),)
    metrics: tuple[Metric, ...] = (Metric("recall", "share of the expected strings", most=1), _COPIED)
    batched: ClassVar[bool] = True

    def answer_tokens(self, setting: Setting) -> int:
        """Tokens that are generated, the prompt is shorter by them."""
        return min(self.generated, max(1, setting.trained_length // 6))

    def size(self, tokenizer: Any, setting: Setting) -> Size:
        """The first size whose prompts fit in M; the smallest where none does."""
        return _size(self, tokenizer, setting.trained_length)

    def told(self, tokenizer: Any, setting: Setting) -> str:
        """Its size and how many tokens are generated, in words."""
        return f"{self.size(tokenizer, setting).about}; {self.answer_tokens(setting)} tokens generated"

    def is_rulers(self, tokenizer: Any, setting: Setting) -> bool:
        """Whether it is as large as RULER's, with as many tokens generated."""
        rulers = next(size for size in self.sizes if setting.trained_length >= size.least)
        return self.answer_tokens(setting) == self.generated and self.size(tokenizer, setting) == rulers

    def prepare(self, tokenizer: Any, length: int, setting: Setting, samples: int) -> Sequence[Listed]:
        """The prompts; the same for every method. Raises ValueError for a length that they cannot have."""
        size, rng = self.size(tokenizer, setting), np.random.default_rng([setting.seed, length, *self.name.encode()])
        return [self._drawn(tokenizer, length, rng, setting, size) for _ in range(samples)]

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Listed], setting: Setting) -> Iterator[Score]:
        """Two scores a prompt, `setting.batch` prompts at a time."""
        for begin in range(0, len(prepared), setting.batch):
            part = prepared[begin : begin + setting.batch]
            started = time.perf_counter()
            output = greedy(loaded.model, [prompt.ids for prompt in part], self.answer_tokens(setting))
            seconds = (time.perf_counter() - started) / len(part)
            for offset, (ids, prompt) in enumerate(zip(output.tolist(), part, strict=True)):
                value = string_match_all(until_end(loaded, ids), prompt.expected)
                yield Score(length, begin + offset, "recall", value, seconds)
                yield Score(length, begin + offset, _COPIED.name, copied(loaded.tokenizer, prompt, output.shape[1]))

    def _drawn(self, tokenizer: Any, length: int, rng: np.random.Generator, setting: Setting, size: Size) -> Listed:
        """A prompt that fits; others are drawn where words came out too long."""
        room, left = self.answer_tokens(setting), _DRAWN
        made, needed = None, 0
        while made is None:
            left -= 1
            try:
                made = self.build(tokenizer, max(0, length - room), rng, setting, **dict(size.given))
            except TooShortError as error:
                needed = max(needed, error.needed)
                if not left:
                    raise ValueError(
                        f"{self.name}: length={length} is below its fixed text of {needed} tokens and the {room} "
                        f"that are generated ({size.about}); ask for at least {needed + room}"
                    ) from error
                continue
            if len(made.answer_ids) > room and left:
                made = None
        if len(made.answer_ids) > room:
            raise ValueError(
                f"{self.name}: its answer of {len(made.answer_ids)} tokens is longer than the {room} that are "
                f"generated at M = {setting.trained_length}; leave this task out"
            )
        if len(made.ids) != length - room:
            raise ValueError(
                f"{self.name}: this tokenizer cannot make a prompt of {length - room} tokens, it is off by "
                f"{len(made.ids) - length + room:+d}; choose other --lengths"
            )
        return made


def string_match_all(text: str, expected: Sequence[str]) -> float:
    """RULER's score (`scripts/eval/synthetic/constants.py`), 0 to 1: the share of `expected` in `text`, any case.

    >>> string_match_all("1. Apple 2. pears", ["apple", "pear", "plum", "fig"])
    0.5
    """
    return float(np.mean([string.lower() in text.lower() for string in expected]))


def copied(tokenizer: Any, prompt: Listed, tokens: int) -> float:
    """The mean score of stretches of the prompt, `tokens` long: of who copies, and has understood nothing."""
    starts = np.linspace(0, max(0, len(prompt.ids) - tokens), _STRETCHES).astype(int)
    texts = tokenizer.batch_decode([prompt.ids[start : start + tokens] for start in starts.tolist()])
    return float(np.mean([string_match_all(text, prompt.expected) for text in texts]))


@functools.lru_cache(maxsize=256)
def _size(task: Recall, tokenizer: Any, trained_length: int) -> Size:
    own = [size for size in task.sizes if trained_length >= size.least]
    setting = Setting(trained_length, (trained_length,), documents=(np.arange(trained_length),))
    room = task.answer_tokens(setting)
    for size in own:
        rng = np.random.default_rng(0)
        try:
            made = [
                task.build(tokenizer, trained_length - room, rng, setting, **dict(size.given)) for _ in range(_DRAWN)
            ]
        except TooShortError:
            continue
        if max(len(prompt.answer_ids) for prompt in made) <= room:
            return size
    return own[-1]


def _niah(tokenizer: Any, length: int, rng: np.random.Generator, setting: Setting, **size: Any) -> Listed:
    return needles.niah(tokenizer, length, rng, filler=text_filler(setting.documents, rng), **size)


def _niah_lines(tokenizer: Any, length: int, rng: np.random.Generator, setting: Setting, **size: Any) -> Listed:
    return needles.niah_lines(tokenizer, length, rng, depth=setting.depth, **size)


def _without_setting(build: Callable[..., Listed]) -> Build:
    def built(tokenizer: Any, length: int, rng: np.random.Generator, setting: Setting, **size: Any) -> Listed:
        return build(tokenizer, length, rng, **size)

    return built


_FOUND = (Metric("recall", "share found", binary=True), _COPIED)
_CWE = tuple(
    Size(
        f"{common} common words {repeats[0]} times, others {repeats[1]}, {'an' if example else 'no'} example",
        (("common", common), ("repeats", repeats), ("example", example)),
        least,
    )
    for common, repeats, example, least in (
        (10, (30, 3), (10, 3), 4096),  # RULER's from 4096 tokens on
        (10, (6, 1), (3, 1), 0),  # RULER's below
        (10, (6, 1), None, 0),
        (5, (6, 1), None, 0),
        (3, (6, 1), None, 0),
        (3, (4, 1), None, 0),
        (2, (3, 1), None, 0),
    )
)
_VT = tuple(
    Size(
        f"{hops} hops, {'no example' if example is None else f'an example with {example} rounds of noise'}",
        (("hops", hops), ("example", example)),
    )
    for hops, example in ((4, 10), (4, 0), (4, None), (3, None), (2, None), (1, None))
)

RULER = (
    Recall(
        "niah-multikey-2",
        "RULER: one number among needles alone",
        _niah_lines,
        128,
        metrics=_FOUND,
    ),
    Recall(
        "niah-multikey-3",
        "RULER: one uuid among needles of uuids alone",
        _niah_lines,
        128,
        (Size("RULER's size", (("uuids", True),)),),
        _FOUND,
    ),
    Recall(
        "niah-multivalue",
        "RULER: several numbers of one name in running text",
        _niah,
        128,
        tuple(Size(f"{count} values", (("values", count),)) for count in (4, 3, 2)),
    ),
    Recall(
        "niah-multiquery",
        "RULER: the numbers of several names in running text",
        _niah,
        128,
        tuple(Size(f"{count} queries", (("keys", count),)) for count in (4, 3, 2)),
    ),
    Recall("vt", "RULER: all variables of a chain of assignments", _without_setting(tracking.variables), 30, _VT),
    Recall("cwe", "RULER: the commonest words of a list", _without_setting(counting.common_words), 120, _CWE),
    Recall("fwe", "RULER: the three commonest coded words", _without_setting(counting.frequent_words), 50),
)
"""RULER's synthetic tasks beside its single needles (`finding.py`)."""
