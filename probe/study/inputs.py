"""What a study reads, as token ids, before the weights are loaded: prompts that predict, texts that measure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import tokenizer_of
from probe.study.plan import StudyPlan
from probe.tasks import score
from probe.tasks.base import Setting
from probe.tasks.finding import PASSKEY
from probe.tasks.repeated import repeated_ids
from probe.tasks.retrieval import first_ids


@dataclass(frozen=True)
class Inputs:
    """Token ids. prompts: by kind, seed and window, each of L tokens. texts: by seed, runs of the longest length.

    fingerprints: what weights, texts and prompts are known by.
    """

    prompts: dict[str, list[list[list[int]]]]
    texts: list[list[np.ndarray]]
    fingerprints: dict[str, str]


def prepare(made: StudyPlan) -> Inputs:
    """Everything that is read. Raises ValueError where the vocabulary or the text has too little."""
    request = made.request
    tokenizer = tokenizer_of(request.model, **request.source)
    documents = score.heldout_ids(tokenizer)
    prompts = {
        prompt: study_prompts(tokenizer, prompt, documents, made.length, request.seeds, request.windows)
        for prompt in request.prompts
    }
    texts = seeded_windows(documents, made.lengths[-1], request.seeds, request.samples)
    every = [ids for kind in prompts.values() for mine in kind for ids in mine]
    known = {
        "inputs": ids_fingerprint([*documents, *every]),
        **identity(request.model, made.config),
    }
    return Inputs(prompts, texts, known)


def study_prompts(
    tokenizer: Any, prompt: str, documents: Sequence[np.ndarray], length: int, seeds: int, windows: int
) -> list[list[list[int]]]:
    """Token ids by seed and window, each of `length` tokens; a repeated word has one window.

    repeated: a lower-case word of one token, another for every seed. text: runs of held-out text, no two seeds' the
    same. passkey: the paper's prompts. Raises ValueError where the vocabulary or the text has too little.
    """
    first = list(first_ids(tokenizer))
    room = length - len(first)
    if prompt == "repeated":
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        words = sorted(token for name, token in vocabulary.items() if re.fullmatch("[Ġ▁][a-z]{3,}", name))
        if len(words) < seeds:
            raise ValueError(f"seeds={seeds} need as many words of one token; this vocabulary has {len(words)}")
        chosen = np.random.default_rng(0).permutation(words)[:seeds]
        return [[repeated_ids(tokenizer, [int(word)], length)[0]] for word in chosen]
    if prompt == "text":
        runs = seeded_windows(documents, room, seeds, windows)
        return [[[*first, *run.tolist()] for run in mine] for mine in runs]
    settings = (Setting(length, (length,), seed=seed) for seed in range(seeds))
    made = (PASSKEY.prepare(tokenizer, length, setting, windows) for setting in settings)
    return [[list(each.ids) for each in mine] for mine in made]


def seeded_windows(documents: Sequence[np.ndarray], tokens: int, seeds: int, count: int) -> list[list[np.ndarray]]:
    """`count` runs of `tokens` tokens for every seed; ValueError if the documents hold too few."""
    runs = score.text_windows(documents, tokens, seeds * count)
    if len(runs) < seeds * count:
        raise ValueError(
            f"the text holds {len(runs)} runs of {tokens} tokens, {seeds} seeds with {count} each are asked for"
        )
    return [runs[seed::seeds] for seed in range(seeds)]
