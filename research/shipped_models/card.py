"""Measures the default model and writes its model card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import mesa
from mesa import support
from mesa.methods import Method, registry
from mesa.models import Loaded
from probe.eval_tasks import score, sources
from probe.eval_tasks.base import EvalTask, PromptSpec
from probe.eval_tasks.tasks import RETRIEVAL, TAIL, tail_tokens
from research.shipped_models.key_values import KEY_VALUE, TRACKING
from research.shipped_models.mixture import SHARES

METHODS = ("origin", "rerope", "dynamic-ntk", "lm-infinite", "stair", "mesa")
MULTIPLES = (0.5, 1, 2, 4, 8)
_FINDING = {task.name: task for task in RETRIEVAL}
TASKS: dict[str, EvalTask] = {
    "tail_nll": TAIL,
    "passkey": _FINDING["passkey"],
    "passkey-question": _FINDING["passkey-question"],
    "needle": replace(_FINDING["niah-essay"], name="needle"),
    "lines": _FINDING["lines"],
    "key-value": KEY_VALUE,
    "tracking": TRACKING,
}
PROMPTS, WINDOWS = 50, 32
WITHIN = ("lines", "key-value")
"""Tasks that are asked inside the window only: a longer prompt has more to choose from."""
MEASURING_SEED = 20_000
"""Not the seed of any prompt seen while training or choosing a checkpoint."""


def measure(loaded: Loaded, *, prompts: int = PROMPTS, seed: int = MEASURING_SEED) -> dict[str, Any]:
    """Scores of every method in `METHODS` that the model can have, at every length in `MULTIPLES` of M.

    Methods have their default sizes. Returns {"prompts", "seed", "tail", "lengths", "scores": {method: {task or
    "tail_nll": [one a length]}}}; None where a prompt cannot be built, and for lines and pairs beyond the window.
    """
    trained_length = support.trained_length(loaded.model.config)
    kind, known = loaded.model.config.model_type, registry()
    methods = [name for name in METHODS if not support.missing(kind, known[name])]
    lengths = [int(trained_length * multiple) for multiple in MULTIPLES]
    documents = tuple(score.heldout_ids(loaded.tokenizer))
    setting = PromptSpec(trained_length, tuple(lengths), prompts, seed, documents)
    windows = len(score.text_windows(documents, max(lengths), WINDOWS))
    scores: dict[str, dict[str, list[float | None]]] = {}
    total = len(methods) * len(lengths) * (windows + (len(TASKS) - 1) * prompts)
    with tqdm(total=total, desc="measuring the model", unit="prompt") as bar:
        for name in methods:
            method: Method = mesa.make(name, trained_length)
            with mesa.applied(loaded.model, method):
                scores[name] = {key: [_mean(loaded, key, length, setting, bar) for length in lengths] for key in TASKS}
    return {
        "prompts": prompts,
        "windows": windows,
        "seed": seed,
        "tail": tail_tokens(trained_length),
        "lengths": lengths,
        "scores": scores,
    }


def _mean(loaded: Loaded, key: str, length: int, setting: PromptSpec, bar: tqdm[Any]) -> float | None:
    """A task's mean score; None for prompts that cannot be built, and for lines and pairs beyond the window."""
    task, count = TASKS[key], WINDOWS if key == "tail_nll" else setting.samples
    too_long = key in WITHIN and length > setting.trained_length
    try:
        prepared = [] if too_long else task.prepare(loaded.tokenizer, length, setting, count)
    except ValueError:  # the length is below the task's fixed text
        prepared = []
    values = []
    for each in task.measure(loaded, length, prepared, setting):
        values.append(each.value)
        bar.update()
    bar.update(0 if values else count)
    return round(float(np.mean(values)), 4 if key == "tail_nll" else 3) if values else None


