"""What the kernel alone allows: a plan's attention calls on ready states, beside stock's one call on the triangle.

One layer of 8 heads of 64 dims in float32, M = T / 8 and window N = M / 4 as in attention.py, one thread, the least of
some repeats of CPU time. Efficiency is the share of pairs over the share of stock's time: of the calls alone, with all
but turning (merging, sorting, copies), and of everything.

    python benchmarks/floor.py                 # 8192 tokens, 3 minutes
    python benchmarks/floor.py --length 16384
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from attention import FOLDER, _method, _revision, _share_of_pairs
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from mesa.engine import attention, cpu
from mesa.engine.rope import RotaryLayout, Rotation
from mesa.engine.schedule import Schedule

NAMES = ("origin", "rerope", "stair", "lm-infinite", "streaming-llm", "mesa", "mesa at M = 512")
HEADS, DIM = 8, 64


def states(heads: int, tokens: int, batch: int = 1) -> Tensor:
    """Random states (batch, head, token, dim), laid out as a model's projections leave them."""
    return torch.randn(batch, tokens, heads, DIM).transpose(1, 2)


def recorded(schedule: Schedule, given: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Any, ...]]:
    """The arguments of the kernel calls that a plan comes to, on states of their own."""
    calls, attend = [], cpu.attend

    def recording(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        own = [states(part.shape[1], part.shape[2], part.shape[0]) for part in (query, key, value)]
        calls.append((*own, *rest))
        return attend(query, key, value, *rest)

    with mock.patch.object(attention, "attend", recording), mock.patch.object(cpu, "attend", recording):
        attention.fused(schedule, *given, DIM**-0.5)
    return calls


def measured(name: str, length: int, repeats: int) -> dict[str, float]:
    """Pairs, calls, and CPU seconds of stock, of the calls alone, without turning, and of all."""
    method = _method(name, length)
    config = LlamaConfig(hidden_size=HEADS * DIM, num_attention_heads=HEADS, max_position_embeddings=length)
    frequencies = modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    turning = Rotation(RotaryLayout(0, len(frequencies)), frequencies)
    given = states(HEADS, length), states(HEADS, length), states(HEADS, length)
    whole, still = (
        Schedule(method.plan(length), 0, method.cached_position, turn)
        for turn in (turning, lambda states, positions, plan: states)
    )
    calls = recorded(still, given)
    kinds: dict[str, Callable[[], Any]] = {
        "stock": lambda: torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True),
        "calls": lambda: [cpu.attend(*call) for call in calls],
        "still": lambda: attention.fused(still, *given, DIM**-0.5),
        "all": lambda: attention.fused(whole, *given, DIM**-0.5),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, run in kinds.items():
            begin = time.process_time()
            run()
            times[kind].append(time.process_time() - begin)
    return {kind: min(each) for kind, each in times.items()} | {
        "pairs": _share_of_pairs(name, length),
        "count": len(calls),
    }


def main() -> None:
    """Prints the table and writes it beside the other results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = [
        f"# What the kernel alone allows, {args.length} tokens",
        "",
        (__doc__ or "").split("\n", 2)[2].partition("\n\n    ")[0].strip(),
        "",
        "| | share of pairs | calls | efficiency of the calls alone | without turning | of all |",
        "|---|---|---|---|---|---|",
    ]
    with torch.no_grad():
        for name in NAMES:
            row = measured(name, args.length, args.repeats)
            shares = [f"{row['pairs'] * row['stock'] / row[kind]:.2f}" for kind in ("calls", "still", "all")]
            lines.append(f"| {name} | {row['pairs']:.3f} | {row['count']:.0f} | {' | '.join(shares)} |")
            print(lines[-1], flush=True)
    lines += ["", f"Measured at revision {_revision()}."]
    (args.out / f"floor-{args.length}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
