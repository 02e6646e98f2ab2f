"""What no CPU can test, on a GPU: one page of Markdown, and exit code 1 where any of it fails.

    make test-gpu                                    # writes runs/gpu/gpu.md and gpu.json
    python benchmarks/gpu.py --dry-run --out FOLDER  # the same steps on the CPU, small: tries the script

Goldens of the public implementations in float32 and bfloat16, the attention kernels against float64, every method's
tokens against the CPU's, a training step; then, with nothing beside it, time, memory and launches of layers of
Llama-3-8B beside stock attention. What is not timed runs in several processes, since most of it is compiling.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "benchmarks"),
    *(str(ROOT / "tests" / name) for name in ("helpers", "mesa", "mesa/engine")),
]

import attention  # noqa: E402
import budgets  # noqa: E402
import cases  # noqa: E402
import structures  # noqa: E402
import test_golden  # noqa: E402
import tiny  # noqa: E402
from h100 import pass_parts, seconds, stock_parts  # noqa: E402
from transformers import DynamicCache, LlamaForCausalLM  # noqa: E402

import mesa  # noqa: E402
from mesa.device import now  # noqa: E402
from mesa.engine.gpu import kernels  # noqa: E402
from mesa.methods import make, standard_methods  # noqa: E402
from mesa.outside import with_cache  # noqa: E402
from mesa.plan import Carry  # noqa: E402
from mesa.support import unfit  # noqa: E402

Row = dict[str, Any]
"""What was measured, by column; `passed`, where there is one, says whether it is as it must be."""
LOGITS = 2e-3
"""Of float32 logits, against the CPU's; a window off by one is 0.1 and more."""


@dataclass(frozen=True)
class Size:
    """How much a run does."""

    device: str
    dtypes: tuple[torch.dtype, ...]
    dims: tuple[int, ...]
    goldens: tuple[str, ...]
    prompts: tuple[int, ...]
    methods: tuple[str, ...]
    structures: tuple[str, ...]
    lengths: tuple[int, ...]
    timed: tuple[str, ...]
    longest: tuple[str, ...]
    """The methods of the longest length."""
    repeats: int
    processes: int


FULL = Size(
    "cuda",
    (torch.float32, torch.float16, torch.bfloat16),
    (64, 128, 80, 12),
    tuple(test_golden.METHODS),
    (64, 200, 333),
    tuple(cases.CASES),
    tuple(structures.STRUCTURES),
    (8192, 32768, 131072),
    tuple(name for name in standard_methods() if name not in ("nope", "pi", "ntk-mixed", "cope")),
    ("origin", "rerope", "dca", "stair", "mesa"),
    2,
    max(1, (os.cpu_count() or 2) - 1),
)
DRY = Size(
    "cpu",
    (torch.float32,),
    (64,),
    ("rerope", "cope"),
    (64,),
    ("rerope", "mesa"),
    ("soft cap",),
    (128, 256),
    ("mesa",),
    ("mesa",),
    1,
    1,
)
LAYERS, DECODING, TOKENS = 4, 16, 8
"""Layers of Llama-3-8B that are timed on a prompt and on a token, and how many tokens: what a pass does once counts."""


def goldens(size: Size) -> Iterator[Row]:
    """Prompt logits under each method against those of its public implementation.

    In bfloat16 the fused executor may be off by what the dense one is, and half of it more.
    """
    for dtype in (torch.float32, torch.bfloat16):
        model = LlamaForCausalLM.from_pretrained(test_golden.GOLDEN / "tiny_model", dtype=dtype).eval().to(size.device)
        for name in size.goldens:
            golden, errors = np.load(test_golden.GOLDEN / f"{name}.npz"), {"fused": [0.0], "dense": [0.0]}
            for executor, length in ((executor, length) for executor in errors for length in size.prompts):
                ids = torch.from_numpy(golden[f"L{length}_input_ids"]).reshape(1, -1).to(size.device)
                expected = torch.from_numpy(golden[f"L{length}_prompt_logits"]).reshape(-1, 64)
                with torch.no_grad(), mesa.applied(model, test_golden.METHODS[name], executor=executor):
                    difference = (model(ids).logits[0, :, :64].float().cpu() - expected).abs()
                exact = dtype == torch.float32
                errors[executor].append(float(difference.max() if exact else difference.mean()))
            fused, dense = max(errors["fused"]), max(errors["dense"])
            passed = fused <= LOGITS if dtype == torch.float32 else fused <= 1.5 * dense + 1e-3
            kind = "largest" if dtype == torch.float32 else "mean"
            yield {
                "golden": name,
                "dtype": _name(dtype),
                "error": kind,
                "fused": fused,
                "dense": dense,
                "passed": passed,
            }