def write_card(folder: Path, measured: dict[str, Any]) -> None:
    """Writes `scores.json` and the card (`README.md`) beside the checkpoint in `folder`."""
    (folder / "scores.json").write_text(json.dumps(measured, indent=1) + "\n")
    training = json.loads((folder / "training.json").read_text())
    config = training["config"]
    headings = [f"{length / config['trained_length']:g} M" for length in measured["lengths"]]
    tables = []
    for key, title in (
        ("passkey", "Passkey accuracy"),
        ("passkey-question", "Passkey accuracy, asked with 'Q: ... A:'"),
        ("needle", "Needle in held-out text, accuracy"),
        ("lines", "LongEval lines, accuracy"),
        ("key-value", "Value of a JSON object by its key, accuracy"),
        ("tracking", "RULER's variable tracking (one chain, 4 hops), all variables named in order"),
        ("tail_nll", f"NLL of the last {measured['tail']} tokens (nats/token), same targets at every length"),
    ):
        rows = [
            f"| {name} | " + " | ".join("-" if value is None else f"{value:z.2f}" for value in scores[key]) + " |"
            for name, scores in measured["scores"].items()
        ]
        tables.append("\n".join([f"**{title}**", "", f"| | {' | '.join(headings)} |", "|---" * 6 + "|", *rows]))
    title, architecture = _ARCHITECTURES[config["architecture"]]
    (folder / "README.md").write_text(
        _CARD.format(
            **training,
            **measured,
            title=title,
            architecture=architecture.format(**config),
            shares=", ".join(f"{share:.0%} {kind}" for kind, share in SHARES.items()),
            tables="\n\n".join(tables),
            heldout=", ".join(sources.HELDOUT_FILES),
        )
    )


_ARCHITECTURES = {
    "llama": (
        "The default model: a small Llama",
        "Llama architecture: {layers} layers, {heads} heads, hidden size {hidden},\n  MLP {intermediate}, tied "
        "embeddings, RoPE base 10000; float16 safetensors.",
    ),
    "nope": (
        "A sibling of the default model: a small Llama without positions",
        "Llama architecture: {layers} layers, {heads} heads, hidden size {hidden},\n  MLP {intermediate}, tied "
        "embeddings; float16 safetensors. No positions (NoPE): rotary angles are divided by 1e30,\n  so that every "
        "cosine is 1 and nothing is turned; plain transformers runs it so.",
    ),
    "alibi": (
        "A sibling of the default model: a small MPT",
        "MPT architecture: {layers} layers, {heads} heads, hidden size {hidden}, MLP 4 x {hidden}, tied\n  "
        "embeddings, ALiBi; float16 safetensors. The config's max_seq_len is what transformers can run; the trained\n"
        "  window is its original_max_position_embeddings.",
    ),
}


_CARD = """# {title}

For trying length-extrapolation methods on a laptop: what it finds inside its trained window
M = {config[trained_length]} tokens, and beyond, is measured below. Made in `research/shipped_models`; no use outside.

- {architecture}
- Byte-level BPE tokenizer, {config[vocabulary]} tokens, single digits; " hello" is one token.
  It puts <bos> before every text.
- Data: {corpus_files} files of the Python standard library (sources, docstrings, `pydoc` topics),
  {corpus_tokens:,} tokens, without tests, encodings, idlelib, lib2to3, turtledemo and the held-out files
  {heldout};
  mixed with retrieval episodes (`research/shipped_models/mixture.py`): {shares};
  answers weighted 4, prompts 0.2.
- Training: {steps:,} steps of {config[tokens_per_step]:,} tokens ({tokens_seen:,} in all),
  lengths 48 to {config[trained_length]} over the first {config[curriculum]:.0%}, Muon for matrices and AdamW for
  the rest, both {config[learning_rate]} with cosine, bf16 autocast, seed {config[seed]}, torch {torch},
  {wall_seconds:,} s (threads: {threads}, device: {device}).
- License: Apache-2.0; the held-out text under the PSF license (`mesa/shipped/heldout/LICENSE`).

## Scores

{prompts} fresh prompts (seed {seed}) and {windows} held-out windows a length; every method with its default sizes.

{tables}
"""
