"""Rotary phases outside the trained window: by a plan's distances alone, and weighted by what each head's scores use.

Pair m of a head's dims rotates by w_m a token. Inside the window it reaches the phases w_m r, 0 <= r < M, and, as they
are counted here, what lies between two of them: the arc from 0 to w_m (M - 1), or the whole circle if no more than one
step is left of it. A method puts a key at relative position r' and may rotate pairs at another frequency w'_m: the
phase w'_m r' was met if modulo 2 pi it lies on that arc, so also where the pair comes round to it again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from mesa.engine import rotary as rotary_modules
from mesa.engine.attention import rows
from mesa.engine.schedule import Schedule
from mesa.methods import Method
from mesa.plan import Plan, relative_positions, rotary_base
from mesa.support import check_method, is_rotary
from probe.commands.anatomy.run import labelled, recorded_attention, sampled_queries

_CIRCLE = 2 * math.pi
_BLOCK = 256  # queries
_ROUNDING = 1e-6  # relative; inv_freq is float32


@dataclass(frozen=True)
class Phases:
    """By rotary pair, in radians: its rotation by a token, in use, and the arc from 0 on that it met inside M."""

    rotation: np.ndarray
    arc: np.ndarray

    @classmethod
    def of(cls, plan: Plan, trained: np.ndarray, in_use: np.ndarray, trained_length: int) -> Phases:
        """Under a plan. trained, in_use: radians a token of each pair inside M, and before the plan scales them."""
        scale: Any = 1.0
        if plan.frequency_scale is not None:
            pairs = np.arange(len(trained), dtype=float)
            scale = plan.frequency_scale(pairs, 2 * len(trained), rotary_base(in_use))
        arc = np.where(trained * trained_length >= _CIRCLE, _CIRCLE, trained * (trained_length - 1))
        return cls(in_use * scale, arc)

    @property
    def open_pairs(self) -> np.ndarray:
        """The pairs that have not met the whole circle, by number."""
        return np.flatnonzero(self.arc < _CIRCLE)

    def unmet(self, relative: np.ndarray, pair: int) -> np.ndarray:
        """Whether a pair never met its phase at these relative positions (-1: masked, False), in their shape."""
        angle = relative * self.rotation[pair]
        phase, near = angle - _CIRCLE * np.floor(angle / _CIRCLE), _ROUNDING * angle
        return (relative >= 0) & (phase > self.arc[pair] + near) & (phase < _CIRCLE - near)


def unmet_share(
    model: PreTrainedModel,
    ids: Sequence[int],
    method: Method,
    *,
    queries: Sequence[int] | None = None,
) -> xr.Dataset:
    """The share of sum |q_m||k_m| in unmet phases, over rotary pairs m and the keys visible to each sampled query.

    `norms`: every key counts alike; `attention`: weighted by the attention it gets. Both (layer, head, query).
    Dims that are not rotated are left out. ids: a prompt. queries: token positions,
    `sampled_queries` if None. Raises ValueError for a model without rotary embeddings, or with several.
    """
    check_rotary(model.config, method)
    length = len(ids)
    chosen = sampled_queries(length, method.trained_length) if queries is None else sorted(queries)
    decoder: Any = model.get_decoder()
    trained, in_use = frequencies(decoder.rotary_emb, method, length)

    def measure(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        phases = Phases.of(schedule.plan, trained, in_use, method.trained_length)
        return _shares(schedule, query, key, scale, chosen, phases)

    data = labelled(recorded_attention(model, ids, method, measure), {}, chosen, method.trained_length)
    for name, weighted in (("norms", "norms"), ("attention", "norms and attention")):
        data[name].attrs.update(long_name=f"share of unmet phases, by {weighted}", units="share")
    return data.assign_attrs(trained_length=method.trained_length, length=length)


def first_unmet(method: Method, config: Any, length: int, share: float = 0.0) -> int | None:
    """The first token position of a prompt of `length` tokens at which a rotary phase is unmet; None if none is.

    share: how much of the position's (key, pair)s must be unmet, more than none by default: a window of exactly M
    tokens is one distance too far. config: the model's Hugging Face config. Raises ValueError for a model without
    rotary embeddings.
    """
    for begin, shares in _by_block(method, config, length):
        if (shares > share).any():
            return begin + int((shares > share).argmax())
    return None


def unmet_by_position(method: Method, config: Any, length: int) -> np.ndarray:
    """Of a prompt of `length` tokens: the share of unmet phases at each position, all keys and pairs counted alike."""
    return np.concatenate([shares for _, shares in _by_block(method, config, length)])


def _by_block(method: Method, config: Any, length: int) -> Iterator[tuple[int, np.ndarray]]:
    """Shares of unmet phases by blocks of queries: the first query, and their shares."""
    check_rotary(config, method)
    with torch.device("meta"):
        decoder: Any = AutoModelForCausalLM.from_config(config).get_decoder()
    plan = method.plan(length)
    phases = Phases.of(plan, *frequencies(type(decoder.rotary_emb)(config), method, length), method.trained_length)
    index = np.arange(plan.length)
    for begin in range(0, plan.length, _BLOCK):
        relative = relative_positions(plan, index[begin : begin + _BLOCK], index)
        at, values = pd.factorize(relative.ravel())  # each relative position is looked up once
        new = sum((phases.unmet(np.asarray(values), pair) for pair in phases.open_pairs), np.zeros(len(values)))
        yield begin, new[at].reshape(relative.shape).sum(1) / ((relative >= 0).sum(1) * len(phases.arc))


def no_phases(config: Any) -> str:
    """Why a model has no rotary phases that go for all its layers; empty where it has."""
    if any(isinstance(part, dict) for part in (getattr(config, "rope_parameters", None) or {}).values()):
        return "has other rotary frequencies in other layers"
    return "" if is_rotary(config.model_type) else "has no rotary embeddings (it has ALiBi)"


def check_rotary(config: Any, method: Method) -> None:
    """ValueError where a method cannot be attached to the model or no rotary frequencies hold for all its layers."""
    check_method(config, method)
    reason = no_phases(config)
    if reason:
        raise ValueError(f"model type {config.model_type!r} {reason}, and so no rotary phases")


def frequencies(rotary: nn.Module, method: Method, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Radians a token of every rotary pair: inside M, and in a prompt of `length` before the plan scales them.

    A rotary module that changes with length by itself does so where the method leaves it as it is (Origin).
    """
    frozen: Any = rotary_modules.frozen_rotary(rotary)
    rotary_modules.settle(frozen, method.trained_length)
    trained = frozen.inv_freq
    if method.uses_model_rope:
        in_use: Any = copy.deepcopy(rotary)
        device = in_use.inv_freq.device
        in_use(torch.zeros(1, device=device), torch.tensor([[length - 1]], device=device))
    else:
        in_use = rotary_modules.frozen_rotary(rotary)
        rotary_modules.settle(in_use, length)
    return trained.double().cpu().numpy(), in_use.inv_freq.double().cpu().numpy()


