"""Gemma 3 270M's loss by position in one long text, under each method: does it fail beyond M, and what mends it?

    mesa-lens fetch gemma3-270m
    python research/gemma3/curves.py

appends to results/curves.jsonl a row for each pass that it lacks, and goes on where it was stopped: the mean loss in
nats/token of each 1024 tokens. The text is that of Python's `help()` topics (`pydoc_data.topics`: English with code).
A pass of 65,536 tokens takes about nine minutes on two cores. The last pass starts at token 32,768 of the text: there
the model reads the second half of the same tokens with fewer than M before them.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch.nn.functional import cross_entropy

import mesa

M = 32_768
BIN = 1024
PASSES = [
    ("origin", 0, 65_536),
    ("origin", M, M),
    ("rerope", 0, 65_536),
    ("dynamic-ntk", 0, 65_536),
    ("mesa", 0, 65_536),
    ("yarn", 0, 65_536),
    ("self-extend", 0, 65_536),
    ("pi", 0, 65_536),
    ("lm-infinite", 0, 65_536),
]
"""Method, first token of the text, and tokens, in the order of what is learned."""
JOURNAL = Path(__file__).parent / "results" / "curves.jsonl"


@torch.no_grad()
def losses(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Loss of every token but the first, (T - 1,) in nats; the head reads slices, since 65,536 rows take 64 GiB."""
    states, after = model.model(ids, use_cache=False).last_hidden_state[0, :-1], ids[0, 1:]
    slices = zip(states.split(BIN), after.split(BIN), strict=True)
    return torch.cat([cross_entropy(model.lm_head(rows).float(), tokens, reduction="none") for rows, tokens in slices])


def journal() -> list[dict[str, Any]]:
    """The passes that were run."""
    return [json.loads(line) for line in JOURNAL.read_text().splitlines()] if JOURNAL.exists() else []


def table(width: int = 4096) -> list[list[float]]:
    """Beyond M, of each `width` tokens: the first, Origin's loss, its loss on the second half alone, each method's."""
    curves = {(row["method"], row["start"]): row["loss"] for row in journal()}
    alone = curves.pop(("origin", M))
    rows, bins = [], width // BIN
    for first in range(M // BIN, 2 * M // BIN, bins):
        losses = [curve[first : first + bins] for curve in curves.values()]
        losses.insert(1, alone[first - M // BIN :][:bins])
        rows.append([first * BIN, *(round(sum(each) / len(each), 2) for each in losses)])
    return rows


def main() -> None:
    """Runs what the journal lacks."""
    rows = journal()
    known = {(row["method"], row["start"], row["length"]) for row in rows}
    loaded = mesa.load("gemma3-270m")
    ids = loaded.tokenizer("\n".join(topics.values()), return_tensors="pt")["input_ids"][0]
    for name, start, length in PASSES:
        if (name, start, length) in known:
            continue
        began = time.monotonic()
        prompt = torch.cat([ids[:1], ids[1 + start : start + length]])  # the first token is the tokenizer's own
        with mesa.applied(loaded.model, mesa.make(name, trained_length=M)):
            curve = losses(loaded.model, prompt[None])
        row = {
            "method": name,
            "start": start,
            "length": length,
            "text": f"pydoc_data.topics of Python {platform.python_version()}",
            "seconds": round(time.monotonic() - began),
            "loss": [round(float(part.mean()), 4) for part in curve.split(BIN)],
        }
        with JOURNAL.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(name, start, length, row["seconds"], "s", row["loss"][::4], flush=True)


if __name__ == "__main__":
    main()
