"""What is tried on a model that fails: the method in one layer or head alone, activations of one run in the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mesa.methods import Method
from probe.interventions.passes import BASELINE, METHOD, Edit, HookPoint, Outcome, RunPair, run

Head = tuple[int, int]
"""A layer, and a head in it."""
Heads = Mapping[int, tuple[int, ...]]
"""Heads by layer, as methods take them."""
WAYS = {"weave": ("only", "without"), "patch": ("mend", "break")}
"""weave: the method in one place alone (is it sufficient?), and everywhere but there (is it necessary?).

patch: activations of the method's run in the baseline, and the reverse.
"""
EVERY_WAY = tuple(way for ways in WAYS.values() for way in ways)
HOOKS = ("resid_pre", "z", "attn_out", "mlp_out", "resid_post")
"""In the order in which a pass reaches them."""


@dataclass(frozen=True)
class Intervention:
    """A weave or a patch. head: None for a whole layer. hook: of a patch; z alone has heads.

    span: of patched positions: all, inside (below M), beyond, or last (the scored ones and the one before them).
    """

    kind: str
    way: str
    layer: int
    head: int | None = None
    hook: str = ""
    span: str = "all"

    @property
    def key(self) -> tuple[str | int, ...]:
        """Its name in the journal."""
        return (self.kind, self.way, self.hook, self.span, self.layer, -1 if self.head is None else self.head)

    @property
    def restores(self) -> bool:
        """Whether it is scored by what it restores of the baseline's loss, not by what it breaks of the method's."""
        return self.way in ("only", "mend")

    def run(self, pair: RunPair) -> Outcome:
        """The outcome on one item."""
        base, other = (BASELINE, METHOD) if self.restores else (METHOD, BASELINE)
        if self.kind == "weave":
            return pair.run(base, self.layer, method=self._partial_method(pair))
        donor = pair.donor(other, (self.hook, self.layer))
        begin, end = pair.span(self.span)
        at = (slice(begin, end),) if self.head is None else (slice(begin, end), ..., self.head, slice(None))

        def change(states: Tensor) -> Tensor:
            states[at] = donor[at].to(states)
            return states

        return pair.run(base, self.layer, [Edit((self.hook, self.layer), change)])

    def _partial_method(self, pair: RunPair) -> Method:
        """The method in this place alone, or everywhere but there."""
        everywhere = {(layer, head) for layer, count in enumerate(pair.heads) for head in range(count)}
        here = {(layer, head) for layer, head in everywhere if layer == self.layer and self.head in (None, head)}
        heads = here if self.restores else everywhere - here
        return replace(pair.methods[METHOD], heads=by_layer(heads)) if heads else pair.methods[BASELINE]


@dataclass(frozen=True)
class Plain:
    """The run itself, `of` BASELINE or METHOD; inside: of the last M tokens of a text."""

    of: str
    inside: bool = False
    layer = 0

    @property
    def key(self) -> tuple[str]:
        """Its name in the journal."""
        return ("run-inside" if self.inside else "run",)

    def run(self, pair: RunPair) -> Outcome:
        """The outcome on one item."""
        return pair.outcome(self.of)


@dataclass(frozen=True)
class HeadSet:
    """The baseline with the method in some heads, by layer."""

    heads: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, heads: Heads) -> HeadSet:
        """The method in these heads."""
        return cls(tuple(heads.items()))

    @property
    def layer(self) -> int:
        """The first that differs."""
        return min(layer for layer, _ in self.heads)

    @property
    def key(self) -> tuple[str, str]:
        """Its name in the journal."""
        return "set", ";".join(f"{layer}:{','.join(map(str, heads))}" for layer, heads in self.heads)

    def run(self, pair: RunPair) -> Outcome:
        """The outcome on one item."""
        return pair.run(BASELINE, self.layer, method=replace(pair.methods[METHOD], heads=dict(self.heads)))


def by_layer(heads: Iterable[Head]) -> dict[int, tuple[int, ...]]:
    """(layer, head) pairs by layer, both rising."""
    ordered = sorted(heads)
    return {layer: tuple(head for at, head in ordered if at == layer) for layer, _ in ordered}


def weaves(layers: Sequence[int], heads: Sequence[Head], ways: Sequence[str] = EVERY_WAY) -> Iterator[Intervention]:
    """The method in every layer and (layer, head), alone and left out."""
    for way in (way for way in WAYS["weave"] if way in ways):
        yield from (Intervention("weave", way, layer) for layer in layers)
        yield from (Intervention("weave", way, layer, head) for layer, head in heads)


def patches(
    layers: Sequence[int],
    heads: Sequence[Head],
    hooks: Sequence[str],
    spans: Sequence[str],
    ways: Sequence[str] = EVERY_WAY,
) -> Iterator[Intervention]:
    """Every patch at `hooks`, one hook after another; at z, head by head."""
    for hook in hooks:
        for layer, head in heads if hook == "z" else [(layer, None) for layer in layers]:
            for way in (way for way in WAYS["patch"] if way in ways):
                yield from (Intervention("patch", way, layer, head, hook, span) for span in spans)


def attribute(pair: RunPair, hooks: Sequence[str]) -> dict[Intervention, float]:
    """By patch (way 'mend', all positions): the reduction of the mean loss (nats/token) to first order.

    One backward pass of the baseline under executor 'dense': -sum of gradient x (method - baseline) over positions and
    dims (Nanda 2023, "Attribution patching"). Holds the scores of all layers.
    """
    points: list[HookPoint] = [(hook, layer) for hook in hooks for layer in range(len(pair.heads))]
    states: dict[HookPoint, Tensor] = {}

    def recorder(point: HookPoint) -> Any:
        def record(tensor: Tensor) -> Tensor:
            states[point] = tensor if tensor.requires_grad else tensor.requires_grad_()
            return states[point]

        return record

    ordered = sorted(points, key=lambda point: (point[1], HOOKS.index(point[0])))  # an edit sees those before it
    edits = [Edit(point, recorder(point)) for point in ordered]
    with torch.enable_grad():
        outcome = run(pair.bridge, pair.item, pair.methods[BASELINE], edits, executor="dense")
        gradients = torch.autograd.grad(outcome.losses.mean(), [states[point] for point in points])
    falls = {}
    for (hook, layer), gradient in zip(points, gradients, strict=True):
        change = gradient * (pair.donor(METHOD, (hook, layer)).to(gradient) - states[hook, layer].detach())
        if hook == "z":
            for head, value in enumerate((-change.sum((0, 2))).tolist()):
                falls[Intervention("patch", "mend", layer, head, hook)] = value
        else:
            falls[Intervention("patch", "mend", layer, None, hook)] = -float(change.sum())
    return falls
