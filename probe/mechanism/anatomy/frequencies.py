"""How much of each head's scores rides on rotary pairs at phases that were never met inside M (see phases.py)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from mesa.engine import families
from mesa.engine.rows import rows
from mesa.engine.schedule import Schedule
from mesa.methods import Method
from mesa.plan import relative_positions
from mesa.support import ROTARY, check_method, no_phases
from probe.mechanism.anatomy import phases
from probe.mechanism.anatomy.queries import chosen_queries, common_length, labelled, look_at


def unmet_share(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    method: Method,
    *,
    queries: Sequence[int] | None = None,
) -> xr.Dataset:
    """The share of sum |q_m||k_m| in unmet phases, over rotary pairs m and the keys that each sampled query sees.

    `norms`: every key counts alike; `attention`: weighted by the attention it gets. Both (prompt, layer, head, query);
    `by_span` makes means. Dims that are not rotated are left out. prompts: token ids, all of one length. queries: token
    positions, `sampled_queries` if None. Raises ValueError for a model without rotary embeddings, or with several.
    """
    check_rotary(model.config, method)
    length = common_length(prompts)
    chosen = chosen_queries(queries, length, method.trained_length)
    decoder: Any = model.get_decoder()
    trained, own = frequencies(decoder.rotary_emb, method, length)

    def look(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        met = phases.phases(schedule.plan, trained, own, method.trained_length)
        return _shares(schedule, query, key, scale, chosen, met)

    data = labelled([look_at(model, ids, method, look) for ids in prompts], {}, chosen, method.trained_length)
    for name, weighted in (("norms", "norms"), ("attention", "norms and attention")):
        data[name].attrs.update(long_name=f"share of unmet phases, by {weighted}", units="share")
    return data.assign_attrs(trained_length=method.trained_length, length=length)


def first_unmet(method: Method, config: Any, length: int, share: float = 0.0) -> int | None:
    """The first token position of a prompt of `length` tokens at which a rotary phase is new; None if none is.

    share: how much of the position's (key, pair)s must be new, more than none by default: a window of exactly M tokens
    is one distance too far. config: the model's Hugging Face config. Raises ValueError for a model without rotary
    embeddings.
    """
    return phases.first_above(method.plan(length), _met(method, config, length), share)


def unmet_by_position(method: Method, config: Any, length: int) -> np.ndarray:
    """Of a prompt of `length` tokens: the share of new phases at each position, all keys and pairs counted alike."""
    return phases.unmet_by_position(method.plan(length), _met(method, config, length))


def check_rotary(config: Any, method: Method) -> None:
    """ValueError where a method cannot be attached to the model or no rotary frequencies go for all its layers."""
    check_method(config, method)
    reason = no_phases(config.model_type)
    if reason:
        others = ", ".join(kind for kind in ROTARY if not no_phases(kind))
        raise ValueError(
            f"model type {config.model_type!r} {reason}, and so no phases to be met; phases are there for {others}"
        )


def frequencies(rotary: nn.Module, method: Method, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Radians a token of every rotary pair: inside M, and in a prompt of `length` before the plan scales them.

    A rotary module that changes with length by itself does so where the method leaves it as it is (Origin).
    """
    frozen: Any = families.frozen_rotary(rotary)
    families.settle(frozen, method.trained_length)
    trained = frozen.inv_freq
    if method.as_trained:
        own: Any = copy.deepcopy(rotary)
        place = own.inv_freq.device
        own(torch.zeros(1, device=place), torch.tensor([[length - 1]], device=place))
    else:
        own = families.frozen_rotary(rotary)
        families.settle(own, length)
    return trained.double().cpu().numpy(), own.inv_freq.double().cpu().numpy()


def _met(method: Method, config: Any, length: int) -> phases.Phases:
    check_rotary(config, method)
    with torch.device("meta"):
        decoder: Any = AutoModelForCausalLM.from_config(config).get_decoder()
    trained, own = frequencies(type(decoder.rotary_emb)(config), method, length)
    return phases.phases(method.plan(length), trained, own, method.trained_length)


def _shares(
    schedule: Schedule, query: Tensor, key: Tensor, scale: float, chosen: Sequence[int], met: phases.Phases
) -> dict[str, Tensor]:
    """Unmet shares (head, query), by norms and by attention, of a batch of one."""
    pairs, groups = len(met.arc), query.shape[1] // key.shape[1]
    relative = relative_positions(schedule.plan, np.array(chosen), np.arange(key.shape[2]))
    seen = torch.from_numpy(relative >= 0)
    new = torch.from_numpy(np.stack([met.unmet(relative, pair) for pair in range(pairs)], -1))
    weights = rows(schedule, query, key, scale, chosen)[0].cpu().double()
    keys = _pair_norms(key[0], pairs).repeat_interleave(groups, 0)
    shares: dict[str, list[Tensor]] = {"norms": [], "attention": []}
    for row, token in enumerate(chosen):
        products = keys * _pair_norms(query[0, :, token, None], pairs) * seen[row, :, None]
        unmet, every = (products * new[row]).sum(-1), products.sum(-1)
        shares["norms"].append(unmet.sum(-1) / every.sum(-1))
        shares["attention"].append((weights[:, row] * unmet).sum(-1) / (weights[:, row] * every).sum(-1))
    return {name: torch.stack(values, -1) for name, values in shares.items()}


def _pair_norms(states: Tensor, pairs: int) -> Tensor:
    """Length of each rotary pair (dims m and m + pairs) of states (..., dim)."""
    turned = states[..., : 2 * pairs].unflatten(-1, (2, pairs)).cpu().double()
    return torch.linalg.vector_norm(turned, dim=-2)
