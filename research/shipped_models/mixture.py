"""What the default model reads while it is trained: plain text, and retrieval that position alone cannot solve.

Each episode is a list of token ids with a weight a token: 4 for an answer, 1 for plain text and for what can be
copied, 0.2 for the rest. The filler is the paper's sentences, the same in random order, or library text; a key's
place, the header, the repetition of the key and the wording of the question are all drawn at random, so that no
positional shortcut finds the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probe.eval_tasks import retrieval
from research.shipped_models.quizzes import KINDS, Quiz

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

ANSWER, TEXT, PROMPT = 4.0, 1.0, 0.2
SHARES = {
    "text": 0.28,
    "copy": 0.08,
    "pairs": 0.16,
    "passkey": 0.14,
    "needle": 0.12,
    "lines": 0.13,
    "tracking": 0.09,
}
"""Of each kind of row."""
BASICS = {"text": 0.2, "copy": 0.45, "pairs": 0.35}
"""What is read first: what repeats, and lookups with many questions, from which the rest is learnt sooner."""
TEXT_ONLY = {"text": 0.8, "copy": 0.2}

Episode = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Mixture:
    """Draws training episodes. `text` holds the token ids of the training corpus."""

    tokenizer: Tokenizer
    text: np.ndarray

    def batch(
        self, count: int, length: int, rng: np.random.Generator, shares: Mapping[str, float] = SHARES
    ) -> tuple[np.ndarray, np.ndarray]:
        """`count` rows of `length` token ids (int64) and their weights (float32), each (count, length)."""
        rows = [self.row(length, rng, shares) for _ in range(count)]
        return np.array([ids for ids, _ in rows]), np.array([weights for _, weights in rows], np.float32)

    def row(self, length: int, rng: np.random.Generator, shares: Mapping[str, float] = SHARES) -> Episode:
        """The first special token and one episode, or two that share the row."""
        start = retrieval.first_ids(self.tokenizer)
        room = length - len(start)
        kind = rng.choice(list(shares), p=list(shares.values()))
        parts = [room]
        if kind != "text" and room >= 140 and rng.random() < 0.4:
            cut = int(rng.integers(60, room - 60))
            parts = [cut, room - cut]
        ids, weights = list(start), [0.0] * len(start)
        for part in parts:
            more_ids, more_weights = self._episode(kind, part, rng)
            ids += more_ids
            weights += more_weights
        return ids, weights

    def _episode(self, kind: str, length: int, rng: np.random.Generator) -> Episode:
        if kind in KINDS:
            return self._quiz(KINDS[kind](length, rng), length, rng)
        return self._text(length, rng) if kind == "text" else self._copy(length, rng)

    def _slice(self, tokens: int, rng: np.random.Generator) -> list[int]:
        begin = int(rng.integers(len(self.text) - tokens))
        return self.text[begin : begin + tokens].tolist()

    def _text(self, length: int, rng: np.random.Generator) -> Episode:
        return self._slice(length, rng), [TEXT] * length

    def _copy(self, length: int, rng: np.random.Generator) -> Episode:
        """Runs of tokens, repeated in any order: what repeats can be copied, wherever it stood."""
        most = max(2, length // 3)
        runs = [self._run(int(np.exp(rng.uniform(0, np.log(most)))) + 1, rng) for _ in range(int(rng.integers(1, 5)))]
        ids: list[int] = []
        weights: list[float] = []
        seen: set[int] = set()
        while len(ids) < length:
            which = int(rng.integers(len(runs)))
            ids += runs[which]
            first = TEXT if len(runs) == 1 and seen else PROMPT  # of several, which one comes next is anyone's guess
            weights += [first] + [TEXT if which in seen else PROMPT] * (len(runs[which]) - 1)
            seen.add(which)
        return ids[:length], weights[:length]

    def _run(self, tokens: int, rng: np.random.Generator) -> list[int]:
        """Tokens at random, or of the text."""
        if rng.random() < 0.4:
            return self._slice(tokens, rng)
        return rng.integers(3, int(self.text.max()) + 1, tokens).tolist()

    def _quiz(self, quiz: Quiz, length: int, rng: np.random.Generator) -> Episode:
        """Header, sentences scattered in filler, questions with their answers; shortened until it fits."""
        start = self._ids(quiz.header)
        middle = [self._ids(sentence) for sentence in quiz.sentences]
        ends = [(self._ids(question), self._ids(answer)) for question, answer in quiz.questions]

        def room() -> int:
            return length - len(start) - sum(map(len, middle)) - sum(len(q) + len(a) for q, a in ends)

        if room() < 0:
            start = []
        while room() < 0 and len(ends) > 1:
            ends.pop()
        if room() < 0 and quiz.divisible:
            wanted = quiz.questions[0][1].strip(' >".')
            kept = next(i for i, text in enumerate(quiz.sentences) if wanted in text)
            others = [i for i in range(len(middle)) if i != kept]
            sentence_ids = middle
            while room() < 0 and others:
                others.pop(int(rng.integers(len(others))))
                middle = [sentence_ids[i] for i in sorted([kept, *others])]
        if room() < 0:
            return self._text(length, rng)

        filler = self._filler(room(), rng)
        places = np.sort(rng.integers(0, len(filler) + 1, len(middle)))
        ids = list(start)
        for index, part in enumerate([*filler, []]):
            for place, sentence in zip(places, middle, strict=True):
                if place == index:
                    ids += sentence
            ids += part
        weights = [PROMPT] * len(ids)
        for question, answer in ends:
            ids += question + answer
            weights += [PROMPT] * len(question) + [ANSWER] * len(answer)
        return ids, weights

    def _filler(self, tokens: int, rng: np.random.Generator) -> list[list[int]]:
        """Sentences with exactly `tokens` tokens in all."""
        kind = rng.random()
        parts: list[list[int]] = []
        left = tokens
        while left > 0:
            if kind < 0.3:
                sentence = self._ids(retrieval.PASSKEY_FILLER[len(parts) % len(retrieval.PASSKEY_FILLER)])
            elif kind < 0.5:
                sentence = self._ids(str(rng.choice(retrieval.PASSKEY_FILLER)))
            else:
                sentence = self._slice(min(left, int(rng.integers(8, 40))), rng)
            parts.append(sentence[:left])
            left -= len(parts[-1])
        return parts

    def _ids(self, text: str) -> list[int]:
        return list(retrieval.encode(self.tokenizer, text))
