"""A batch of eight lengths on a CPU over the same eight texts one by one: stock `sdpa` and methods, two threads.

    python benchmarks/padded.py    # results/padded.md, 5 minutes on 2 idle cores

The model of attention.py; M = T/4. CPU time of the process; a batch lies between two rounds of single texts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention import _model

import mesa

METHODS, LENGTHS, ROUNDS, TEXTS = ("stock", "rerope", "mesa", "stair"), (512, 1024), 7, 8
PAGE = Path(__file__).parent / "results" / "padded.md"


def seconds(call: Callable[[], Any]) -> float:
    """CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


@torch.no_grad()
def ratios(model: Any, texts: list[torch.Tensor]) -> list[float]:
    """The batch's time over that of single texts, round by round; padded on the left."""
    longest = max(len(text) for text in texts)
    ids = torch.stack([torch.nn.functional.pad(text, (longest - len(text), 0)) for text in texts])
    mask = torch.stack([torch.arange(longest) >= longest - len(text) for text in texts]).long()

    def batch() -> None:
        model(ids, attention_mask=mask, use_cache=False, logits_to_keep=1)

    def alone() -> None:
        for text in texts:
            model(text[None], use_cache=False, logits_to_keep=1)

    batch()
    result, before = [], seconds(alone)
    for _ in range(ROUNDS):
        own, after = seconds(batch), seconds(alone)
        result.append(2 * own / (before + after))
        before = after
    return result


def main() -> None:
    """Writes the table."""
    torch.set_num_threads(2)
    lines = [
        "# A padded batch on a CPU", "",
        f"`python benchmarks/padded.py`: CPU time of a batch of {TEXTS} texts, of 3/4 T to T tokens, over that of the",
        f"same texts one by one. Median of {ROUNDS} rounds [quartiles]. Padding makes it 1.14 times the tokens.", "",
        f"| T | {' | '.join(METHODS)} |", f"|---|{'---|' * len(METHODS)}",
    ]  # fmt: skip
    for length in LENGTHS:
        model, cells = _model(length, "cpu"), []
        texts = [torch.randint(0, 1024, (int(size),)) for size in np.linspace(0.75, 1, TEXTS) * length]
        for name in METHODS:
            method = None if name == "stock" else mesa.make(name, trained_length=length // 4)
            with mesa.applied(model, method) if method else contextlib.nullcontext():
                cells.append("{1:.2f} [{0:.2f}, {2:.2f}]".format(*np.quantile(ratios(model, texts), (0.25, 0.5, 0.75))))
        lines.append(f"| {length} | {' | '.join(cells)} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
