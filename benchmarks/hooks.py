"""What keeping the residual stream of every layer costs, on TransformerLens' bridge and on `mesa.bridge`.

    python benchmarks/hooks.py                                          # the shipped model, `run_with_cache`
    python benchmarks/hooks.py --call generate                          # 16 new tokens, with `return_cache`
    python benchmarks/hooks.py --model smollm2 --lengths 2048,4096,8192 # after `mesa-lens fetch smollm2`

Every case runs in a process of its own. MiB: the peak of the process's resident memory in the call, less what it was
before. Seconds: of the same call, one run, after a call of 64 tokens; cases alternate, so compare within a column.
Lengths go far beyond the shipped model's window: cost is what is measured. A case that needs more memory than the
machine has free is left out: with T x T matrices it grows as length squared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
BRIDGES = {"TransformerLens": "stock", "mesa.bridge": "", "Origin": "origin", "ReRoPE": "rerope"}
"""Bridges and methods by what the table calls them."""
MIB, NEW = 2**20, 16


def cost(kind: str, length: int, model: str, call: str) -> tuple[float, float]:
    """MiB that one call adds in this process, and its seconds; a call of 64 tokens comes first."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    import mesa
    from mesa.support import trained_length

    torch.set_num_threads(2)
    loaded = mesa.load(model)
    network, tokenizer = loaded.model, loaded.tokenizer
    if kind == "stock":
        built = TransformerBridge.boot_transformers(type(network).__name__, hf_model=network, tokenizer=tokenizer)
    else:
        built = mesa.bridge(network, tokenizer)
    method = mesa.make(kind, trained_length(network.config)) if kind not in ("", "stock") else None
    ids = torch.randint(2, len(tokenizer), (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), mesa.applied(network, method) if method else contextlib.nullcontext():
        for tokens in (ids[:, :64], ids):
            Path("/proc/self/clear_refs").write_text("5")  # else the peak is that of loading, where that is higher
            before, start = _memory("VmRSS"), time.perf_counter()
            kept = CALLS[call](built, tokens)
            seconds = time.perf_counter() - start
    assert sum(state.shape[1] for state in kept) >= length * network.config.num_hidden_layers
    return _memory("VmHWM") - before, seconds


def _memory(field: str) -> float:
    """MiB that this process holds (VmRSS), or held at most since its peak was reset (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def _residual(hook: str) -> bool:
    return hook.endswith("hook_resid_post")


def _run_with_cache(bridge: Any, tokens: Any) -> list[Any]:
    _, cache = bridge.run_with_cache(tokens, names_filter=_residual, return_type=None)
    return list(cache.values())


def _generate(bridge: Any, tokens: Any) -> list[Any]:
    options = {"do_sample": False, "stop_at_eos": False, "verbose": False}
    _, cache = bridge.generate(tokens, max_new_tokens=NEW, return_cache=True, names_filter=_residual, **options)
    return list(cache.values())


CALLS = {"run_with_cache": _run_with_cache, "generate": _generate}


def _in_process(
    kind: str, length: int, before: tuple[int, float], args: argparse.Namespace
) -> tuple[float, float] | None:
    """The cost in a process of its own; None where, growing as length squared from `before`, it has no room."""
    expected = before[1] * (length / before[0]) ** 2 * MIB
    if expected > 0.9 * psutil.virtual_memory().available:
        return None
    case = [sys.executable, __file__, "--one", kind, str(length), "--model", args.model, "--call", args.call]
    done = subprocess.run(case, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints two tables."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--lengths", default="2048,4096,8192,16384", help="tokens (%(default)s)")
    command.add_argument("--model", default="default", help="as for `mesa-lens probe` (%(default)s)")
    command.add_argument("--call", choices=CALLS, default="run_with_cache", help="%(default)s")
    command.add_argument("--one", nargs=2, metavar=("KIND", "LENGTH"), help="measure one case: its MiB and seconds")
    args = command.parse_args()
    if args.one:
        print(json.dumps(cost(args.one[0], int(args.one[1]), args.model, args.call)))
        return
    lengths = [*map(int, args.lengths.split(","))]
    costs: dict[str, list[tuple[float, float] | None]] = {name: [] for name in BRIDGES}
    for length in lengths:
        for name, kind in BRIDGES.items():
            before = [(at, case[0]) for at, case in zip(lengths, costs[name], strict=False) if case]
            costs[name].append(_in_process(kind, length, before[-1] if before else (length, 0.0), args))
    for unit, place, digits in (("MiB", 0, 0), ("seconds", 1, 1)):
        print(f"| {unit} | " + " | ".join(f"{length} tokens" for length in lengths) + " |")
        print("|---" * (len(lengths) + 1) + "|")
        for name, row in costs.items():
            print(f"| {name} | " + " | ".join(f"{case[place]:.{digits}f}" if case else "" for case in row) + " |")
        print()


if __name__ == "__main__":
    main()
