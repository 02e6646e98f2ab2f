"""Prefill time, decode time and peak memory of every method, as ratios to stock transformers in the same run.

A random Llama (hidden 512, 4 layers, 8 heads, float32, 2 threads; on a GPU: hidden 2048, 16 layers, bfloat16),
with M = T / 8 and window N = M / 4; "mesa at M = 512" keeps M fixed, to see how its time grows. Each configuration runs
in fresh processes: one for time, in turn with stock sdpa, and one for memory. Writes a table and a plot.

    python benchmarks/attention.py                      # 1k to 16k tokens, 70 minutes on 2 cores
    python benchmarks/attention.py --quick              # all at 1k and 8k, a few methods at 16k: 15 to 40 minutes
    python benchmarks/attention.py --lengths 2048,4096  # a part of it
    python benchmarks/attention.py --methods lampe --again  # one method, changed since; the others' numbers stay
    python benchmarks/attention.py --threads 1 --out benchmarks/results/cpu-time  # beside other work: its own CPU time
    python benchmarks/attention.py --device cuda --out benchmarks/results/cuda
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

FOLDER = Path(__file__).parent / "results"
STOCK, LEFT_OUT = "stock sdpa", "attention left out"
METHODS = (
    "origin",
    "rerope",
    "leaky-rerope",
    "dynamic-ntk",
    "dca",
    "string",
    "lampe",
    "crop",
    "lm-infinite",
    "streaming-llm",
    "self-extend",
    "stair",
    "mesa",
)
"""All but those that only change angles and cost what Origin does: `nope`, `pi`, `ntk-mixed`, `yarn`."""

LINEAR = "mesa at M = 512"
QUICK = "1024,8192,16384"
LONGEST = ("rerope", "lm-infinite", "stair", "mesa", LINEAR)
"""What is measured beyond 8192 tokens where time is short."""
DECODED = 16
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""For glibc: memory that is freed goes back to the kernel, so the peak of a process is the peak of what is in use."""


def measure_time(name: str, length: int, repeats: int, device: str) -> dict[str, float]:
    """Seconds of a prefill and of a decoded token, of the configuration and beside it, in turn; least of `repeats`.

    Beside it: stock sdpa (`stock_prefill`, `stock_decode`) and the model with attention left out (`linear_prefill`).
    Whatever else the machine does falls on all alike, and the least of several is what it disturbed least.
    """
    model = _model(length, device)
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for kind, prefix in ((STOCK, "stock_"), (LEFT_OUT, "linear_"), (name, "")):
            with _configured(model, kind, length):
                prefill, decode = _generate_once(model, length, device)
            times.setdefault(f"{prefix}prefill", []).append(prefill)
            times.setdefault(f"{prefix}decode", []).append(decode)
    least = {key: min(values) for key, values in times.items()}
    return least | {"pairs": _share_of_pairs(name, length)}


def _share_of_pairs(name: str, length: int, block: int = 512) -> float:
    """Query-key pairs that the configuration's plan attends to, over all causal ones."""
    if name.startswith("stock "):
        return 1.0
    plan, index = _method(name, length).plan(length), np.arange(length)
    pairs = 0
    for begin in range(0, length, block):
        queries = index[begin : begin + block, None]
        pairs += sum(int(region.contains(queries, index[None, : begin + block]).sum()) for region in plan.regions)
    return pairs / (length * (length + 1) / 2)


def measure_peak(name: str, length: int, device: str) -> dict[str, float]:
    """Peak bytes of a prefill above the loaded model."""
    import torch
    from transformers import DynamicCache

    from mesa.outside import with_cache

    model = _model(length, device)
    with torch.no_grad(), _configured(model, name, length):
        ids = torch.zeros(1, length, dtype=torch.long, device=device)
        model(ids[:, :64])
        base = _reset_peak(device)
        model(ids, **with_cache(model, DynamicCache()), logits_to_keep=1)
        return {"peak": float(_peak_bytes(device) - base)}


def _model(length: int, device: str) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    hidden, layers, dtype = (512, 4, torch.float32) if device == "cpu" else (2048, 16, torch.bfloat16)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=length,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval().to(device, dtype)


def _generate_once(model: Any, length: int, device: str) -> tuple[float, float]:
    """Seconds of a prefill, and of the median of `DECODED` tokens after it."""
    import torch
    from transformers import DynamicCache

    from mesa.outside import with_cache

    with torch.no_grad():
        ids = torch.randint(0, 1024, (1, length), device=device)
        model(ids[:, :64])
        given = with_cache(model, DynamicCache())
        begin = _now(device)
        model(ids, **given, logits_to_keep=1)
        prefill = _now(device) - begin
        steps = []
        for step in range(DECODED):
            begin = _now(device)
            model(ids[:, step : step + 1], **given)
            steps.append(_now(device) - begin)
    return prefill, float(np.median(steps))


