"""What a probe run reads: texts and prompts as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import tokenizer_of
from probe.capture.capture import check_distinct
from probe.plan import ProbePlan, evaluation_plan
from probe.store.reader import FINGERPRINTS
from probe.tasks import score, sources
from probe.tasks.likelihood import TAIL
from probe.tasks.retrieval import first_ids, repeated_word
from probe.tasks.retrieval_tasks import PASSKEY


def prepare(plan: ProbePlan) -> tuple[list[np.ndarray], dict[str, list[int]]]:
    """Texts, and prompts by name, as token ids. Raises ValueError for what cannot be built."""
    request = plan.request
    tokenizer = tokenizer_of(request.model, **request.source)
    texts = None if request.text is None else sources.texts(str(request.text))
    documents = score.heldout_ids(tokenizer, texts)
    tokens = _prompt_tokens(tokenizer, plan, documents)
    if request.samples:
        setting = evaluation_plan(plan, documents).setting
        for task in (PASSKEY, TAIL):
            task.check(tokenizer, min(plan.lengths), setting)
    return documents, tokens


def token_texts(plan: ProbePlan, tokens: Mapping[str, Sequence[int]]) -> xr.Dataset:
    """Ids and texts (prompt, position) of the tokens at the captured positions."""
    tokenizer: Any = tokenizer_of(plan.request.model, **plan.request.source)
    ids = np.array([[prompt[position] for position in plan.kept.positions] for prompt in tokens.values()], np.int64)
    texts = {token: tokenizer.decode([token]) for token in np.unique(ids).tolist()}
    dims = ("prompt", "position")
    return xr.Dataset(
        {"id": (dims, ids), "text": (dims, np.vectorize(texts.__getitem__, otypes=[object])(ids))},
        {"prompt": list(tokens), "position": plan.kept.positions},
    )


def fingerprints(
    plan: ProbePlan, documents: Sequence[np.ndarray], tokens: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """The fingerprints of texts, prompts and weights that a store records."""
    known = identity(plan.request.model, plan.config)
    return {
        "inputs": ids_fingerprint([*documents, *tokens.values()]),
        **{name: known[name] for name in FINGERPRINTS if name in known},
    }


def _prompt_tokens(tokenizer: Any, plan: ProbePlan, documents: list[np.ndarray]) -> dict[str, list[int]]:
    """Token ids of every prompt, each of `plan.length` tokens, with the special tokens that come first."""
    first = list(first_ids(tokenizer))
    available = plan.length - len(first)
    if 2 * plan.period > available:
        raise ValueError(
            f"--prompt {plan.request.word[:20]!r} has {plan.period} tokens, which --length {plan.length} does not "
            "repeat; give a shorter word or a longer pass"
        )
    repeated, _ = repeated_word(tokenizer, plan.request.word, plan.length)
    windows = score.text_windows(documents, available, plan.request.texts) if plan.request.texts else []
    if len(windows) < plan.request.texts:
        raise ValueError(
            f"--texts {plan.request.texts}: the text holds {len(windows)} runs of {available} tokens; ask for fewer"
        )
    tokens = dict(zip(plan.prompts, [repeated, *(first + run.tolist() for run in windows)], strict=True))
    for name, ids in tokens.items():
        check_distinct(ids, f"prompt {name}")
    return tokens
