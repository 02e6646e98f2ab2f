"""What no CPU can test, on a GPU: one page of Markdown, and exit code 1 where any of it fails.

    make test-gpu                                    # writes runs/gpu/gpu.md and gpu.jsonl
    python benchmarks/gpu.py --dry-run --out FOLDER  # the same steps on the CPU, small: tries the script
    python benchmarks/gpu.py --steps Prefill,Goldens

Steps are in the order of what they are worth. First the prefill and the decoded token as a GPU really computes them, of
the attention shapes of known models, against float64; then goldens, corners, methods and structures against the CPU's,
a training step, and times next to stock. Each step is a process of its own with a limit, and appends each row to
gpu.jsonl as it comes: a run that is cut off at any second leaves a page that is true.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from mesa.engine.attention import fused, fused_jointly  # noqa: E402
from mesa.engine.gpu import kernels  # noqa: E402
from mesa.engine.rope import RotaryLayout, Rotation  # noqa: E402
from mesa.engine.schedule import JointSchedule, Member, Schedule  # noqa: E402
from mesa.engine.scores import capped  # noqa: E402
from mesa.methods import make, standard_methods  # noqa: E402
from mesa.outside import with_cache  # noqa: E402
from mesa.plan import Carry, _factors, relative_positions, rotary_base  # noqa: E402
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
    long: tuple[int, ...]
    timed: tuple[str, ...]
    longest: tuple[str, ...]
    """The methods at long lengths."""
    repeats: int
    shapes: dict[str, tuple[int, int, int, int]]
    """By model: query heads, key heads, dims of a head and M of the first step."""
    prefills: tuple[int, ...]
    """Its tokens."""
    corner_dims: tuple[int, ...]


FULL = Size(
    "cuda",
    (torch.float32, torch.float16, torch.bfloat16),
    (64, 128, 80, 12),
    tuple(test_golden.METHODS),
    (64, 200, 333),
    tuple(cases.CASES),
    tuple(structures.STRUCTURES),
    (8192, 32768),
    (131072,),
    tuple(name for name in standard_methods() if name not in ("nope", "pi", "ntk-mixed", "cope")),
    ("origin", "rerope", "dca", "stair", "mesa"),
    2,
    {"Llama-3-8B": (32, 8, 128, 8192), "Qwen3-0.6B": (16, 8, 128, 4096)},
    (8192, 32768),
    (64, 80, 96, 100, 128, 256),
)
DRY = Size(
    "cpu",
    (torch.float32,),
    (64,),
    ("rerope", "cope"),
    (64,),
    ("rerope", "mesa"),
    ("soft cap",),
    (128,),
    (256,),
    ("mesa",),
    ("mesa",),
    1,
    {"small": (4, 2, 16, 32)},
    (150,),
    (16, 20),
)
LAYERS, DECODING, TOKENS = 4, 16, 8
"""Layers of Llama-3-8B that are timed on a prompt and on a token, and how many tokens: what a pass does once counts."""


SAMPLED = 12
"""Queries of a prompt that are computed in float64, next to those where regions begin and end."""


def states_of(size: Size, shape: tuple[int, int, int], tokens: int, batch: int = 1) -> list[torch.Tensor]:
    """Random queries, keys and values (batch, head, token, dim), laid out as a model's; some pairs weigh much."""
    heads, key_heads, dim = shape
    generator = torch.Generator(size.device).manual_seed(0)
    dtype = torch.float32 if size.device == "cpu" else torch.bfloat16
    drawn = (
        torch.randn(batch, tokens, count, dim, generator=generator, device=size.device).to(dtype).transpose(1, 2)
        for count in (heads, key_heads, key_heads)
    )
    return [part * factor for part, factor in zip(drawn, (3, 1, 1), strict=True)]


