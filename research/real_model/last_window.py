"""Does Origin answer passkeys beyond M from their last M tokens, where the key stands in these?

    python research/real_model/last_window.py

writes results/last-window.jsonl: a row a prompt and baseline. The prompts are those of `mesa-lens eval --model smollm2
--task passkey` (five of 12288 tokens) and of `make real` (one of 16384). Baselines: the last M tokens, and the first
token and the last M - 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import Prompt
from probe.eval_tasks.score import retrieval_hits
from probe.eval_tasks.tasks import PASSKEY

M = 8192
PROMPTS = {12288: 5, 16384: 1}
"""Prompts by length, in tokens."""
JOURNAL = Path(__file__).parent / "results" / "last-window.jsonl"


def shortened(prompt: Prompt) -> Iterator[tuple[str, Prompt]]:
    """The baselines' prompts of M tokens."""
    yield "last M", replace(prompt, ids=prompt.ids[-M:])
    yield "first and last M-1", replace(prompt, ids=prompt.ids[:1] + prompt.ids[1 - M :])


def main() -> None:
    """Measures what the journal lacks."""
    loaded = mesa.load("smollm2")
    rows = [json.loads(line) for line in JOURNAL.read_text().splitlines()] if JOURNAL.exists() else []
    known = {(row["length"], row["sample"], row["baseline"]) for row in rows}
    for length, samples in PROMPTS.items():
        prompts = PASSKEY.prepare(loaded.tokenizer, length, PromptSpec(M, (length,), samples, 0, ()), samples)
        for number, prompt in enumerate(prompts):
            back = length - prompt.key_position
            for name, short in shortened(prompt) if back < M - 1 else ():
                if (length, number, name) not in known:
                    (hit,) = retrieval_hits(loaded.model, loaded.tokenizer, [short])
                    row = {"length": length, "sample": number, "key, tokens before the end": back, "baseline": name}
                    with JOURNAL.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row | {"found": hit}) + "\n")
                    print(row, hit, flush=True)


if __name__ == "__main__":
    main()
