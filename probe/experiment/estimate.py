"""What a run takes: passes, tokens and memory from its tasks; time at the speed of a few passes of the model itself."""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from mesa.device import now
from mesa.engine.plug import applied
from mesa.errors import Refused
from mesa.methods import Method, Origin
from mesa.outside import with_last_logits
from mesa.plan import Plan
from probe.experiment.model_spec import ModelSpec
from probe.experiment.progress import format_seconds
from probe.experiment.run import Experiment
from probe.experiment.task import Task

Work = Sequence[tuple[Task, Method | None]]
"""Tasks with their methods; None: no pass."""
Passes = Mapping[tuple[Method, int], float]
"""Number of passes by method and length in tokens."""
Estimate = tuple[str, Passes]
"""What a run takes in addition to time, in words, and the passes that are left."""
HALF_HOUR = 1800.0  # seconds: what the command takes that is offered in place of a much longer one
_SHORTEST = 32  # tokens
_TRIAL_S = 15.0  # of all timed passes, at most about


@dataclass(frozen=True)
class Speed:
    """The measured speed of a model: seconds of a pass, of a token, and of a query-key pair.

    longest: tokens of the longest pass that was timed; the time of longer ones follows from their tokens and pairs.
    """

    each: float
    token: float
    pair: float
    longest: int

    def seconds(self, tokens: float, length: int, method: Method | None = None) -> float:
        """Seconds of passes over `length` tokens that read `tokens` tokens in all; method: default the stock model.

        A method counts by the pairs that its plan computes scores of; what else it does is not counted.
        """
        seen = length * (length + 1) / 2 if method is None else pairs(method.plan(length))
        return tokens / length * (self.each + self.token * length + self.pair * seen)


def measure_speed(spec: ModelSpec, longest: int, executor: str = "fused") -> Speed:
    """Loads the model and times Origin's passes, at most `longest` tokens long, for at most about 15 s.

    Lengths double while there is time, so that what grows with the tokens and with their pairs separate. Layers with
    windows, experts or without attention count as they are. Raises what loading raises.
    """
    return speed_of(spec.loaded().model, longest, executor)


def speed_of(model: Any, longest: int, executor: str = "fused") -> Speed:
    """As `measure_speed`, of a loaded model."""
    length, times, ends = min(_SHORTEST, longest), dict[int, float](), time.perf_counter() + _TRIAL_S
    with applied(model, Origin(trained_length=longest), executor=executor), torch.inference_mode():
        _timed(model, length)  # the first pass is slower
        while True:
            times[length] = min(_timed(model, length) for _ in range(1 if max(times.values(), default=0) > 1 else 2))
            if length == longest or time.perf_counter() + 3 * times[length] > ends:  # twice as long: 2 to 4 times
                break
            length = min(2 * length, longest)
    lengths, seconds = (np.array([*values], float) for values in (times, times.values()))
    terms = np.stack([np.ones_like(lengths), lengths, lengths * (lengths + 1) / 2], axis=1)
    (each, token, pair), _ = nnls(terms / seconds[:, None], np.ones_like(seconds))
    return Speed(float(each), float(token), float(pair), length)


def _timed(model: Any, length: int) -> float:
    """Seconds of a pass, with the logits of its last quarter, of 1024 tokens at most."""
    ids = torch.arange(length, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    before = now(model.device)
    model(ids, use_cache=False, **with_last_logits(model, min(-(-length // 4), 1024)))
    return now(model.device) - before


def pairs(plan: Plan) -> float:
    """Query-key pairs whose scores are computed; where a pattern chooses between regions, those of each."""
    total = 0.0
    for region in plan.regions:
        queries = np.arange(region.queries[0], min(region.queries[1], plan.length))
        first = region.keys[0] if region.farthest is None else np.maximum(region.keys[0], queries - region.farthest)
        stop = np.minimum(min(region.keys[1], plan.length), queries - region.nearest + 1)
        total += float(np.maximum(stop - first, 0).sum())
    return total


def work_of(experiment: Experiment, tasks: Sequence[Task]) -> Work:
    """Tasks of an experiment, with the methods that they are under."""
    return [(task, experiment.method(task.key)) for task in tasks]


def estimated(experiment_class: type[Experiment], plan: Any, out: Path, *_: Any, overwrite: bool) -> Estimate:
    """What an experiment of this class takes: all of the plan, and what the folder `out` lacks of it.

    Raises what the experiment would, for the folder of another run.
    """
    experiment: Any = experiment_class
    tried = experiment(plan)
    tried.check(out, overwrite=overwrite)
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
    """What all tasks take in addition to time, and which part of it is done or not needed in the folder `out`."""
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


def seconds_of(passes: Passes, speed: Speed) -> float:
    """Seconds of all passes."""
    return sum(speed.seconds(count * length, length, method) for (method, length), count in passes.items())


def time_text(passes: Passes, spec: ModelSpec, executor: str) -> tuple[str, Speed | None]:
    """The time of all passes, as a line of text, and the speed; or why there is none, where it cannot be measured."""
    if not passes:
        return "time: none, no pass is left", None
    longest = max(length for _, length in passes)
    try:
        speed = measure_speed(spec, longest, executor)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return f"time: not measured ({' '.join(str(error).split()) or type(error).__name__})", None
    threads = torch.get_num_threads()
    rate = speed.longest / speed.seconds(speed.longest, speed.longest)
    return (
        f"time: about {format_seconds(seconds_of(passes, speed))} for the passes, if this machine stays as busy as it "
        f"is now ({rate:,.0f} tokens/s measured, in passes of up to {speed.longest} tokens, with {threads} "
        f"thread{'s' * (threads > 1)})"
    ), speed


def shorter_request(planned: Any, passes: Callable[[Any], Passes], speed: Speed, seconds: float | None = None) -> Any:
    """The plan's request with fewer prompts, then lengths, then methods: the first that takes at most so long.

    None: none does. passes: those of a request. seconds: default half an hour.
    """
    trained = getattr(planned, "trained_length", None) or planned.setting.trained_length
    lengths = getattr(planned, "lengths", None) or planned.setting.lengths
    for request in _shorter(planned.request, lengths, trained):
        try:
            with redirect_stderr(io.StringIO()):  # what is left out of it was said before
                if seconds_of(passes(request), speed) <= (seconds or HALF_HOUR):
                    return request
        except Refused:  # too few or too short
            continue
    return None


def _shorter(request: Any, lengths: Sequence[int], trained: int) -> Iterator[Any]:
    """Fewer prompts, at least 2; no text prompts stored; lengths from M on, without the longest; fewer methods."""
    samples, less = request.samples, dict[str, Any]()
    while samples > 2:
        samples = less["samples"] = max(2, samples // 2)
        yield replace(request, **less)
    if getattr(request, "texts", 0):
        less["texts"] = 0
        yield replace(request, **less)
    kept = [length for length in sorted(lengths) if length >= trained] if request.samples else []
    for count in range(len(kept), 1, -1):
        chosen = less["lengths"] = tuple(kept[:count])
        if hasattr(request, "length"):  # of the hidden states
            less["length"] = min(request.length or max(lengths), max(chosen))
        yield replace(request, **less)
    names = (request.methods or request.default_methods).split(",")
    for count in (2, 1):
        if count < len(names):
            yield replace(request, **less, methods=",".join(names[:count]))
