"""Holding heads' attention on the first key at its in-window value: does the length break the model through it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from probe.mechanism.contrast import BROKEN, Contrast
from probe.mechanism.interventions import Head, by_layer
from probe.mechanism.passes import Edit, Outcome

_KNOWN = 8  # the last M/8 queries inside give the value


@dataclass(frozen=True)
class Hold:
    """The broken run with heads held, by layer. Queries from M on give the first key what the last M/8 before M gave.

    The value is the mean of those queries, of the same head and text; the other keys share the rest as before.
    """

    heads: Mapping[int, Sequence[int]]

    def edits(self, trained: int) -> list[Edit]:
        """What is done to the weights, under the dense executor."""
        return [
            Edit(("pattern", layer), partial(held, heads=heads, trained=trained))
            for layer, heads in sorted(self.heads.items())
        ]

    def run(self, contrast: Contrast) -> Outcome:
        """The outcome of this on one item."""
        return contrast.run(BROKEN, min(self.heads), self.edits(contrast.methods[BROKEN].trained_length))


def held(pattern: Tensor, heads: Sequence[int], trained: int) -> Tensor:
    """Weights (head, query, key), those of `heads` for queries from `trained` on with the first key's held.

    A query that sees nothing but the first key stays as it is.
    """
    for head in heads:
        value = pattern[head, trained - max(1, trained // _KNOWN) : trained, 0].mean()
        own = pattern[head, trained:]
        rest = own[:, 1:].sum(1, keepdim=True)
        own[:, 1:] /= rest.where(rest > 0, 1)  # first: 1 / rest may be beyond what numbers hold
        own[:, 1:] *= 1 - value
        own[:, 0] = value.where(rest[:, 0] > 0, own[:, 0])
    return pattern


def random_heads(heads: Sequence[Head], count: int, draw: int) -> dict[int, tuple[int, ...]]:
    """As many other heads of the same layers, of `count` each, at random; fewer where a layer has no more. Seeded."""
    rng, found = np.random.default_rng(draw), []
    for layer, own in by_layer(heads).items():
        others = [head for head in range(count) if head not in own]
        chosen = rng.choice(others, min(len(own), len(others)), replace=False) if others else []
        found += [(layer, int(head)) for head in chosen]
    return by_layer(found)
