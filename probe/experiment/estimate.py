"""What a run takes, by its tasks; and how long: at the speed of a short trial of one layer, or computed for a GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mesa.device import now
from mesa.engine.attention import EXECUTORS
from mesa.engine.cpu import calls
from mesa.engine.rope import RotaryLayout, Rotation
from mesa.engine.schedule import Schedule
from mesa.methods import Method
from mesa.models import DTYPES, chosen_dtype
from mesa.plan import BASE
from mesa.support import is_rotary
from probe.capture.memory import check_memory
from probe.experiment import cost
from probe.experiment.lock import check_run_folder
from probe.experiment.progress import format_seconds
from probe.experiment.run import Experiment
from probe.experiment.task import Task

Work = Sequence[tuple[Task, Method | None]]
"""Tasks with their methods; None: no pass."""
Passes = Mapping[tuple[Method, int], float]
"""Number of passes by method and length in tokens."""
Estimate = tuple[str, Passes]
"""What a run takes beside time, in words, and the passes that are left."""
_SHORTEST = 64  # tokens
_USUAL = 0.4  # of a GPU's peak rates
_SECONDS, _LEAST_ROUNDS, _ROUNDS = 1.5, 4, 8  # of timed passes, one a method and round
_UNCOUNTED = 1.3  # decoded tokens and what surrounds passes, at most, where a model is small


def work_of(experiment: Experiment, tasks: Sequence[Task]) -> Work:
    """Tasks of an experiment, with the methods that they are under."""
    return [(task, experiment.method(task.key)) for task in tasks]


def estimated(experiment_class: type[Experiment], plan: Any, out: Path, *_: Any, overwrite: bool) -> Estimate:
    """What an experiment of this class takes: all of the plan, and what the folder `out` lacks of it.

    Raises what the experiment would, for the folder of another run.
    """
    experiment: Any = experiment_class
    tried = experiment(plan)
    check_run_folder(out)
    tried.check_of_run(out, overwrite=overwrite)
    tried.check_files(out, overwrite=overwrite)
    rows = {} if overwrite else tried.open_journal(out).rows
    work, left = (work_of(tried, tried.all_tasks(done)) for done in ({}, rows))
    return work_text(work, left, out), passes_of(left)


def passes_of(work: Work) -> dict[tuple[Method, int], float]:
    """Passes by method and length; a pass over some of the layers is a part of one."""
    passes: dict[tuple[Method, int], float] = defaultdict(float)
    for task, method in work:
        if method is not None and task.length:
            passes[method, task.length] += task.weight / task.length
    return dict(passes)


def work_text(work: Work, left: Work, out: Path | None = None) -> str:
    """What all tasks take beside time, and which part of it is done or not needed in the folder `out`."""
    whole, now = sum(passes_of(work).values()), {task.key for task, _ in left}
    tokens, longest = sum(task.weight for task, _ in work), max(task.length for task, _ in work)
    needed = max(task.memory_bytes for task, _ in work)
    text = (
        f"{len(work)} tasks: {whole:,.0f} passes, {tokens:,} tokens, at most {longest} in one\n"
        f"memory beside the weights: about {needed / 2**20:,.0f} MiB"
    )
    done = sum(passes_of([(task, method) for task, method in work if task.key not in now]).values())
    every = done + sum(passes_of(left).values())
    if not done:
        return text
    return f"{text}\ndone in {out}, or not needed: {done:,.0f} of {every:,.0f} passes; the time is of those left"


def time_text(config: Any, passes: Passes, load: Mapping[str, object], executor: str) -> str:
    """The time of all passes, as a line of text; why there is none, where it cannot be measured.

    From the config alone: no model is loaded, nor its class. On a GPU it is computed, elsewhere a layer of these shapes
    is tried.
    """
    if not passes:
        return "time: none, no pass is left"
    if load.get("device_map") or torch.device(str(load.get("device") or "cpu")).type == "cuda":
        least = least_seconds(config, load, passes)
        return (
            f"time: on an H100 at least {format_seconds(least)} for the passes, at {_USUAL:.0%} of its peak rates "
            f"{format_seconds(least / _USUAL)} (computed from shapes and plans, never measured)"
        )
    try:
        ends = seconds(config, load, executor, passes)
    except (ValueError, OSError, RuntimeError, MemoryError, TypeError, AttributeError, KeyError, IndexError) as error:
        return f"time: not estimated ({' '.join(str(error).split()) or type(error).__name__})"
    threads = torch.get_num_threads()
    return (
        f"time: about {' to '.join(dict.fromkeys(map(format_seconds, ends)))} for the passes, if this machine stays as "
        f"busy as it is now ({threads} thread{'s' * (threads > 1)}; range of a short trial, repeated)"
    )


def least_seconds(config: Any, load: Mapping[str, object], passes: Passes) -> float:
    """The least that the passes take on an H100, computed (`probe.experiment.cost`)."""
    dtype = chosen_dtype(config, load)
    size, slower = DTYPES[dtype].itemsize, cost.SLOWER.get(dtype, 1)
    return sum(
        count * cost.seconds(*cost.pass_parts(config, method, length, length, size), slower=slower)
        for (method, length), count in passes.items()
    )


def seconds(config: Any, load: Mapping[str, object], executor: str, passes: Passes) -> tuple[float, float]:
    """The least and the most that the passes take, over the rounds of a trial with a pass of every method."""
    counts: dict[Method, dict[int, float]] = {}
    for (method, length), count in passes.items():
        lengths = counts.setdefault(replace(method, layers=None, heads=None), {})
        lengths[length] = lengths.get(length, 0.0) + count
    layer, depth = TrialLayer(config, load), config.num_hidden_layers
    logits = config.vocab_size * config.hidden_size / layer.size
    with torch.inference_mode():
        long = _trial_length(layer, executor, counts)
        trials = sorted({min(_SHORTEST, long), long})
        short_times = {method: _timed(layer, method, executor, trials[0]) for method in counts}
        totals, ends = list[float](), time.perf_counter() + _SECONDS
        while len(totals) < _LEAST_ROUNDS or (len(totals) < _ROUNDS and time.perf_counter() < ends):
            total = 0.0
            for method, lengths in counts.items():
                times = [short_times[method], _timed(layer, method, executor, long)][-len(trials) :]
                pairs = [_scored_pairs(method, length, executor) for length in trials]
                for length, count in lengths.items():
                    attention = _scaled(
                        _scored_pairs(method, length, executor), pairs, [attended for attended, _ in times]
                    )
                    rest = _scaled(length, trials, [other for _, other in times])
                    scored = min(length, method.trained_length) / long * times[-1][1] * logits
                    total += count * (depth * (attention + rest) + scored)
            totals.append(total)
    low, *_, high, _ = sorted(totals)  # the slowest may have been a stall
    return low, _UNCOUNTED * high


def _scaled(amount: float, amounts: Sequence[float], times: Sequence[float]) -> float:
    """The time of an amount of work: interpolated, and in proportion beyond the largest that was timed."""
    return float(np.interp(amount, amounts, times)) * max(1.0, amount / amounts[-1])


def _scored_pairs(method: Method, length: int, executor: str) -> int:
    """Query-key pairs whose scores a pass computes, with the masked ones in the blocks of a call."""
    plan = method.plan(length)
    if executor == "dense":
        return len(plan.regions) * length**2
    pairs = 0
    for call in (call for region in plan.regions for call in calls(region, 0, length)):
        queries, keys = len(range(*call.queries)), len(range(*call.keys))
        pairs += queries * keys - (keys * (keys - 1) // 2 if call.causal else 0)
    return max(1, pairs)


def _trial_length(layer: TrialLayer, executor: str, counts: Mapping[Method, Mapping[int, float]]) -> int:
    """The longest length, halved until `_LEAST_ROUNDS` of passes under all methods fit into `_SECONDS`."""
    method, longest = next(iter(counts)), max(max(lengths) for lengths in counts.values())
    length = min(_SHORTEST, longest)
    _timed(layer, method, executor, length)  # the first is slower
    while length < longest:
        elapsed = sum(_timed(layer, method, executor, length)) * len(counts) * _LEAST_ROUNDS
        if 3 * elapsed > _SECONDS:  # twice the length takes 2 to 4 times as long
            break
        length = min(2 * length, longest)
    return length


class TrialLayer:
    """One layer of a config's shapes with random weights: projections, attention and a gated MLP, as Llama's."""

    def __init__(self, config: Any, load: Mapping[str, object]) -> None:
        self.heads, self.key_heads, self.dim = cost.shapes(config)
        hidden, inner = config.hidden_size, getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        self.dtype, self.device = DTYPES[chosen_dtype(config, load)], torch.device(str(load.get("device") or "cpu"))
        sizes = {
            "query": (self.heads * self.dim, hidden),
            "key": (self.key_heads * self.dim, hidden),
            "value": (self.key_heads * self.dim, hidden),
            "output": (hidden, self.heads * self.dim),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        self.hidden, self.size = hidden, sum(rows * columns for rows, columns in sizes.values())
        check_memory(2 * self.size * self.dtype.itemsize, _SHORTEST, self.device)
        self.weights = {name: self._random(*size) / size[1] ** 0.5 for name, size in sizes.items()}
        pairs = self.dim // 2
        self.turn = Rotation(RotaryLayout(0, pairs), BASE ** -(torch.arange(pairs, device=self.device) / pairs))
        self.slopes = None if is_rotary(config.model_type) else torch.full((self.heads,), 0.01, device=self.device)

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=self.dtype, device=self.device)

    def timed(self, method: Method, executor: str, length: int) -> tuple[float, float]:
        """Seconds of one pass under a method: in attention, and in all else."""
        states, weights = self._random(1, length, self.hidden), self.weights
        plan, linear, norm = method.plan(length), torch.nn.functional.linear, torch.nn.functional.rms_norm
        schedule = Schedule(plan, 0, method.cached_position, rotation=None if self.slopes is not None else self.turn)
        schedule.slopes = self.slopes
        places = torch.arange(length, dtype=torch.float32, device=self.device)
        begun, inside = now(self.device), 0.0
        for _ in range(2):  # as many layers share what is made once for a plan
            normed = norm(states, (self.hidden,))
            query, key, value = (
                linear(normed, weights[name]).unflatten(-1, (-1, self.dim)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            query, key = (self.turn(one, places, method.plan(1)) for one in (query, key))
            before = now(self.device)
            attended = EXECUTORS[executor](schedule, query, key, value, self.dim**-0.5)[0]
            attended = attended.transpose(1, 2).contiguous()
            inside += now(self.device) - before
            states = states + linear(attended.flatten(2), weights["output"])
            normed = norm(states, (self.hidden,))
            gate = torch.nn.functional.silu(linear(normed, weights["gate"]))
            states = states + linear(gate * linear(normed, weights["up"]), weights["down"])
        return inside / 2, (now(self.device) - begun - inside) / 2


def _timed(layer: TrialLayer, method: Method, executor: str, length: int) -> tuple[float, float]:
    """Seconds of a layer in one pass under a method: in attention, and in all else."""
    return layer.timed(method, executor, length)
