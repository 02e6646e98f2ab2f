"""What a run takes: passes, tokens and memory from its tasks; time at the speed of a few passes of the model itself."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from mesa.device import now
from mesa.engine import structure
from mesa.engine.plug import applied
from mesa.methods import Method, Origin
from mesa.outside import with_last_logits
from mesa.plan import Plan
from mesa.support import is_rotary
from probe.capture.memory import pass_flops
from probe.experiment.pool import Task, format_seconds
from probe.experiment.run import Experiment, ModelSpec

Work = Sequence[tuple[Task, Method | None]]
"""Tasks with their methods; None: no pass."""
Passes = Mapping[tuple[Method, int], float]
"""Number of passes by method and length in tokens."""
Estimate = tuple[str, Passes]
"""What a run takes in addition to time, in words, and the passes that are left."""
HALF_HOUR = 1800.0  # seconds: what the command takes that is offered in place of a much longer one
_SHORTEST = 32  # tokens
_ENOUGH = 256  # tokens
_TRIAL_S = 15.0  # of all timed passes, at most about


@dataclass(frozen=True)
class Speed:
    """The measured speed of a model: seconds of a pass, of a token, and of a query-key pair.

    longest: tokens of the longest pass that was timed; the time of longer ones follows from their tokens and pairs.
    windows: of each layer with attention, the tokens that it sees, None for all; default: all layers see all.
    """

    each: float
    token: float
    pair: float
    longest: int
    windows: tuple[int | None, ...] = (None,)

    def seconds(self, tokens: float, length: int, method: Method | None = None) -> float:
        """Seconds of passes over `length` tokens that read `tokens` tokens in all; method: default the stock model.

        A method counts by the pairs that its plan computes scores of; what else it does is not counted.
        """
        plan = None if method is None else method.plan(length)
        return tokens / length * (self.each + self.token * length + self.pair * _seen(length, self.windows, plan))


def _seen(length: int, windows: Sequence[int | None], plan: Plan | None = None) -> float:
    """Query-key pairs of a layer, on average over layers that see `windows` tokens (None: all); plan: of those."""
    seen = {size: min(size or length, length) for size in windows}
    of = {size: near * (length - near) + near * (near + 1) / 2 for size, near in seen.items()}
    if plan is not None:
        of[None] = pairs(plan)
    return sum(of[size] for size in windows) / len(windows)


def measure_speed(spec: ModelSpec, longest: int, executor: str = "fused") -> Speed:
    """Loads the model and times Origin's passes, at most `longest` tokens long, for at most about 15 s.

    Lengths double while there is time, of slow models up to 256 tokens for four times as long. What grows with the
    tokens and with their pairs is told apart where pairs are a third of the work at the longest length; in shorter
    passes noise would decide that, and their ratio is that of the operations. Pairs are those of layers that see all
    and of layers with windows. Raises what loading raises.
    """
    return speed_of(spec.loaded().model, longest, executor)


def speed_of(model: Any, longest: int, executor: str = "fused") -> Speed:
    """As `measure_speed`, of a loaded model."""
    depth = model.config.num_hidden_layers
    windows = _windows(model) if executor == "fused" else (None,) * depth  # densely, all pairs are computed
    length, times, began = min(_SHORTEST, longest), dict[int, float](), time.perf_counter()
    with applied(model, Origin(trained_length=longest), executor=executor), torch.inference_mode():
        slowest = _timed(model, length)  # the first pass is slower
        while True:
            times[length] = min(_timed(model, length) for _ in range(1 if slowest > 1 else 2))
            slowest = max(times.values())
            least = began + _TRIAL_S * (1 if length >= _ENOUGH else 4)
            if length == longest or time.perf_counter() + 3 * times[length] > least:  # twice as long: 2 to 4 times
                break
            length = min(2 * length, longest)
    lengths, seconds = (np.array([*values], float) for values in (times, times.values()))
    seen = np.array([_seen(tokens, windows) for tokens in times])
    ratio = _pair_operations(model.config) * len(windows) / depth
    if ratio * seen[-1] >= lengths[-1] / 2:
        each, token, pair = _fitted([np.ones_like(lengths), lengths, seen], seconds)
    else:
        work = lengths + ratio * seen
        each, token = _fitted([np.ones_like(lengths), work], seconds) if len(times) > 2 else (0.0, (seconds / work)[-1])
        pair = ratio * token
    return Speed(float(each), float(token), float(pair), length, windows)


def _fitted(terms: Sequence[np.ndarray], seconds: np.ndarray) -> np.ndarray:
    """Factors of the terms, none below 0, with the least relative errors of the seconds."""
    return nnls(np.stack(terms, axis=1) / seconds[:, None], np.ones_like(seconds))[0]


def _pair_operations(config: Any) -> float:
    """Operations of a query-key pair in all layers, as a share of those of a token without its pairs."""
    one, two = pass_flops(config, 1), pass_flops(config, 2)
    square = two / 2 - one  # a pass takes token * length + square * length**2, and has half as many pairs
    return 2 * square / (one - square)


def _windows(model: Any) -> tuple[int | None, ...]:
    """As in `Speed`. Chunks count as windows: they hold at most twice as many pairs as there are."""
    if not is_rotary(model.config.model_type):
        return (None,) * model.config.num_hidden_layers
    sizes = structure.windows(model)
    layers = sorted({attends.layer for attends in structure.structure_of(model).values()})
    return tuple(sizes.get(layer) for layer in layers) or (None,)


def _timed(model: Any, length: int) -> float:
    """Seconds of a pass, with the logits of its last quarter, of 1024 tokens at most."""
    ids = torch.arange(length, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    before = now(model.device)
    model(ids, use_cache=False, **with_last_logits(model, min(-(-length // 4), 1024)))
    return now(model.device) - before


def pairs(plan: Plan) -> float:
    """Query-key pairs whose scores are computed; where a pattern chooses between regions, those of each.

    Of two million queries and more, every second, third ... query stands for those after it.
    """
    total = 0.0
    for region in plan.regions:
        end = min(region.queries[1], plan.length)
        step = max(1, (end - region.queries[0]) >> 20)
        queries = np.arange(region.queries[0], end, step)
        first = region.keys[0] if region.farthest is None else np.maximum(region.keys[0], queries - region.farthest)
        stop = np.minimum(min(region.keys[1], plan.length), queries - region.nearest + 1)
        total += step * float(np.maximum(stop - first, 0).sum())
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
    total, now = sum(passes_of(work).values()), {task.key for task, _ in left}
    tokens, longest = sum(task.weight for task, _ in work), max(task.length for task, _ in work)
    needed = max(task.memory_bytes for task, _ in work)
    text = (
        f"{len(work)} tasks: {total:,.0f} passes, {tokens:,} tokens, at most {longest} in one\n"
        f"memory in addition to the weights: about {needed / 2**20:,.0f} MiB"
    )
    done = sum(passes_of([(task, method) for task, method in work if task.key not in now]).values())
    every = done + sum(passes_of(left).values())
    if not done:
        return text
    return f"{text}\ndone in {out}, or not needed: {done:,.0f} of {every:,.0f} passes; the time is of those left"


def seconds_of(passes: Passes, speed: Speed) -> float:
    """Seconds of all passes."""
    return sum(speed.seconds(count * length, length, method) for (method, length), count in passes.items())


def time_text(passes: Passes, spec: ModelSpec, executor: str, speed: Speed | None = None) -> tuple[str, Speed | None]:
    """The time of all passes, as a line of text, and the speed; or why there is none, where it cannot be measured.

    speed: the model's, where it was measured.
    """
    if not passes:
        return "time: none, no pass is left", None
    longest = max(length for _, length in passes)
    try:
        speed = speed or measure_speed(spec, longest, executor)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return f"time: not measured ({' '.join(str(error).split()) or type(error).__name__})", None
    threads = torch.get_num_threads()
    rate = speed.longest / speed.seconds(speed.longest, speed.longest)
    return (
        f"time: about {format_seconds(seconds_of(passes, speed))} for the passes, if this machine stays as busy as it "
        f"is now ({rate:,.0f} tokens/s measured, in passes of up to {speed.longest} tokens, with {threads} "
        f"thread{'s' * (threads > 1)})"
    ), speed
