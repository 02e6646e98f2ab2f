"""The broken and the mended run of one item, and the states that other passes begin with or take over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.mechanism.passes import Edit, Item, Outcome, Place, Start, run

BROKEN, MENDED = "broken", "mended"


@dataclass
class Contrast:
    """One item, run as trained (broken) and under a method (mended); activations are kept as they are asked for.

    At any time it keeps the residual stream of both runs before every layer, and of one further hook both runs'.
    """

    bridge: TransformerBridge
    item: Item
    methods: dict[str, Method]
    executor: str = "fused"
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _donors: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    @property
    def heads(self) -> list[int]:
        """Attention heads by layer."""
        config: Any = self.bridge.original_model.config
        return [config.num_attention_heads] * config.num_hidden_layers

    def sharing(self, *others: Contrast) -> Contrast:
        """This, with the broken run of others of the same item, as far as they have it."""
        for other in others:
            if BROKEN in other._outcomes:
                self._outcomes[BROKEN] = other._outcomes[BROKEN]
        return self

    def outcome(self, of: str) -> Outcome:
        """The run as it is, `of` BROKEN or MENDED."""
        if of not in self._outcomes:
            depth = len(self.heads)
            keep = [("resid_pre", layer) for layer in range(depth)] + [("resid_post", depth - 1)]
            self._outcomes[of] = run(self.bridge, self.item, self.methods[of], keep=keep, executor=self.executor)
        return self._outcomes[of]

    def run(self, base: str, layer: int, edits: Sequence[Edit] = (), *, method: Method | None = None) -> Outcome:
        """A pass that is as the run `base` below `layer`, and goes on from there under `method` with `edits`."""
        start = Start(layer, self.outcome(base).kept["resid_pre", layer]) if layer else None
        method = method or self.methods[base]
        return run(self.bridge, self.item, method, edits, start=start, executor=self.executor)

    def donor(self, of: str, place: Place) -> Tensor:
        """The activations (token, ...) of the run `of` at a place."""
        hook, layer = place
        if hook == "resid_post" and layer + 1 < len(self.heads):
            place = ("resid_pre", layer + 1)
        if place in self.outcome(of).kept:
            return self._outcomes[of].kept[place]
        if (of, hook) not in self._donors:
            self._donors = {known: kept for known, kept in self._donors.items() if known[1] == hook}
            keep = [(hook, each) for each in range(len(self.heads))]
            self._donors[of, hook] = run(self.bridge, self.item, self.methods[of], keep=keep, executor=self.executor)
        return self._donors[of, hook].kept[place]

    def span(self, name: str) -> tuple[int, int]:
        """First and last position (exclusive) of a span of `interventions.SPANS`."""
        length, trained = len(self.item.ids), self.methods[MENDED].trained_length
        begin = {"beyond": trained, "last": length - self.item.scored - 1}.get(name, 0)
        return begin, trained if name == "inside" else length
