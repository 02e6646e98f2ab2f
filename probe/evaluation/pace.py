"""How long passes will take on this machine, from a few short ones timed on a model of the same shape."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mesa.methods import Method
from mesa.models import chosen_dtype
from probe.capture.memory import check_memory

Work = Mapping[tuple[Method, int], float]
"""Passes by method and length in tokens."""
_LAYERS, _WORDS = 2, 64
_SHORTEST = 64  # tokens
_SECONDS, _LEAST_SECONDS = 1.5, 0.25  # of the longest timed passes of all methods, and of one


def told(
    config: Any, load: Mapping[str, Any], executor: str, work: Work, others: Sequence[tuple[Any, Work]] = ()
) -> str:
    """The time of the passes in `work`, as a line of text; why there is none, where it cannot be measured.

    others: configs and passes of further models.

    Timed are passes of the model's first layers with random weights: the model itself is not loaded.
    """
    try:
        seconds = sum(_seconds(own, load, executor, passes) for own, passes in ((config, work), *others) if passes)
    except (ValueError, OSError, RuntimeError, MemoryError, TypeError, AttributeError, KeyError, IndexError) as error:
        return f"time: not estimated ({' '.join(str(error).split()) or type(error).__name__})"
    return (
        f"time: {_spoken(seconds)} on this machine for the passes, an estimate from short ones timed now on "
        f"{_depth(config)} of {config.num_hidden_layers} layers with random weights"
    )


def _spoken(seconds: float) -> str:
    if seconds < 60:
        return "less than 1 min"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.0f} h"


def _seconds(config: Any, load: Mapping[str, Any], executor: str, work: Work) -> float:
    import torch

    model, total = _model(config, load), 0.0
    methods = list(dict.fromkeys(method for method, _ in work))
    share = max(_LEAST_SECONDS, _SECONDS / max(1, len(methods)))
    with torch.inference_mode():
        for method in methods:
            asked = {length: many for (own, length), many in work.items() if own == method}
            slope, bend = _cost(model, replace(method, layers=None, heads=None), executor, max(asked), share)
            total += sum(many * (slope * length + bend * length**2) for length, many in asked.items())
    return total * config.num_hidden_layers / _depth(config)


def _depth(config: Any) -> int:
    return min(_LAYERS, config.num_hidden_layers)


def _model(config: Any, load: Mapping[str, Any]) -> Any:
    """The first layers of a model of this config, with random weights and few words."""
    import torch
    from transformers import AutoModelForCausalLM

    from mesa.models import DTYPES

    shape, depth = copy.deepcopy(config), _depth(config)
    if getattr(shape, "layer_types", None):
        shape.layer_types = shape.layer_types[:depth]
    shape.num_hidden_layers, shape.vocab_size = depth, _WORDS
    shape.pad_token_id = shape.bos_token_id = shape.eos_token_id = None
    dtype = DTYPES[chosen_dtype(config, load)]
    options = {"trust_remote_code": bool(load.get("trust_remote_code")), "dtype": dtype}
    with torch.device("meta"):
        numbers = sum(each.numel() for each in AutoModelForCausalLM.from_config(shape, **options).parameters())
    device = load.get("device") or "cpu"
    check_memory(2 * numbers * dtype.itemsize, _SHORTEST, device)
    return AutoModelForCausalLM.from_config(shape, **options).eval().to(device)


def _cost(model: Any, method: Method, executor: str, longest: int, share: float) -> tuple[float, float]:
    """Seconds a token, and a token squared, of a pass under `method`, from two lengths, the longer at most `share`."""
    length = min(_SHORTEST, longest)
    _timed(model, method, executor, length)  # the first is slower
    rates = {length: _timed(model, method, executor, length) / length}
    while length < longest and length * rates[length] < share / 2:
        length = min(2 * length, longest)
        rates[length] = _timed(model, method, executor, length) / length
    (short, less), (long, more) = [(0, 0.0), *rates.items()][-2:]
    bend = max(0.0, (more - less) / (long - short)) if short else 0.0
    return more - bend * long, bend


def _timed(model: Any, method: Method, executor: str, length: int) -> float:
    """Seconds of the faster of two passes."""
    import torch

    from mesa.engine.apply import applied

    ids = (torch.arange(length, device=model.device) * 7 % _WORDS)[None]
    found = []
    with applied(model, method, executor=executor):
        for _ in range(2):
            began = time.perf_counter()
            model(ids, use_cache=False, logits_to_keep=1).logits.cpu()
            found.append(time.perf_counter() - began)
    return min(found)