def bound_to(method: Any, tokens: int, dim: int, device: str, start: int = 0, **scoring: Any) -> Schedule:
    """A method's schedule for `tokens` tokens, with Llama's rotary frequencies."""
    frequencies = 500000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    rotation = Rotation(RotaryLayout(0, dim // 2), frequencies.float().to(device), base=rotary_base(frequencies))
    return Schedule(method.plan(tokens, tokens), start, method.cached_position, rotation, **scoring)


def exact(
    bound: Schedule, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, token: int
) -> Any:
    """A token's attention (head, dim) in float64, pair by pair; key and value (key head, token, dim)."""
    plan, at, keys = bound.plan, np.array([token]), np.arange(bound.plan.length)
    relative, device = relative_positions(plan, at, keys)[0], query.device
    seen = np.flatnonzero(relative >= 0)
    shift = relative[seen] - (bound.cached(at) - bound.cached(keys))[seen]  # keys and queries are at cached positions
    assert isinstance(bound.rotation, Rotation)
    frequencies = bound.rotation.frequencies.double().cpu().numpy()
    if plan.frequency_scale is not None:
        number = np.arange(len(frequencies), dtype=float)
        frequencies = frequencies * plan.frequency_scale(number, 2 * len(frequencies), bound.rotation.base)
    index = torch.from_numpy(seen).to(device)
    turned = torch.from_numpy(np.exp(1j * shift[:, None] * frequencies)).to(device)
    rows, columns = (torch.complex(*part.double().chunk(2, -1)) for part in (query, key[:, index]))
    rows = rows.unflatten(0, (len(key), -1))
    scores = torch.einsum("kgp,ktp->kgt", rows, columns.conj() * turned).real
    scores = capped(scores * scale * torch.from_numpy(_factors(plan, at, keys)[0][seen]).to(device), bound.softcap)
    if bound.sinks is not None:
        scores = torch.cat([scores, bound.sinks.double().view(len(key), -1, 1)], -1)
    weights = scores.softmax(-1)[..., : len(seen)]
    return torch.einsum("kgt,ktd->kgd", weights, value[:, index].double()).flatten(0, 1)


def sampled(bound: Schedule, output: torch.Tensor, states: Sequence[torch.Tensor], scale: float, row: int = 0,
            first: int = 0, heads: Sequence[int] | None = None) -> float:  # fmt: skip
    """The largest error of sampled queries of a row, whose token 0 is at `first`, as a share of what may be."""
    query, key, value = (part[row] for part in states)
    edges = {edge + step for region in bound.plan.regions for edge in region.queries for step in (-1, 0)}
    length, start = bound.plan.length, bound.start
    edges = sorted(edge for edge in edges if start <= edge < length)
    tokens = {*np.linspace(start, length - 1, SAMPLED).astype(int).tolist(), *edges[:: max(1, len(edges) // SAMPLED)]}
    worst, eps = 0.0, max(torch.finfo(output.dtype).eps, 2.0**-16)  # angles are in float32
    group, chosen = len(query) // len(key), slice(None) if heads is None else list(heads)
    for token in sorted(tokens):
        asking = query[:, token + first]
        expected = exact(bound, asking, key[:, first : first + length], value[:, first : first + length], scale, token)
        error = (output[row, :, token - start].double() - expected)[chosen].abs().max()
        worst = max(worst, float(error) / (4 * eps * max(1.0, float(expected.abs().max()))))
    assert group * len(key) == len(query)
    return worst


@torch.no_grad()
def prefill(size: Size) -> Iterator[Row]:
    """Each method's prompt, in as many blocks as a GPU takes, and its decoded token: sampled queries against float64.

    Of random states of one layer. Error: the largest, as a share of four units in the last place.
    """
    for tokens in size.prefills:
        for name, (heads, key_heads, dim, trained) in size.shapes.items():
            states, scale = states_of(size, (heads, key_heads, dim), tokens), dim**-0.5
            for method in standard_methods():
                row: Row = {"model": name, "tokens": tokens, "method": method}
                for phase, start in (("prompt", 0), ("token", tokens - 1)):
                    bound = bound_to(make(method, trained), tokens, dim, size.device, start)
                    output, _ = fused(bound, states[0][:, :, start:], *states[1:], scale)
                    row[phase] = sampled(bound, output, states, scale)
                yield {**row, "passed": row["prompt"] <= 1 and row["token"] <= 1}


@torch.no_grad()
def corners(size: Size) -> Iterator[Row]:
    """Head dims, soft caps, sinks, rows of different padding and a method in some heads: sampled queries, float64."""
    tokens, trained, (heads, key_heads) = max(size.prefills) // 8, max(size.prefills) // 32, (8, 4)
    for dim in size.corner_dims:
        for name in ("rerope", "dynamic-ntk", "stair", "mesa"):
            method, states = make(name, trained), states_of(size, (heads, key_heads, dim), tokens, 3)
            for scoring in ({}, {"softcap": 20.0}, {"sinks": torch.linspace(-1, 2, heads, device=size.device)}):
                bound = bound_to(method, tokens, dim, size.device, **scoring)
                error = sampled(bound, fused(bound, *states, dim**-0.5)[0], states, dim**-0.5, 1)
                case = next(iter(scoring), "plain")
                yield {"head dim": dim, "method": name, "case": case, "error": error, "passed": error <= 1}
            for case, chosen in (("padded rows", None), ("padded rows, some heads", (0, 3, 4))):
                for start in (0, tokens - 1):
                    error = _joint_error(size, method, states, tokens, start, chosen)
                    if error is not None:
                        where = f"{case}, {'a token' if start else 'a prompt'}"
                        yield {"head dim": dim, "method": name, "case": where, "error": error, "passed": error <= 1}


def _joint_error(
    size: Size, method: Any, states: list[torch.Tensor], tokens: int, start: int, chosen: tuple[int, ...] | None
) -> float | None:
    """The largest error of rows with different padding; None where they are not done at once, as on a CPU."""
    dim, heads, pads = states[0].shape[3], states[0].shape[1], (0, tokens // 7, tokens // 3)
    others = None if chosen is None else tuple({*range(heads)}.difference(chosen))
    split = [(method, chosen), *([(make("origin", method.trained_length), others)] if others else [])]
    members = list[Member]()
    for row, pad in enumerate(pads):
        for own, mine in split:
            bound = bound_to(own, tokens - pad, dim, size.device, max(0, start - pad))
            members.append(Member(replace(bound, cached=method.cached_position), (row,), pad, mine))
    joint = JointSchedule.of(members, len(pads), start, 0, tokens)
    output = fused_jointly(joint, states[0][:, :, start:], states[1], states[2], dim**-0.5)
    if output is None:
        return None
    return max(
        sampled(member.schedule, output[:, :, max(0, member.first - start) :], states, dim**-0.5, member.rows[0],
                member.first, member.heads)
        for member in members if member.rows
    )  # fmt: skip


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
    config.max_position_embeddings = max(size.long)
    torch.manual_seed(0)
    with torch.device(size.device):
        model = LlamaForCausalLM._from_config(config, dtype=dtype).eval()
    for length in size.lengths:
        stock = _measured(model, None, length, size)
        for name in size.timed:
            method = make(name, trained)
            again = stock if size.repeats == 1 else _measured(model, None, length, size)
            own = _measured(model, method, length, size)
            states = 2 * 2 * config.num_key_value_heads * config.head_dim * length
            row: Row = {"method": name, "tokens": length}
            for phase, new in (("prefill", length), ("token", 1)):
                row[phase] = own[phase] / min(again[phase], stock[phase])
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
    with torch.no_grad(), mesa.applied(model, method) if method else nullcontext():
        model.config.num_hidden_layers, prompts = LAYERS, list[float]()
        for turn in range(size.repeats + 2):
            cache, base = DynamicCache(), attention._reset_peak(size.device)
            counted = turn == size.repeats + 1 and size.device != "cpu"
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


def long_layers(size: Size) -> Iterator[Row]:
    """As "Layers of Llama-3-8B", at long lengths, of fewer methods, each measured once."""
    yield from layers_of_llama(replace(size, lengths=size.long, timed=size.longest, repeats=1))


class Step(NamedTuple):
    """What a process measures, and for how long at most; steps of one group run next to each other."""

    measure: Callable[[Size], Iterator[Row]]
    seconds: int
    group: int


STEPS: dict[str, Step] = {
    "Prefill": Step(prefill, 90, 0),
    "Goldens": Step(goldens, 170, 1),
    "Corners": Step(corners, 170, 1),
    "Kernels": Step(attention_kernels, 170, 1),
    "Methods": Step(methods, 170, 1),
    "Structures": Step(structures_of_attention, 170, 1),
    "A training step": Step(training_step, 170, 1),
    "Layers of Llama-3-8B": Step(layers_of_llama, 170, 2),
    "Long prompts": Step(long_layers, 170, 3),
}
"""In the order in which they run. What is timed has the device for itself."""


def measure(title: str, size: Size, out: Path) -> None:
    """Runs a step in this process, and appends each row to gpu.jsonl as it comes; an error ends it as a row."""
    with (out / "gpu.jsonl").open("a", encoding="utf-8") as lines:

        def append(row: Row) -> None:
            lines.write(json.dumps({"step": title, **row}) + "\n")
            lines.flush()

        try:
            for row in STEPS[title].measure(size):
                append(row)
            append({"finished": True})
        except Exception:
            append({"failure": traceback.format_exc(limit=-4)})


def run_all(titles: Sequence[str], size: Size, out: Path, dry: bool) -> None:
    """Runs steps group by group, each in a process with its limit, and writes the page after each group."""
    for group in sorted({STEPS[title].group for title in titles}):
        started, processes = time.monotonic(), dict[str, subprocess.Popen[bytes]]()
        for title in titles:
            if STEPS[title].group == group:
                command = [
                    sys.executable,
                    __file__,
                    "--out",
                    str(out),
                    "--step",
                    title,
                    *(["--dry-run"] if dry else []),
                ]
                processes[title] = subprocess.Popen(command)
        for title, process in processes.items():
            limit = STEPS[title].seconds * (10 if dry else 1)  # a CPU that others use as well
            try:
                code = process.wait(max(0.0, started + limit - time.monotonic()))
                late = "" if code == 0 else f"ended with exit code {code}"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late = f"not done after {limit} s"
            if late:
                with (out / "gpu.jsonl").open("a", encoding="utf-8") as lines:
                    lines.write("\n" + json.dumps({"step": title, "failure": late + "\n"}) + "\n")
        (out / "gpu.md").write_text(page(size, results(out)), encoding="utf-8")
    print(f"wrote {out / 'gpu.md'}")


def results(out: Path) -> dict[str, tuple[list[Row], str]]:
    """By step: its rows, and what ended it early, if anything did; a last line that was cut off is left out."""
    by_step: dict[str, tuple[list[Row], str]] = {}
    for line in (out / "gpu.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows, error = by_step.setdefault(row.pop("step"), ([], "not finished\n"))
        if "finished" in row:
            error = ""
        elif "failure" in row:
            error = row["failure"]
        else:
            rows.append(row)
        title = next(title for title, held in by_step.items() if held[0] is rows)
        by_step[title] = rows, error
    return by_step


def page(size: Size, results: dict[str, tuple[list[Row], str]]) -> str:
    """The results in Markdown."""
    parts = [f"# Mesa Lens on {_device(size.device)}", f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}."]
    if size.device == "cpu":
        parts.append("**A dry run on the CPU: it says nothing about a GPU.**")
    for title, (rows, error) in results.items():
        failures = sum(row.get("passed") is False for row in rows) + bool(error)
        judged = any("passed" in row for row in rows) or failures
        parts.append(f"## {title}" + (f": {f'{failures} failed' if failures else 'passed'}" if judged else ""))
        parts.append(" ".join((STEPS[title].measure.__doc__ or "").split()))
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
    parser.add_argument("--step", choices=STEPS, help="run one step in this process, and write its rows only")
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        reason = f"torch {torch.__version__} sees no CUDA device; --dry-run tries the steps on the CPU"
        print(f"gpu.py: {reason}", file=sys.stderr)
        return 2
    size = DRY if options.dry_run else FULL
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step:
        measure(options.step, size, options.out)
        return 0
    (options.out / "gpu.jsonl").unlink(missing_ok=True)
    run_all(options.steps.split(","), size, options.out, options.dry_run)
    every = results(options.out).values()
    return int(any(error or any(row.get("passed") is False for row in rows) for rows, error in every))


if __name__ == "__main__":
    sys.exit(main())
