"""What a study reads, as token ids, before the weights are loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import tokenizer_of
from probe.eval_tasks import score as texts_of
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import first_ids, repeated_ids
from probe.eval_tasks.tasks import PASSKEY
from research.thresholds_predict_failure.study import Study


@dataclass(frozen=True)
class Inputs:
    """Token ids. prompts: by kind, seed and window, each of L tokens. texts: by seed, runs of the longest length."""

    prompts: dict[str, dict[int, list[list[int]]]]
    texts: dict[int, list[np.ndarray]]
    fingerprints: dict[str, str]


def read_inputs(study: Study) -> Inputs:
    """Everything that is read. Raises ValueError where the vocabulary or the text has too little."""
    tokenizer = tokenizer_of(study.model)
    documents = texts_of.heldout_ids(tokenizer)
    prompts = {
        kind: study_prompts(tokenizer, kind, documents, study.length, study.seeds, study.windows)
        for kind in study.prompts
    }
    texts = seeded_windows(documents, study.lengths[-1], study.seeds, study.samples)
    flat = [ids for by_seed in prompts.values() for windows in by_seed.values() for ids in windows]
    fingerprints = {"inputs": ids_fingerprint([*documents, *flat]), **identity(study.model, study.config)}
    return Inputs(prompts, texts, fingerprints)


def study_prompts(
    tokenizer: Any, kind: str, documents: Sequence[np.ndarray], length: int, seeds: range, windows: int
) -> dict[int, list[list[int]]]:
    """Token ids by seed and window, each of `length` tokens.

    repeated: one window of a lower-case word of one token, another for every seed. text: runs of held-out text, no two
    seeds' the same. passkey: the paper's prompts. Raises ValueError where vocabulary or text have too little.
    """
    first = list(first_ids(tokenizer))
    if kind == "repeated":
        words = sorted(token for name, token in tokenizer.get_vocab().items() if re.fullmatch("[Ġ▁][a-z]{3,}", name))
        if len(words) < seeds.stop:
            raise ValueError(f"seeds={seeds.stop} need as many words of one token; this vocabulary has {len(words)}")
        shuffled = np.random.default_rng(0).permutation(words)
        return {seed: [repeated_ids(tokenizer, [int(shuffled[seed])], length)[0]] for seed in seeds}
    if kind == "text":
        runs = seeded_windows(documents, length - len(first), seeds, windows)
        return {seed: [[*first, *run.tolist()] for run in runs[seed]] for seed in seeds}
    settings = {seed: PromptSpec(length, (length,), seed=seed) for seed in seeds}
    return {
        seed: [list(prompt.ids) for prompt in PASSKEY.prepare(tokenizer, length, setting, windows)]
        for seed, setting in settings.items()
    }


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
        taken = texts_of.text_windows(documents, tokens, before)
        runs = texts_of.text_windows(documents, tokens, sum(len(ids) // tokens for ids in documents))
        free = [run for run in runs if not any(np.may_share_memory(run, other) for other in taken)]
        runs = [free[at] for at in np.linspace(0, len(free) - 1, min(wanted, len(free))).round().astype(int)]
    else:
        runs = texts_of.text_windows(documents, tokens, wanted)
    if len(runs) < wanted:
        raise ValueError(f"the text holds {len(runs)} unread runs of {tokens} tokens, {wanted} are needed")
    return {seed: runs[number :: len(seeds)] for number, seed in enumerate(seeds)}
