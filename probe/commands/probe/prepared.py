"""What a probe run, full or in stages, has before anything is measured: texts, prompts, the store's layout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Refused
from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import tokenizer_of
from probe.capture.capture import check_distinct
from probe.capture.memory import check_memory
from probe.commands.probe import RuleOptions
from probe.commands.probe import plan as by_length
from probe.commands.probe.plan import ProbePlan, evaluation_plan, template
from probe.commands.probe.report import remove_report
from probe.eval_tasks import score
from probe.eval_tasks.retrieval import first_ids, repeated_word
from probe.eval_tasks.sources import TextSource
from probe.eval_tasks.tasks import PASSKEY, TAIL
from probe.eval_tasks.token_texts import token_texts
from probe.experiment.journal import REQUEST, recorded
from probe.store import store
from probe.store.reader import FINGERPRINTS, TEXT_SOURCE, store_of


def remove_run(out: Path) -> None:
    """Removes what a probe run writes into the folder `out`, and nothing else."""
    remove_report(out)
    (out / by_length.JOURNAL).unlink(missing_ok=True)
    store.remove(store_of(out))


def layout_of(
    plan: ProbePlan,
    by: str,
    documents: Sequence[np.ndarray],
    tokens: Mapping[str, Sequence[int]],
    text_source: TextSource,
) -> store.Template:
    """Of the store, with all attributes; stderr says what is special about its hidden states."""
    attrs = {
        REQUEST: json.dumps(recorded(plan.request, replace(RuleOptions(), rule=by))),
        TEXT_SOURCE: json.dumps(asdict(text_source)),
    }
    from mesa.engine.bridge import without_adapter  # with transformer-lens, which plans do without

    if named := without_adapter(plan.config):
        attrs["states_from"] = f"inputs and outputs of layers: TransformerLens has no adapter for a {named}"
        sys.stderr.write(f"hidden states are the {attrs['states_from']}\n")
    if plan.first_token:
        sys.stderr.write(f"no token of the tokenizer's own differs from the word: it comes after {plan.first_token}\n")
    return template(plan, fingerprints(plan, documents, tokens) | attrs)


def check_fits(plan: ProbePlan) -> None:
    """MemoryError where captured values or a pass cannot fit; a device map places the model itself."""
    options = plan.request.load
    device = options.get("device") or "cpu"
    if options.get("device_map") or not str(device).startswith("cpu"):
        check_memory(plan.host_bytes, plan.length)
        if not options.get("device_map"):
            check_memory(plan.pass_bytes, plan.length, device)
    else:
        check_memory(plan.pass_bytes + plan.host_bytes, plan.length)


def prepare(plan: ProbePlan) -> tuple[tuple[np.ndarray, ...], dict[str, list[int]], TextSource]:
    """Texts, and prompts by name, as token ids; and where the texts are from. Refused for what cannot be built."""
    request = plan.request
    tokenizer = tokenizer_of(request.model, **request.source)
    documents, text_source = score.documents_of(tokenizer, None if request.text is None else str(request.text))
    tokens = _prompt_tokens(tokenizer, plan, documents)
    if request.samples:
        setting = evaluation_plan(plan, documents).setting
        least = plan.trained_length if plan.longest else min(plan.lengths)
        for task in (TAIL,) if plan.longest else (PASSKEY, TAIL):
            task.check(tokenizer, least, setting)
    return documents, tokens, text_source


def stored_tokens(plan: ProbePlan, tokens: Mapping[str, Sequence[int]]) -> xr.Dataset:
    """Ids and texts (prompt, position) of the tokens at the captured positions."""
    tokenizer: Any = tokenizer_of(plan.request.model, **plan.request.source)
    kept, dims = list(plan.kept.positions), ("prompt", "position")
    ids = np.array([np.array(prompt)[kept] for prompt in tokens.values()], np.int64)
    texts = np.array([np.array(token_texts(tokenizer, prompt), object)[kept] for prompt in tokens.values()])
    return xr.Dataset(
        {"id": (dims, ids), "text": (dims, texts)},
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


def _prompt_tokens(tokenizer: Any, plan: ProbePlan, documents: Sequence[np.ndarray]) -> dict[str, list[int]]:
    """Token ids of every prompt, each of `plan.length` tokens, with the special tokens that come first."""
    first = list(first_ids(tokenizer))
    available = plan.length - len(first)
    if 2 * plan.period > available:
        raise Refused(
            f"--prompt {plan.request.word[:20]!r} has {plan.period} tokens, which --length {plan.length} does not "
            "repeat; give a shorter word or a longer pass"
        )
    repeated, _ = repeated_word(tokenizer, plan.request.word, plan.length)
    windows = score.text_windows(documents, available, plan.request.texts) if plan.request.texts else []
    if len(windows) < plan.request.texts:
        raise Refused(
            f"--texts {plan.request.texts}: the text holds {len(windows)} runs of {available} tokens; ask for fewer"
        )
    tokens = dict(zip(plan.prompts, [repeated, *(first + run.tolist() for run in windows)], strict=True))
    for name, ids in tokens.items():
        check_distinct(ids, f"prompt {name}")
    return tokens
