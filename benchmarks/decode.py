"""A decoded token at short lengths on a CPU, as a ratio to stock `sdpa`: methods and stock in turn, one thread.

    python benchmarks/decode.py    # results/decode.md, 10 minutes

Two models without training: the 4 layers of attention.py, and SmolLM2-135M's shapes. Seconds are of the process's own
CPU time, the median of a round's tokens; a ratio is to the mean of the stock rounds before and after it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention import _configured, _generate_once, _model
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

METHODS = ("origin", "streaming-llm", "self-extend", "rerope", "mesa")
LENGTHS, ROUNDS = (256, 1024), 7
PAGE = Path(__file__).parent / "results" / "decode.md"


def smollm2_shaped(length: int, _: str) -> Any:
    """A model of SmolLM2-135M's shapes but for its vocabulary."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=length,
    )
    model: Any = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    return model


MODELS = {"4 layers, width 512": _model, "30 layers, width 576 (SmolLM2-135M)": smollm2_shaped}


def ratios(model: Any, length: int) -> dict[str, list[float]]:
    """A method's time over stock's, round by round."""
    result: dict[str, list[float]] = {name: [] for name in METHODS}
    before = _generate_once(model, length, "cpu")[1]
    for name in tqdm(METHODS * ROUNDS, desc=f"{length} tokens", unit="round", file=sys.stderr):
        with _configured(model, name, length):
            own = _generate_once(model, length, "cpu")[1]
        after = _generate_once(model, length, "cpu")[1]
        result[name].append(2 * own / (before + after))
        before = after
    return result


def main() -> None:
    """Writes the table."""
    torch.set_num_threads(1)
    lines = [
        "# A decoded token at short lengths", "",
        "`python benchmarks/decode.py`: CPU time over stock `sdpa`'s, one thread, float32, M = T/8. Median of",
        f"{ROUNDS} rounds [quartiles], each between two of stock.", "",
        f"| model | tokens | {' | '.join(METHODS)} |", f"|---|---|{'---|' * len(METHODS)}",
    ]  # fmt: skip
    for title, make in MODELS.items():
        for length in LENGTHS:
            rounds = ratios(make(length, "cpu"), length)
            cells = [
                "{1:.2f} [{0:.2f}, {2:.2f}]".format(*np.quantile(rounds[name], (0.25, 0.5, 0.75))) for name in METHODS
            ]
            lines.append(f"| {title} | {length} | {' | '.join(cells)} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