@contextlib.contextmanager
def _configured(model: Any, name: str, length: int) -> Iterator[None]:
    """The model under a configuration: stock attention, none, or a method."""
    from transformers import AttentionInterface

    import mesa

    if name.startswith("stock ") or name == LEFT_OUT:
        AttentionInterface.register(LEFT_OUT, lambda module, query, *rest, **more: (query.transpose(1, 2), None))
        model.set_attn_implementation(name.removeprefix("stock "))
        yield
        model.set_attn_implementation("sdpa")
        return
    with mesa.applied(model, _method(name, length)):
        yield


def _method(name: str, length: int) -> Any:
    """The method of a configuration, with M = length / 8 and N = M / 4."""
    import mesa

    trained = 512 if name == LINEAR else length // 8
    kind = "mesa" if name == LINEAR else name
    known = {field.name for field in dataclasses.fields(mesa.METHODS[kind])}
    window = {"window": trained // 4} if "window" in known and kind not in ("lm-infinite", "streaming-llm") else {}
    return mesa.make(kind, trained, **window)


def _now(device: str) -> float:
    """Seconds on a clock, all work on the device done; the process's own CPU time where it has one thread."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def _reset_peak(device: str) -> int:
    """Resets the record of peak memory (this process's by the Linux kernel, a GPU's by torch); returns bytes in use."""
    import torch

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak_bytes(device: str) -> int:
    import torch

    return _status("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated(device)


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Runs every configuration and writes results/attention.{json,md,png}."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two repeats, 1k and 8k, a few methods at 16k")
    parser.add_argument("--again", action="store_true", help="into the results that are there")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="with one, times are the process's own CPU time")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "NAME"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    if args.quick:
        args.lengths, args.repeats = QUICK, 2
    lengths = [int(length) for length in args.lengths.split(",")]
    if args.one:
        import torch

        torch.set_num_threads(args.threads)
        what, name = args.one
        timed = what == "time"
        got = measure_time(name, lengths[0], args.repeats, args.device) if timed else None
        print(json.dumps(got or measure_peak(name, lengths[0], args.device)))
        return
    names, results = args.methods.split(","), args.out / "attention.json"
    names += [] if args.again else [LINEAR, "stock eager", STOCK]
    jobs = [(name, length) for length in lengths for name in names if not _too_large(name, length, args.quick)]
    known = json.loads(results.read_text()) if args.again else []
    measured_rows, revision = {(row["name"], row["length"]): row for row in known}, _revision()
    for name, length in tqdm(jobs, unit="configuration"):
        row: dict[str, Any] = {"name": name, "length": length, "revision": revision}
        for what in ("peak",) if name == STOCK else ("time", "peak"):
            command = [sys.executable, __file__, "--one", what, name, "--lengths", str(length)]
            command += ["--repeats", str(args.repeats), "--device", args.device]
            command += ["--threads", str(args.threads)]
            environment = {**os.environ, **FREED_AT_ONCE} if what == "peak" else None
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            row |= json.loads(done.stdout.splitlines()[-1])
        if name == STOCK:
            beside = [other for other in measured_rows.values() if other["length"] == length]
            row |= {key: min(other[f"stock_{key}"] for other in beside) for key in ("prefill", "decode")}
            row["linear_prefill"] = min(other["linear_prefill"] for other in beside)
        measured_rows[name, length] = row
    rows = list(measured_rows.values())
    args.out.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(rows, indent=1) + "\n")
    clock = " Times: the process's own CPU time, one thread." if args.threads == 1 else ""
    text = f"{table(rows, sorted({row['length'] for row in rows}))}\n\n{measured_at(rows)}{clock}"
    (args.out / "attention.md").write_text(text + "\n")
    plot(rows, args.out / "attention.png")
    print(text)


def measured_at(rows: list[dict[str, Any]]) -> str:
    """A sentence: the revision that most were measured at, and what was at others."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        names.setdefault(row["revision"], {})[row["name"]] = None
    first, *others = sorted(names, key=lambda revision: -len(names[revision]))
    return "".join(
        [f"Measured at revision {first}", *(f"; {', '.join(names[each])} at {each}" for each in others), "."]
    )


def _revision() -> str:
    """The commit measured, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True).stdout.strip()


def _too_large(name: str, length: int, quick: bool) -> bool:
    """Eager attention at 16k holds 8 heads of 16k x 16k scores several times over: beyond 24 GiB."""
    return length > 8192 and (name == "stock eager" or (quick and name not in (*LONGEST, STOCK)))


def stock_row(rows: list[dict[str, Any]], length: int) -> dict[str, Any]:
    """The numbers of stock sdpa at a length."""
    return next(row for row in rows if (row["name"], row["length"]) == (STOCK, length))


def ratio(row: dict[str, Any], key: str, rows: list[dict[str, Any]]) -> float:
    """A number of a configuration as a ratio to stock sdpa's, measured beside it where it is a time."""
    return row[key] / row.get(f"stock_{key}", stock_row(rows, row["length"])[key])


def efficiency(row: dict[str, Any]) -> float:
    """Share of the causal pairs that are attended to, over the attention's time as a share of stock's."""
    linear = row["linear_prefill"]
    return row["pairs"] / ((row["prefill"] - linear) / (row["stock_prefill"] - linear))


def table(rows: list[dict[str, Any]], lengths: list[int]) -> str:
    """Markdown: absolute numbers of stock sdpa, ratios to it for the rest, and how Mesa's time grows."""
    by = {(row["name"], row["length"]): row for row in rows}
    parts = []
    for key, title in (("prefill", "Prefill time"), ("decode", "Decode time a token"), ("peak", "Peak memory")):
        lines = [f"**{title}**, ratio to stock sdpa", "", "| | " + " | ".join(f"{n}" for n in lengths) + " |"]
        lines.append("|---" * (len(lengths) + 1) + "|")
        stock = [stock_row(rows, length)[key] for length in lengths]
        shown = [f"{value / 2**20:.0f} MiB" if key == "peak" else f"{1000 * value:.4g} ms" for value in stock]
        lines.append("| stock sdpa | " + " | ".join(shown) + " |")
        for name in dict.fromkeys(row["name"] for row in rows if row["name"] != STOCK):
            own = [by.get((name, length)) for length in lengths]
            cells = ["-" if row is None else f"{ratio(row, key, rows):.2f}" for row in own]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    parts.insert(1, _efficiency_table(by, lengths))
    grown = [
        (row["length"], ratio(row, "prefill", rows) * stock_row(rows, row["length"])["prefill"])
        for row in rows
        if row["name"] == LINEAR and row["length"] >= 2048
    ]
    if len(grown) > 1:
        exponent = np.polyfit(*np.log(np.array(grown)).T, 1)[0]
        span = f"{grown[0][0]} to {grown[-1][0]}"
        parts.append(f"Mesa's prefill time at M = 512 grows as T^{exponent:.2f} from {span} tokens.")
    return "\n\n".join(parts)


def _efficiency_table(by: dict[tuple[str, int], dict[str, Any]], lengths: list[int]) -> str:
    lines = [
        "**Efficiency**: pairs attended to over causal pairs, over attention's time by stock sdpa's (prefill less that "
        "of the model with attention left out); in brackets the share of the pairs",
        "",
        "| | " + " | ".join(f"{length}" for length in lengths) + " |",
        "|---" * (len(lengths) + 1) + "|",
    ]
    linear = [by[STOCK, length]["linear_prefill"] / by[STOCK, length]["prefill"] for length in lengths]
    lines.append(f"| {LEFT_OUT}, of stock's time | " + " | ".join(f"{share:.2f}" for share in linear) + " |")
    for name in dict.fromkeys(name for name, _ in by if not name.startswith("stock ")):
        rows = [by.get((name, length)) for length in lengths]
        cells = ["-" if row is None else f"{efficiency(row):.2f} ({row['pairs']:.2f})" for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Prefill time and peak memory over length, as the paper's latency figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=120, layout="constrained")
    axes = figure.subplots(1, 2)
    names = sorted(dict.fromkeys(row["name"] for row in rows), key=lambda name: not name.startswith("stock"))
    for axis, key, unit, scale in ((axes[0], "prefill", "s", 1), (axes[1], "peak", "MiB", 2**20)):
        for number, name in enumerate(names):
            own = [row for row in rows if row["name"] == name]
            values = [ratio(row, key, rows) * stock_row(rows, row["length"])[key] / scale for row in own]
            style = {"marker": "osvD^"[number % 5], "linestyle": ("-", "--", ":")[number % 3], "markersize": 4}
            colour = {STOCK: "black", "stock eager": "0.6"}.get(name)
            axis.plot([row["length"] for row in own], values, label=name, color=colour, **style)
        axis.set(xscale="log", yscale="log", xlabel="prompt length (tokens)")
        ticks = sorted({row["length"] for row in rows})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_ylabel(f"{'prefill time' if key == 'prefill' else 'peak memory above the model'} ({unit})")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    figure.savefig(path)


if __name__ == "__main__":
    main()
