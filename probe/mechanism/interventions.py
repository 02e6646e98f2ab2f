"""What is tried on a model that breaks: the method in one place alone, or one run's activations in the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mesa.methods import Method
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.passes import Edit, Outcome

Head = tuple[int, int]
"""A layer, and a head in it."""
WAYS = {"weave": ("only", "without"), "patch": ("mend", "break")}
"""weave: the method in one place alone (is it enough?), and everywhere but there (is it needed?).

patch: activations of the mended run in the broken one, and the reverse.
"""
EVERY_WAY = tuple(way for ways in WAYS.values() for way in ways)
HOOKS = ("resid_pre", "resid_post", "attn_out", "mlp_out", "z")
SPANS = ("all", "inside", "beyond", "last")
"""Positions that are patched: all, below M, from M on, or the scored ones and the one before them."""


@dataclass(frozen=True)
class Intervention:
    """One thing tried. head: None for a whole layer. hook: of a patch; z alone has heads."""

    kind: str
    way: str
    layer: int
    head: int | None = None
    hook: str = ""
    span: str = "all"

    @property
    def cell(self) -> tuple[str | int, ...]:
        """What the journal calls it."""
        return (self.kind, self.way, self.hook, self.span, self.layer, -1 if self.head is None else self.head)

    @property
    def restores(self) -> bool:
        """Whether it is judged by what it mends in the broken run, not by what it breaks in the mended one."""
        return self.way in ("only", "mend")

    def run(self, contrast: Contrast) -> Outcome:
        """The outcome of this on one item."""
        base = BROKEN if self.restores else MENDED
        if self.kind == "weave":
            return contrast.run(base, self.layer, method=self._woven(contrast))
        donor = contrast.donor(MENDED if base == BROKEN else BROKEN, (self.hook, self.layer))
        begin, end = contrast.span(self.span)
        head = slice(None) if self.head is None else self.head

        def change(states: Any) -> Any:
            states[begin:end, ..., head, :] = donor[begin:end, ..., head, :].to(states)
            return states

        def change_all(states: Any) -> Any:
            states[begin:end] = donor[begin:end].to(states)
            return states

        edit = Edit((self.hook, self.layer), change_all if self.head is None else change)
        return contrast.run(base, self.layer, [edit])

    def _woven(self, contrast: Contrast) -> Method:
        """The mending method in this place alone or everywhere but there."""
        everywhere = {(layer, head) for layer, count in enumerate(contrast.heads) for head in range(count)}
        here = {(layer, head) for layer, head in everywhere if layer == self.layer and self.head in (None, head)}
        chosen = here if self.restores else everywhere - here
        return replace(contrast.methods[MENDED], heads=by_layer(chosen)) if chosen else contrast.methods[BROKEN]


@dataclass(frozen=True)
class Plain:
    """The run itself, `of` BROKEN or MENDED; inside: of the last M tokens of an item of text."""

    of: str
    inside: bool = False
    layer = 0

    @property
    def cell(self) -> tuple[str]:
        """What the journal calls it."""
        return ("run-inside" if self.inside else "run",)

    def run(self, contrast: Contrast) -> Outcome:
        """The outcome of this on one item."""
        return contrast.outcome(self.of)


@dataclass(frozen=True)
class Within:
    """The broken run with the method in some heads, by layer."""

    heads: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, heads: Mapping[int, tuple[int, ...]]) -> Within:
        """The method in these heads."""
        return cls(tuple(heads.items()))

    @property
    def layer(self) -> int:
        """The first that differs."""
        return min(layer for layer, _ in self.heads)

    @property
    def cell(self) -> tuple[str, str]:
        """What the journal calls it."""
        return "set", ";".join(f"{layer}:{','.join(map(str, each))}" for layer, each in self.heads)

    def run(self, contrast: Contrast) -> Outcome:
        """The outcome of this on one item."""
        method = replace(contrast.methods[MENDED], heads=dict(self.heads))
        return contrast.run(BROKEN, self.layer, method=method)


def by_layer(heads: Iterable[Head]) -> dict[int, tuple[int, ...]]:
    """(layer, head) pairs by layer, both rising."""
    chosen = sorted(heads)
    return {layer: tuple(head for at, head in chosen if at == layer) for layer, _ in chosen}


def weaves(layers: Sequence[int], heads: Sequence[Head], ways: Sequence[str] = EVERY_WAY) -> Iterator[Intervention]:
    """The method in every layer and (layer, head), alone and left out."""
    for way in WAYS["weave"]:
        if way in ways:
            yield from (Intervention("weave", way, layer) for layer in layers)
            yield from (Intervention("weave", way, layer, head) for layer, head in heads)


def patches(
    layers: Sequence[int],
    heads: Sequence[Head],
    hooks: Sequence[str],
    spans: Sequence[str],
    ways: Sequence[str] = EVERY_WAY,
) -> Iterator[Intervention]:
    """Every patch at `hooks`, both ways, one hook after another; at z, head by head."""
    for hook in hooks:
        places = heads if hook == "z" else [(layer, None) for layer in layers]
        for layer, head in places:
            for way in WAYS["patch"]:
                yield from (Intervention("patch", way, layer, head, hook, span) for span in spans if way in ways)
