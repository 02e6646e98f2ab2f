"""Prefill time and peak memory beside the public code of the same methods, on the same random weights.

A random Llama (hidden 512, 4 layers, 8 heads, float32, M = 512), one thread, seconds of the process's own CPU time, so
that other work on the machine counts little. Each configuration runs in fresh processes: one for time, in turn with
stock sdpa of its own environment, and one for memory. "Difference" is between the logits of the last token of ours and
of the public code. That needs transformers 4.31, so it runs with packages of its own:

    python -m pip install --no-deps --target OLD transformers==4.31.0 tokenizers==0.13.3 huggingface_hub==0.16.4
    cd CODE  # git clone each of these
    github.com/soacker/Mesa-Extrapolation (84a9189)    github.com/Glaciohound/LM-Infinite (git checkout 0b72a6d)
    github.com/bojone/rerope (acfe788)                 github.com/datamllab/LongLM (cdbbb06)
    python benchmarks/peers.py --old OLD --code CODE
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import public
from attention import FOLDER, _peak_bytes, _reset_peak, _revision

SIZES: dict[str, Any] = {
    "model": {
        "vocab_size": 64,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "max_position_embeddings": 512,
    },
    "trained": 512,
    "first": 12,
    "last": 64,
    "width": 50,
    "rerope": 64,
    "self-extend": 128,
    "group": 8,
}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "mesa, reference": ("mesa", {"variant": "reference", "first": 12, "last": 64, "width": 50, "split_threshold": 200}),
    "mesa, exact": ("mesa", {"first": 12, "last": 64, "width": 50}),
    "lm-infinite": ("lm-infinite", {"first": 12}),
    "rerope": ("rerope", {"window": 64}),
    "leaky-rerope": ("leaky-rerope", {"window": 64}),
    "self-extend": ("self-extend", {"window": 128, "group": 8}),
}
M_MMAP_THRESHOLD = -3
"""Its number in glibc's malloc.h."""
SQUARE = ("rerope", "leaky-rerope", "self-extend")
"""The public code of these holds whole score matrices, several times over: the shortest length alone."""


