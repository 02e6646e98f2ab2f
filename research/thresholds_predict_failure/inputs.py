"""What a study reads, as token ids, before the weights are loaded: prompts that predict, texts that measure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import tokenizer_of
from probe.tasks import score
from probe.tasks.base import Setting
from probe.tasks.finding import PASSKEY
from probe.tasks.repeated import repeated_ids
from probe.tasks.retrieval import first_ids
from research.thresholds_predict_failure.plan import StudyPlan


@dataclass(frozen=True)
class Inputs:
    """Token ids. prompts: by kind, seed and window, each of L tokens. texts: by seed, runs of the longest length.

    fingerprints: what weights, texts and prompts are known by.
    """

    prompts: dict[str, dict[int, list[list[int]]]]
    texts: dict[int, list[np.ndarray]]
    fingerprints: dict[str, str]


def prepare(made: StudyPlan) -> Inputs:
    """Everything that is read. Raises ValueError where the vocabulary or the text has too little."""
    request = made.request
    tokenizer = tokenizer_of(request.model, **request.source)
    documents = score.heldout_ids(tokenizer)
    prompts = {
        prompt: study_prompts(tokenizer, prompt, documents, made.length, made.seeds, request.windows)
        for prompt in request.prompts
    }
    texts = seeded_windows(documents, made.lengths[-1], made.seeds, request.samples)
    every = [ids for kind in prompts.values() for mine in kind.values() for ids in mine]
    known = {
        "inputs": ids_fingerprint([*documents, *every]),
        **identity(request.model, made.config),
    }
    return Inputs(prompts, texts, known)


def study_prompts(
    tokenizer: Any, prompt: str, documents: Sequence[np.ndarray], length: int, seeds: range, windows: int
) -> dict[int, list[list[int]]]:
    """Token ids by seed and window, each of `length` tokens; a repeated word has one window.

    repeated: a lower-case word of one token, another for every seed. text: runs of held-out text, no two seeds' the
    same. passkey: the paper's prompts. Raises ValueError where the vocabulary or the text has too little.
    """
    first = list(first_ids(tokenizer))
    room = length - len(first)
    if prompt == "repeated":
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        words = sorted(token for name, token in vocabulary.items() if re.fullmatch("[Ġ▁][a-z]{3,}", name))
        if len(words) < seeds.stop:
            raise ValueError(f"seeds={seeds.stop} need as many words of one token; this vocabulary has {len(words)}")
        shuffled = np.random.default_rng(0).permutation(words)
        return {seed: [repeated_ids(tokenizer, [int(shuffled[seed])], length)[0]] for seed in seeds}
    if prompt == "text":
        runs = seeded_windows(documents, room, seeds, windows)
        return {seed: [[*first, *run.tolist()] for run in mine] for seed, mine in runs.items()}
    settings = {seed: Setting(length, (length,), seed=seed) for seed in seeds}
    made = {seed: PASSKEY.prepare(tokenizer, length, setting, windows) for seed, setting in settings.items()}
    return {seed: [list(each.ids) for each in mine] for seed, mine in made.items()}


def seeded_windows(
    documents: Sequence[np.ndarray], tokens: int, seeds: range, count: int
) -> dict[int, list[np.ndarray]]:
    """`count` runs of `tokens` tokens for every seed; ValueError if the documents hold too few.

    Of seeds that do not begin at 0, none overlaps with a run that a study of all seeds before them reads.
    """
    if documents and max(map(len, documents)) < tokens:
        documents = [np.concatenate(documents)]
    before, wanted = seeds.start * count, len(seeds) * count
    if before:
        taken = score.text_windows(documents, tokens, before)
        every = score.text_windows(documents, tokens, sum(len(ids) // tokens for ids in documents))
        left = [run for run in every if not any(np.may_share_memory(run, other) for other in taken)]
        runs = [left[at] for at in np.linspace(0, len(left) - 1, min(wanted, len(left))).round().astype(int)]
    else:
        runs = score.text_windows(documents, tokens, wanted)
    if len(runs) < wanted:
        raise ValueError(
            f"the text holds {len(runs)} runs of {tokens} tokens{' that no earlier seed reads' if before else ''}, "
            f"{len(seeds)} seeds with {count} each are asked for"
        )
    return {seed: runs[number :: len(seeds)] for number, seed in enumerate(seeds)}
