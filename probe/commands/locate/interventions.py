"""What is tried on a model that fails: the method in one layer or head alone, everywhere else, or in a set of heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.commands.locate.passes import BASELINE, PATCHED, PassOutcome, RunPair

Head = tuple[int, int]
"""A layer, and a head in it."""
Heads = Mapping[int, tuple[int, ...]]
"""Heads by layer, as methods take them."""
WAYS = ("only", "without")
JOURNALED = "weave"
"""What journals call a patch, as those of earlier versions do, so that they stay readable."""


@dataclass(frozen=True)
class Patch:
    """Activation patching by a method: in a layer, or a head of it, alone ('only'), or everywhere else ('without').

    Only: is it sufficient there? Without: is it necessary there?
    """

    way: str
    layer: int
    head: int | None = None

    @property
    def key(self) -> tuple[str | int, ...]:
        """Its name in the journal."""
        return (JOURNALED, self.way, self.layer, -1 if self.head is None else self.head)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        everywhere = {(layer, head) for layer in range(pair.depth) for head in range(pair.heads)}
        here = {(layer, head) for layer, head in everywhere if layer == self.layer and self.head in (None, head)}
        heads = here if self.way == "only" else everywhere - here
        base = BASELINE if self.way == "only" else PATCHED
        return pair.run(base, self.layer, method=pair.patched_in(by_layer(heads)))


@dataclass(frozen=True)
class Plain:
    """The run itself, `of` BASELINE or PATCHED; inside: of the last M tokens of a text."""

    of: str
    inside: bool = False
    layer = 0

    @property
    def key(self) -> tuple[str]:
        """Its name in the journal."""
        return ("run-inside" if self.inside else "run",)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        return pair.outcome(self.of)


@dataclass(frozen=True)
class PatchedHeads:
    """The baseline with the method in some heads, by layer."""

    heads: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, heads: Heads) -> PatchedHeads:
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

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        return pair.run(BASELINE, self.layer, method=pair.patched_in(dict(self.heads)))


def by_layer(heads: Iterable[Head]) -> dict[int, tuple[int, ...]]:
    """(layer, head) pairs by layer, both rising."""
    ordered = sorted(heads)
    return {layer: tuple(head for at, head in ordered if at == layer) for layer, _ in ordered}


def patches(layers: Sequence[int], heads: Sequence[Head], ways: Sequence[str]) -> Iterator[Patch]:
    """The method in every layer and (layer, head), in each of these ways."""
    for way in (way for way in WAYS if way in ways):
        yield from (Patch(way, layer) for layer in layers)
        yield from (Patch(way, layer, head) for layer, head in heads)