def attention_kernels(size: Size) -> Iterator[Row]:
    """Each trial's attention and log-sum-exp against plain operations in float64, by the kernels such spans go to.

    Our own is tried with a soft cap as well, and `varlen_attn` in any case, which a newer flash attention is used by.
    """
    device = torch.device(size.device)
    for dtype in size.dtypes:
        for dim in size.dims:
            for name, spans in kernels.TRIALS.items():
                query, scoring = kernels.trial(spans, dtype, dim)[0].to(device), kernels.Scoring(dim**-0.5)
                carries = isinstance(spans[0].holds, Carry) and not spans[0].holds.carried
                used = [kernels.kernel_for(query, spans, scoring, both) for both in (False, carries)]
                if kernels.takes(kernels.by_varlen, query, spans, scoring):
                    used.append(kernels.by_varlen)
                for kernel in dict.fromkeys(used):
                    caps = (None, 2.0) if kernel is kernels.by_triton else (None,)
                    errors = (kernels.trial_error(kernel, device, dtype, dim, spans, cap) for cap in caps)
                    row = {"dtype": _name(dtype), "head dim": dim, "spans": name, "kernel": kernel.__name__}
                    error = next(filter(None, errors), "")
                    yield {**row, "error": error, "passed": not error}


def methods(size: Size) -> Iterator[Row]:
    """Each method's greedy tokens and logits against the CPU's, by a cache that grows and by a static one."""
    ids = torch.randint(2, 97, (2, 61), generator=torch.Generator().manual_seed(0))
    for name in size.methods:
        runs: dict[str, tuple[Any, ...]] = {}
        for device in dict.fromkeys(("cpu", size.device)):
            model, given = tiny.model().to(device), ids.to(device)
            options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 1}
            with mesa.applied(model, cases.method(name)), torch.no_grad():
                written = model.generate(given, **options)
                static = model.generate(given, cache_implementation="static", **options)
                runs[device] = written.cpu(), static.cpu(), model(given).logits.cpu()
        on, off = runs[size.device], runs["cpu"]
        same, error = torch.equal(on[0], off[0]) and torch.equal(on[1], off[0]), float((on[2] - off[2]).abs().max())
        yield {"method": name, "same tokens": same, "error": error, "passed": same and error <= LOGITS}


def structures_of_attention(size: Size) -> Iterator[Row]:
    """A padded batch and tokens decoded after it, of a tiny model of each structure that attention comes in.

    In float32 its logits against the CPU's; in bfloat16 the mean error may be what the dense executor's is, and half
    of it more. Both as shares of the largest logit.
    """
    for structure in size.structures:
        for dtype in size.dtypes if size.device != "cpu" else (torch.float32,):
            if dtype == torch.float16:
                continue
            for name in ("rerope", "stair", "mesa"):
                row = {"structure": structure, "dtype": _name(dtype), "method": name}
                got = {}
                for kind in ("reference", "fused", "dense"):
                    on_cpu, executor = kind == "reference", "fused" if kind == "fused" else "dense"
                    model = structures.build(structure).to("cpu" if on_cpu else size.device)
                    model = model if on_cpu else model.to(dtype)
                    ids, mask = (part.to(model.device) for part in structures.padded())
                    method = cases.method(name)
                    if unfit(model.config, type(method)):
                        break
                    with (
                        torch.no_grad(),
                        mesa.applied(model, method, executor=executor, prompt_length=structures.LENGTH),
                    ):
                        got[kind] = structures.run(model, ids, mask).double().cpu()
                else:
                    whole, largest = got["reference"], got["reference"].abs().max()
                    exact = dtype == torch.float32
                    errors = {
                        kind: float(
                            ((got[kind] - whole).abs().max() if exact else (got[kind] - whole).abs().mean()) / largest
                        )
                        for kind in ("fused", "dense")
                    }
                    passed = errors["fused"] <= (LOGITS if exact else 1.5 * errors["dense"] + 1e-3)
                    yield {**row, **errors, "passed": passed}


