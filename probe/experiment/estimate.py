"""What a run takes, by its tasks; and how long, at the speed of a short trial on the model's first layers."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from mesa.device import now
from mesa.engine.plug import Attachment
from mesa.engine.schedule import calls
from mesa.methods import Method
from mesa.models import DTYPES, chosen_dtype
from probe.capture.memory import check_memory
from probe.experiment.progress import format_seconds
from probe.experiment.run import Experiment
from probe.experiment.task import Task

Work = Sequence[tuple[Task, Method | None]]
"""Tasks with their methods; None: no pass."""
Passes = Mapping[tuple[Method, int], float]
"""Number of passes by method and length in tokens."""
_LAYERS, _VOCABULARY = 2, 64
_SHORTEST = 64  # tokens
_SECONDS, _LEAST_ROUNDS, _ROUNDS = 3.0, 4, 8  # of timed passes, one a method and round
_UNCOUNTED = 1.3  # decoded tokens and what surrounds passes, at most, where a model is small


def work_of(experiment: Experiment, tasks: Sequence[Task]) -> Work:
    """Tasks of an experiment, with the methods that they are under."""
    return [(task, experiment.method(task.key)) for task in tasks]


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


def time_text(config: Any, passes: Passes, load: Mapping[str, Any], executor: str) -> str:
    """The time of all passes, as a line of text; why there is none, where it cannot be measured.

    The trial runs the first layers with random weights: no model is loaded.
    """
    if not passes:
        return "time: none, no pass is left"
    try:
        ends = seconds(config, load, executor, passes)
    except (ValueError, OSError, RuntimeError, MemoryError, TypeError, AttributeError, KeyError, IndexError) as error:
        return f"time: not estimated ({' '.join(str(error).split()) or type(error).__name__})"
    threads = torch.get_num_threads()
    return (
        f"time: about {' to '.join(dict.fromkeys(map(format_seconds, ends)))} for the passes, if this machine stays as "
        f"busy as it is now ({threads} thread{'s' * (threads > 1)}; range of a short trial, repeated)"
    )


def seconds(config: Any, load: Mapping[str, Any], executor: str, passes: Passes) -> tuple[float, float]:
    """The least and the most that the passes take, over the rounds of a trial with a pass of every method."""
    counts: dict[Method, dict[int, float]] = {}
    for (method, length), count in passes.items():
        lengths = counts.setdefault(replace(method, layers=None, heads=None), {})
        lengths[length] = lengths.get(length, 0.0) + count
    model = _trial_model(config, load)
    depth = config.num_hidden_layers / model.config.num_hidden_layers
    logits = config.vocab_size * config.hidden_size / sum(parameter.numel() for parameter in model.parameters())
    with torch.inference_mode():
        long = _trial_length(model, executor, counts)
        trials = sorted({min(_SHORTEST, long), long})
        short_times = {method: _timed(model, method, executor, trials[0]) for method in counts}
        totals, ends = list[float](), time.perf_counter() + _SECONDS
        while len(totals) < _LEAST_ROUNDS or (len(totals) < _ROUNDS and time.perf_counter() < ends):
            total = 0.0
            for method, lengths in counts.items():
                times = [short_times[method], _timed(model, method, executor, long)][-len(trials) :]
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


def _trial_length(model: Any, executor: str, counts: Mapping[Method, Mapping[int, float]]) -> int:
    """The longest length, halved until `_LEAST_ROUNDS` of passes under all methods fit into `_SECONDS`."""
    method, longest = next(iter(counts)), max(max(lengths) for lengths in counts.values())
    length = min(_SHORTEST, longest)
    _timed(model, method, executor, length)  # the first is slower
    while length < longest:
        elapsed = sum(_timed(model, method, executor, length)) * len(counts) * _LEAST_ROUNDS
        if 3 * elapsed > _SECONDS:  # twice the length takes 2 to 4 times as long
            break
        length = min(2 * length, longest)
    return length


def _trial_model(config: Any, load: Mapping[str, Any]) -> Any:
    """The first layers of a model of this config, with random weights and a small vocabulary."""
    shape, depth = copy.deepcopy(config), min(_LAYERS, config.num_hidden_layers)
    if getattr(shape, "layer_types", None):
        shape.layer_types = shape.layer_types[:depth]
    shape.num_hidden_layers, shape.vocab_size = depth, _VOCABULARY
    shape.pad_token_id = shape.bos_token_id = shape.eos_token_id = None
    dtype, device = DTYPES[chosen_dtype(config, load)], load.get("device") or "cpu"
    options = {"trust_remote_code": bool(load.get("trust_remote_code")), "dtype": dtype}
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(shape, **options).parameters())
    check_memory(2 * size * dtype.itemsize, _SHORTEST, device)
    return AutoModelForCausalLM.from_config(shape, **options).eval().to(device)


class _TimedAttention(Attachment):
    """Counts the seconds in attention."""

    seconds = 0.0

    def attention(self, *args: Any, **kwargs: Any) -> Any:
        """As for Attachment."""
        began = now(self.model.device)
        try:
            return super().attention(*args, **kwargs)
        finally:
            self.seconds += now(self.model.device) - began


def _timed(model: Any, method: Method, executor: str, length: int) -> tuple[float, float]:
    """Seconds of one pass under a method: in attention, and in all else."""
    ids = (torch.arange(length, device=model.device) * 7 % _VOCABULARY)[None]
    attached = _TimedAttention(model, method, executor, None)
    with attached.on():
        began = now(model.device)
        model(ids, use_cache=False, logits_to_keep=1)
        elapsed = now(model.device) - began
    return attached.seconds, elapsed - attached.seconds
