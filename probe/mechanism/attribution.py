"""Attribution: what every patch would restore, to first order, from one backward pass over the broken run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mesa.models import bytes_a_number
from probe.capture.memory import free_bytes
from probe.experiment.journal import Journal
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.interventions import Intervention
from probe.mechanism.passes import Edit, Place, run
from probe.mechanism.request import Group, LocatePlan


def attribute(contrast: Contrast, hooks: Sequence[str]) -> dict[Intervention, float]:
    """By patch (way 'mend', all positions): the fall of the mean loss (nats/token) that it would bring.

    One backward pass under executor 'dense' of the broken run: -sum of gradient x (mended - broken) over positions and
    dims (Nanda 2023, "Attribution patching"). Holds the scores of all layers.
    """
    depth = len(contrast.heads)
    places: list[Place] = [(hook, layer) for hook in hooks for layer in range(depth)]
    seen: dict[Place, Tensor] = {}

    def remember(place: Place) -> Any:
        def change(states: Tensor) -> Tensor:
            states = states if states.requires_grad else states.requires_grad_()
            seen[place] = states
            return states

        return change

    edits = [Edit(place, remember(place)) for place in _in_order(places)]
    with torch.enable_grad():
        outcome = run(contrast.bridge, contrast.item, contrast.methods[BROKEN], edits, executor="dense")
        gradients = torch.autograd.grad(outcome.losses.mean(), [seen[place] for place in places])
    found = {}
    for place, gradient in zip(places, gradients, strict=True):
        hook, layer = place
        change = contrast.donor(MENDED, place).to(gradient) - seen[place].detach()
        if hook == "z":
            fall = -(gradient * change).sum((0, 2))
            for head, value in enumerate(fall.tolist()):
                found[Intervention("patch", "mend", layer, head, hook)] = value
        else:
            found[Intervention("patch", "mend", layer, None, hook)] = -float((gradient * change).sum())
    return found


def _in_order(places: Sequence[Place]) -> list[Place]:
    """Each layer's hooks as a pass comes to them, so that an edit sees what the ones before it made."""
    order = ("resid_pre", "z", "attn_out", "mlp_out", "resid_post")
    return sorted(places, key=lambda place: (place[1], order.index(place[0])))


def bytes_needed(made: LocatePlan, tokens: int) -> int:
    """Memory of the backward pass: three (head, token, token) scores a layer, and twenty times the hidden states."""
    config, each = made.config, bytes_a_number(made.config, made.request.load)
    scores = 3 * config.num_attention_heads * tokens * tokens
    return config.num_hidden_layers * each * (scores + 20 * tokens * config.hidden_size)


def fits(made: LocatePlan, tokens: int) -> bool:
    """Whether that is free on this machine."""
    return bytes_needed(made, tokens) <= free_bytes(made.request.load.get("device") or "cpu")


def hooks_left(made: LocatePlan, journal: Journal, group: Group, name: str, number: int) -> list[str]:
    """The hooks asked for whose attributions the journal lacks for an item."""
    falls = journal.rows.get((*group, name, number, "attribution"), {"falls": []})["falls"]
    known = {hook for _, _, hook, *_ in falls}
    return [hook for hook in made.request.hooks if hook not in known]
