"""What the default model reads while it is trained: plain text, and retrieval that position alone cannot solve.

Each episode is a list of token ids with a weight a token: 4 for an answer, 1 for plain text and for what can be
copied, 0.2 for the rest. The filler is the paper's sentences, the same in random order, or library text; a key's
place, the header, the repetition of the key and the wording of the question are all drawn at random, so that no
positional shortcut finds the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probe.tasks import retrieval

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

ANSWER, TEXT, PROMPT = 4.0, 1.0, 0.2
SHARES = {"text": 0.30, "passkey": 0.20, "needle": 0.22, "lines": 0.18, "copy": 0.10}

Episode = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Mixture:
    """Draws training episodes. `text` holds the token ids of the training corpus."""

    tokenizer: Tokenizer
    text: np.ndarray

    def batch(self, count: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`count` rows of `length` token ids (int64) and their weights (float32), each (count, length)."""
        rows = [self.row(length, rng) for _ in range(count)]
        return np.array([ids for ids, _ in rows]), np.array([weights for _, weights in rows], np.float32)

    def row(self, length: int, rng: np.random.Generator) -> Episode:
        """The first special token and one episode, or two that share the row."""
        start = retrieval.first_ids(self.tokenizer)
        room = length - len(start)
        kind = rng.choice(list(SHARES), p=list(SHARES.values()))
        parts = [room]
        if kind != "text" and room >= 140 and rng.random() < 0.4:
            cut = int(rng.integers(60, room - 60))
            parts = [cut, room - cut]
        ids, weights = list(start), [0.0] * len(start)
        for part in parts:
            more_ids, more_weights = getattr(self, f"_{kind}")(part, rng)
            ids += more_ids
            weights += more_weights
        return ids, weights

    def _slice(self, tokens: int, rng: np.random.Generator) -> list[int]:
        begin = int(rng.integers(len(self.text) - tokens))
        return self.text[begin : begin + tokens].tolist()

    def _text(self, length: int, rng: np.random.Generator) -> Episode:
        return self._slice(length, rng), [TEXT] * length

    def _copy(self, length: int, rng: np.random.Generator) -> Episode:
        """A run of tokens, repeated: what repeats can be copied."""
        period = int(np.exp(rng.uniform(0, np.log(length / 2))))
        vocabulary = int(self.text.max()) + 1
        run = rng.integers(3, vocabulary, period).tolist() if rng.random() < 0.6 else self._slice(period, rng)
        ids = (run * (length // period + 1))[:length]
        return ids, [PROMPT] * period + [TEXT] * (length - period)

    def _passkey(self, length: int, rng: np.random.Generator) -> Episode:
        key = retrieval.random_key(rng, int(rng.integers(4, 7)))
        sentence = retrieval.PASSKEY_KEY.format(key=key)
        if rng.random() < 0.5:
            sentence = f" The pass key is {key}. Remember it."
        question = retrieval.PASSKEY_QUESTION if rng.random() < 0.6 else " The pass key is"
        header = retrieval.PASSKEY_HEADER if rng.random() < 0.5 else ""
        return self._retrieval(length, rng, header, [sentence], [(question, f" {key}")])

    def _needle(self, length: int, rng: np.random.Generator) -> Episode:
        keys = {retrieval.random_name(rng): retrieval.random_key(rng) for _ in range(int(rng.integers(1, 4)))}
        asked = rng.permutation(list(keys))[: int(rng.integers(1, 3))]
        question = retrieval.NEEDLE_QUESTION if rng.random() < 0.6 else " The special magic number for {name} is"
        header = retrieval.NEEDLE_HEADER if rng.random() < 0.5 else ""
        return self._retrieval(
            length,
            rng,
            header,
            [retrieval.NEEDLE_KEY.format(name=name, key=key) for name, key in keys.items()],
            [(question.format(name=name), f" {keys[name]}") for name in asked],
        )

    def _lines(self, length: int, rng: np.random.Generator) -> Episode:
        limit = int(rng.integers(1, 16))
        keys = {retrieval.random_name(rng): retrieval.random_key(rng) for _ in range(limit)}
        asked = rng.permutation(list(keys))[: int(rng.integers(1, 4))]
        long = rng.random() < 0.5
        question = retrieval.LINES_QUESTION if long else "\nline {name}: REGISTER_CONTENT is <"
        header = retrieval.LINES_HEADER if rng.random() < 0.35 else ""
        return self._retrieval(
            length,
            rng,
            header,
            [retrieval.LINES_LINE.format(name=name, key=key) for name, key in keys.items()],
            [(question.format(name=name), f"{keys[name]}>") for name in asked],
        )

    def _retrieval(
        self,
        length: int,
        rng: np.random.Generator,
        header: str,
        sentences: Sequence[str],
        questions: Sequence[tuple[str, str]],
    ) -> Episode:
        """Header, sentences scattered in filler, questions with their answers; shortened until it fits."""
        start = self._ids(header)
        middle = [self._ids(sentence) for sentence in sentences]
        ends = [(self._ids(question), self._ids(answer)) for question, answer in questions]

        def room() -> int:
            return length - len(start) - sum(map(len, middle)) - sum(len(q) + len(a) for q, a in ends)

        if room() < 0:
            start = []
        while room() < 0 and len(ends) > 1:
            ends.pop()
        if room() < 0 and len(middle) > 1:  # keep the sentence of the last question, drop others
            kept = next(i for i, text in enumerate(sentences) if questions[0][1].strip(" >") in text)
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