def training_step(size: Size) -> Iterator[Row]:
    """One step of AdamW under each method (dense): its loss and gradient against the CPU's, and the loss after it."""
    ids = torch.randint(2, 97, (2, 61), generator=torch.Generator().manual_seed(0))
    for name in size.methods:
        losses, gradients = {}, {}
        for device in dict.fromkeys(("cpu", size.device)):
            model, given = tiny.model().to(device), ids.to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            with mesa.applied(model, cases.method(name), executor="dense"):
                loss = model(given, labels=given, use_cache=False).loss
                loss.backward()
                gradients[device] = torch.cat(
                    [p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None]
                )
                optimizer.step()
                with torch.no_grad():
                    after = model(given, labels=given, use_cache=False).loss
            losses[device] = loss.item(), after.item()
        (before, after), reference = losses[size.device], gradients["cpu"]
        error = float((gradients[size.device] - reference).norm() / reference.norm())
        passed = error <= 1e-2 and after < before and abs(before - losses["cpu"][0]) <= LOGITS
        yield {"method": name, "loss": before, "after": after, "gradient's error": error, "passed": passed}


def layers_of_llama(size: Size) -> Iterator[Row]:
    """Time and memory of layers of Llama-3-8B in bfloat16 under each method, beside stock attention's, in turn.

    Four layers on a prompt, 16 on a token after it: over stock's, and what benchmarks/h100.py computes for a H100
    with as many launches as are allowed. Extra: the peak over stock's, of all keys and values of a layer. Launches:
    kernels and copies a layer beyond stock's, of the prompt and of a token.
    """
    config = budgets.config_of("llama-3-8b", small=size.device == "cpu")
    config.num_hidden_layers, dtype = DECODING, torch.float32 if size.device == "cpu" else torch.bfloat16
    trained = config.max_position_embeddings
    config.max_position_embeddings = max(size.lengths)
    torch.manual_seed(0)
    with torch.device(size.device):
        model = LlamaForCausalLM._from_config(config, dtype=dtype).eval()
    for length in size.lengths:
        stock, longest = _measured(model, None, length, size), length == max(size.lengths)
        for name in size.longest if longest else size.timed:
            method = make(name, trained)
            beside = stock if longest else _measured(model, None, length, size)
            own = _measured(model, method, length, size)
            states = 2 * 2 * config.num_key_value_heads * config.head_dim * length
            row: Row = {"method": name, "tokens": length}
            for phase, new in (("prefill", length), ("token", 1)):
                row[phase] = own[phase] / min(beside[phase], stock[phase])
                expected = seconds(*pass_parts(config, method, length, new)) / seconds(
                    *stock_parts(config, length, new)
                )
                row[f"{phase} computed"] = expected
                row[f"{phase} launches"] = (own[f"{phase} launches"] - stock[f"{phase} launches"]) / LAYERS
            row |= {"extra": (own["peak"] - stock["peak"]) / states}
            row |= {"stock prefill (ms)": 1000 * stock["prefill"], "stock token (ms)": 1000 * stock["token"]}
            yield row


def _measured(model: Any, method: Any, length: int, size: Size) -> dict[str, float]:
    """Least seconds of a prompt and the median of tokens after it, peak bytes and launches, once all is compiled."""
    ids, result = torch.randint(2, 97, (1, length + 1), device=size.device), dict[str, float]()
    repeats = 1 if length == max(size.lengths) else size.repeats
    with torch.no_grad(), mesa.applied(model, method) if method else nullcontext():
        model.config.num_hidden_layers, prompts = LAYERS, list[float]()
        for turn in range(repeats + 2):
            cache, base = DynamicCache(), attention._reset_peak(size.device)
            counted = turn == repeats + 1 and size.device != "cpu"
            with _profiled(counted) as prompt:
                begin = now(size.device)
                model(ids[:, :-1], **with_cache(model, cache), logits_to_keep=1)
                prompts.append(now(size.device) - begin)
            result["peak"] = attention._peak_bytes(size.device) - base
            model(ids[:, -1:], **with_cache(model, cache))
            with _profiled(counted) as token:
                model(ids[:, -1:], **with_cache(model, cache))
            for phase, profile in (("prefill", prompt), ("token", token)):
                result[f"{phase} launches"] = len(_on_device(profile)) if profile else 0
        model.config.num_hidden_layers, cache, tokens = DECODING, DynamicCache(), list[float]()
        model(ids[:, :-1], **with_cache(model, cache), logits_to_keep=1)
        for _ in range(TOKENS + 2):
            begin = now(size.device)
            model(ids[:, -1:], **with_cache(model, cache))
            tokens.append(now(size.device) - begin)
    return result | {"prefill": min(prompts[1:-1]), "token": float(np.median(tokens[2:]))}