def _shares(
    schedule: Schedule, query: Tensor, key: Tensor, scale: float, chosen: Sequence[int], phases: Phases
) -> dict[str, Tensor]:
    """Unmet shares (head, query), by norms and by attention, of a batch of one."""
    pairs, groups = len(phases.arc), query.shape[1] // key.shape[1]
    relative = relative_positions(schedule.plan, np.array(chosen), np.arange(key.shape[2]))
    visible = torch.from_numpy(relative >= 0)
    new = torch.from_numpy(np.stack([phases.unmet(relative, pair) for pair in range(pairs)], -1))
    weights = rows(schedule, query, key, scale, chosen)[0].cpu().double()
    keys = _pair_norms(key[0], pairs).repeat_interleave(groups, 0)
    shares: dict[str, list[Tensor]] = {"norms": [], "attention": []}
    for row, token in enumerate(chosen):
        products = keys * _pair_norms(query[0, :, token, None], pairs) * visible[row, :, None]
        unmet, every = (products * new[row]).sum(-1), products.sum(-1)
        shares["norms"].append(unmet.sum(-1) / every.sum(-1))
        shares["attention"].append((weights[:, row] * unmet).sum(-1) / (weights[:, row] * every).sum(-1))
    return {name: torch.stack(values, -1) for name, values in shares.items()}


def _pair_norms(states: Tensor, pairs: int) -> Tensor:
    """Length of each rotary pair (dims m and m + pairs) of states (..., dim)."""
    return torch.linalg.vector_norm(states[..., : 2 * pairs].unflatten(-1, (2, pairs)).cpu().double(), dim=-2)