def ours(name: str, weights: Path) -> dict[str, Callable[[Any], Any]]:
    """As `public.prefills`, of ours."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    import mesa
    from mesa.outside import with_cache

    model = LlamaForCausalLM(LlamaConfig(**SIZES["model"], attn_implementation="sdpa")).eval()
    model.load_state_dict(torch.load(weights))

    def stock(ids: Any) -> Any:
        return model(ids, **with_cache(model, DynamicCache()), logits_to_keep=1).logits[:, -1]

    def own(ids: Any) -> Any:
        kind, changes = OURS[name]
        with mesa.applied(model, mesa.make(kind, SIZES["trained"], **changes)):
            return stock(ids)

    return {"stock": stock} if name == "stock" else {"stock": stock, "own": own}


def measured(what: str, side: str, name: str, length: int, repeats: int, folder: Path, code: Path) -> dict[str, Any]:
    """CPU seconds, least of `repeats`, of a configuration and stock beside it, and its logits; or its peak bytes."""
    import torch

    torch.set_num_threads(1)
    if what == "peak":
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536)  # memory that is freed goes back to the kernel
    weights, ids = folder / "weights.pt", torch.randint(64, (1, length), generator=torch.Generator().manual_seed(1))
    kinds = ours(name, weights) if side == "ours" else public.prefills(name, SIZES, weights, code)
    with torch.no_grad():
        for prefill in kinds.values():
            prefill(ids[:, :64])
        if what == "peak":
            base = _reset_peak("cpu")
            list(kinds.values())[-1](ids)
            return {"peak": float(_peak_bytes("cpu") - base)}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(repeats):
            for kind, prefill in kinds.items():
                begin = time.process_time()
                logits = prefill(ids)
                times[kind].append(time.process_time() - begin)
    return {**{kind: min(each) for kind, each in times.items()}, "logits": logits[0].tolist()}


def report(side: str, names: list[str], lengths: list[int], repeats: int, folder: Path, code: Path) -> None:
    """Prints a line of JSON for each configuration of one side, measured in processes of its own."""
    importlib.import_module("transformers.models.llama.modeling_llama")
    known = OURS if side == "ours" else public.PREPARED
    for length in lengths:
        for name in ("stock", *(name for name in names if name in known)):
            if name in SQUARE and length > min(lengths):
                continue
            row: dict[str, Any] = {"side": side, "name": name, "length": length}
            for what in ("peak",) if name == "stock" else ("time", "peak"):
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    row |= pool.apply(measured, (what, side, name, length, repeats, folder, code))
            print(json.dumps(row), flush=True)


def table(rows: list[dict[str, Any]], lengths: list[int]) -> str:
    """Markdown: CPU seconds and ratios to stock beside, peak memory as a ratio to stock's, and the difference."""
    by = {(row["side"], row["name"], row["length"]): row for row in rows}
    lines = [
        "| | " + " | ".join(f"time, {n} | of stock | peak of stock" for n in lengths) + " | difference |",
        "|---" * (3 * len(lengths) + 2) + "|",
    ]
    for side, name in dict.fromkeys((row["side"], row["name"]) for row in rows if row["name"] != "stock"):
        cells, difference = [], "-"
        for length in lengths:
            row, other = by.get((side, name, length)), by.get(("public", name, length))
            if row is None:
                cells += ["-"] * 3
                continue
            peak = row["peak"] / by[side, "stock", length]["peak"]
            cells += [f"{row['own']:.2f} s", f"{row['own'] / row['stock']:.2f}", f"{peak:.2f}"]
            if side == "ours" and other is not None:
                pairs = zip(row["logits"], other["logits"], strict=True)
                difference = f"{max(abs(one - another) for one, another in pairs):.0e}"
        lines.append(f"| {name}, {side} | " + " | ".join(cells) + f" | {difference} |")
    return "\n".join(lines)


def save_weights(path: Path) -> None:
    """Writes the random weights that both sides run on."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.save(LlamaForCausalLM(LlamaConfig(**SIZES["model"])).state_dict(), path)


def main() -> None:
    """Runs every configuration and writes results/peers.{json,md}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="packages that the public code runs with; left out: ours alone")
    parser.add_argument("--code", type=Path, default=Path(), help="folder of the public checkouts")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs the public code")
    parser.add_argument("--lengths", default="4096,8192")
    parser.add_argument("--methods", default="; ".join(OURS), help="some of: %(default)s")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths.split(",")]
    if args.one:
        side, folder = args.one
        report(side, args.methods.split("; "), lengths, args.repeats, Path(folder), args.code)
        return
    rows = []
    with tempfile.TemporaryDirectory() as place:
        save_weights(Path(place) / "weights.pt")
        for side in ("ours", "public") if args.old else ("ours",):
            environment = {**os.environ, "OMP_NUM_THREADS": "1"} | (
                {"PYTHONPATH": str(args.old)} if side == "public" else {}
            )
            command = [args.python if side == "public" else sys.executable, __file__, "--one", side, place]
            command += ["--code", str(args.code), "--repeats", str(args.repeats), "--lengths", args.lengths]
            command += ["--methods", args.methods]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
                for line in running.stdout or ():
                    rows.append(json.loads(line))
                    print({key: each for key, each in rows[-1].items() if key != "logits"}, flush=True)
            if running.returncode:
                raise SystemExit(f"the side {side} ended with {running.returncode}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "peers.json").write_text(json.dumps(rows, indent=1) + "\n")
    parts = ["# Beside the public code", (__doc__ or "").split("\n", 2)[2].strip(), table(rows, lengths)]
    (args.out / "peers.md").write_text("\n\n".join([*parts, f"Measured at revision {_revision()}."]) + "\n")


if __name__ == "__main__":
    main()