def _profiled(counted: bool) -> Any:
    """What notes launches, where they are counted."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) if counted else nullcontext()


def _on_device(profile: Any) -> list[str]:
    """The names of the kernels and copies that ran on the device."""
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


STEPS: dict[str, Callable[[Size], Iterator[Row]]] = {
    "Kernels": attention_kernels,
    "Goldens": goldens,
    "Methods": methods,
    "Structures": structures_of_attention,
    "A training step": training_step,
    "Layers of Llama-3-8B": layers_of_llama,
}
ALONE = "Layers of Llama-3-8B"
"""The step beside which nothing runs."""


def pieces(title: str, size: Size) -> list[Size]:
    """A step's parts, for processes of their own."""
    if title == "Kernels":
        return [replace(size, dims=(dim,), dtypes=(dtype,)) for dim in size.dims for dtype in size.dtypes]
    if title == "Goldens":
        return [replace(size, goldens=(name,)) for name in size.goldens]
    if title == "Structures":
        return [replace(size, structures=(name,)) for name in size.structures]
    return [replace(size, methods=(name,)) for name in size.methods]


def run(title: str, size: Size) -> tuple[list[Row], str]:
    """What a step measured, and the error that ended it, if any did: later steps still run."""
    step, rows = STEPS[title], list[Row]()
    try:
        for row in step(size):
            rows.append(row)
            print(step.__name__, row, flush=True)
    except Exception:
        return rows, traceback.format_exc(limit=-4)
    return rows, ""


def run_all(titles: Sequence[str], size: Size, seconds: float | None = None) -> dict[str, tuple[list[Row], str]]:
    """The results of some steps, those that are not timed in processes of their own; what is over time is an error."""
    if size.processes == 1 or list(titles) == [ALONE]:
        return {title: run(title, size) for title in titles}
    results: dict[str, tuple[list[Row], str]] = {title: ([], "") for title in titles}
    with ProcessPoolExecutor(size.processes, get_context("spawn")) as pool:
        parts = [(title, part) for title in titles for part in pieces(title, size)]
        futures = {pool.submit(run, title, part): title for title, part in parts}
        try:
            for future in as_completed(futures, seconds):
                rows, error = future.result()
                results[futures[future]] = results[futures[future]][0] + rows, results[futures[future]][1] + error
        except TimeoutError:
            for future, title in futures.items():
                if not future.done():
                    results[title] = results[title][0], results[title][1] + "a part was not done in time\n"
            for process in list(pool._processes.values()):
                process.kill()
    return results


def write(out: Path, size: Size, results: dict[str, tuple[list[Row], str]]) -> None:
    """Writes the results and the page."""
    out.mkdir(parents=True, exist_ok=True)
    stored = {title: {"rows": rows, "error": error} for title, (rows, error) in results.items()}
    (out / "gpu.json").write_text(json.dumps(stored, indent=1) + "\n")
    (out / "gpu.md").write_text(page(size, results))
    print(f"wrote {out / 'gpu.md'}")


def page(size: Size, results: dict[str, tuple[list[Row], str]]) -> str:
    """The results in Markdown."""
    parts = [f"# Mesa Lens on {_device(size.device)}", f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}."]
    if size.device == "cpu":
        parts.append("**A dry run on the CPU: it says nothing about a GPU.**")
    for title, (rows, error) in results.items():
        failures = sum(row.get("passed") is False for row in rows) + bool(error)
        judged = any("passed" in row for row in rows) or failures
        parts.append(f"## {title}" + (f": {f'{failures} failed' if failures else 'passed'}" if judged else ""))
        parts.append(" ".join((STEPS[title].__doc__ or "").split()))
        if rows:
            names = list(rows[0])
            lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts += [f"```\n{error}```"] if error else []
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device(device: str) -> str:
    if device == "cpu":
        return "a CPU"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (compute capability {major}.{minor}, CUDA {torch.version.cuda})"


def main(arguments: list[str] | None = None) -> int:
    """Runs every step and writes the page; 0: all passed, 1: something failed, 2: there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at small sizes")
    parser.add_argument("--steps", default=",".join(STEPS), help="by comma")
    parser.add_argument("--seconds", type=float, help="the most for all steps that are not timed")
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        reason = f"torch {torch.__version__} sees no CUDA device; --dry-run tries the steps on the CPU"
        print(f"gpu.py: {reason}", file=sys.stderr)
        return 2
    size = DRY if options.dry_run else FULL
    titles = options.steps.split(",")
    results = run_all([title for title in titles if title != ALONE], size, options.seconds)
    write(options.out, size, results)
    if ALONE in titles:
        results |= run_all([ALONE], size)
        write(options.out, size, results)
    failed = any(error or any(row.get("passed") is False for row in rows) for rows, error in results.values())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
