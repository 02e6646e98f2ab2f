"""The host's time for a decoded token on an accelerator, without one: kernels are replaced by nothing, on a CPU.

    python benchmarks/host.py    # results/host.md, 2 minutes on an idle core

Methods and stock `sdpa` in turn, on a model of 30 narrow layers; milliseconds of the process's own CPU time, a layer.
Work done once a token is divided by the layers. What Triton and CUDA take to launch a kernel is not in them; what is
compiled to one launch there runs here as single operations.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from attention import _configured
from tqdm import tqdm
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from mesa.engine import attention, key_ranges, plug, rope
from mesa.engine.gpu import decode
from mesa.outside import with_cache

METHODS = ("origin", "streaming-llm", "self-extend", "rerope", "mesa", "stair", "dynamic-ntk")
LENGTH, TOKENS, ROUNDS, LAYERS = 1024, 50, 7, 30
PAGE = Path(__file__).parent / "results" / "host.md"


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """A token's attention goes an accelerator's way, and neither our kernels nor stock's compute anything."""

    def nothing(*_: Any, **__: Any) -> None: ...

    def query_of(query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return query

    kernels = SimpleNamespace(attend_token=nothing, combine=nothing)

    def kernels_of(*_: Any) -> Any:
        return kernels

    def always(*_: Any) -> bool:
        return True

    with contextlib.ExitStack() as patches:
        for module in (attention, key_ranges, plug, rope):
            patches.enter_context(mock.patch.object(module, "is_accelerator", always))
        patches.enter_context(mock.patch.object(decode, "kernels_of", kernels_of))
        patches.enter_context(mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", query_of))
        yield


@torch.no_grad()
def token(model: Any) -> float:
    """Milliseconds of a token, a layer; median."""
    cached, ids, steps = with_cache(model, DynamicCache()), torch.randint(0, 1024, (1, LENGTH)), []
    model(ids, **cached, logits_to_keep=1)
    with without_kernels():
        for step in range(TOKENS):
            start = time.process_time()
            model(ids[:, step : step + 1], **cached)
            steps.append(time.process_time() - start)
    return float(np.median(steps)) * 1000 / LAYERS


def main() -> None:
    """Writes the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=64, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    stock, added = [token(model)], {name: list[float]() for name in METHODS}
    for name in tqdm(METHODS * ROUNDS, unit="round", file=sys.stderr):
        with _configured(model, name, LENGTH):
            own = token(model)
        stock.append(token(model))
        added[name].append(own - (stock[-2] + stock[-1]) / 2)
    cells = ("{1:.3f} [{0:.3f}, {2:.3f}]".format(*np.quantile(rounds, (0.25, 0.5, 0.75))) for rounds in added.values())
    lines = [
        "# The host's time for a decoded token", "",
        f"`python benchmarks/host.py`: what a method adds to stock's {np.median(stock):.3f} ms a layer, with kernels",
        f"that do nothing, on one thread of a CPU. Median of {ROUNDS} rounds [quartiles];",
        f"{LENGTH} tokens, M = {LENGTH // 8}.", "",
        f"| {' | '.join(METHODS)} |", f"|{'---|' * len(METHODS)}", f"| {' | '.join(cells)} |",
    ]  # fmt: skip
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
