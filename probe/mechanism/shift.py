"""Giving positions beyond the window the positional vector of a position inside it: is it the vector that breaks?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.capture.spec import CaptureSpec
from probe.mechanism.anatomy import moments
from probe.mechanism.anatomy.collect import collect
from probe.mechanism.anatomy.sliding import levelled, sliding_windows
from probe.mechanism.contrast import BROKEN, Contrast
from probe.mechanism.passes import Edit, Outcome

TEXTS = 64
CONTROLS = 3
WHICH = ("positional", *(f"random {number}" for number in range(CONTROLS)))
"""The vectors as they are, and with their dims shuffled."""


def changes(
    bridge: TransformerBridge, documents: Sequence[np.ndarray], origin: Method, length: int, layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """By layer, what is added to resid_post of each position (position, dim): p(t') - p(t) beyond M, 0 below.

    p is the mean state over `TEXTS` runs of text under Origin that slide by M/8 (see anatomy/sliding.py). t' goes over
    the second half of the window again and again. Raises ValueError for too short a text.
    """
    trained = origin.trained_length
    stride = max(1, trained // 8)
    runs = [run.tolist() for run in sliding_windows(documents, length, TEXTS, stride)]
    spec = CaptureSpec(layers=tuple((layer, layer + 1) for layer in layers))
    p = moments.mean(levelled(collect(bridge, runs, origin, spec, dtype="float32"), stride)).values
    beyond = np.arange(trained, length)
    stands_for = trained // 2 + (beyond - trained) % (trained - trained // 2)
    found = {}
    for row, layer in enumerate(layers):
        found[layer] = np.zeros(p.shape[1:], np.float32)
        found[layer][beyond] = p[row][stands_for] - p[row][beyond]
    return found


def shift_cell(layer: int, which: str) -> tuple[str | int, ...]:
    """What the journal calls a shift."""
    return ("clamp", "shift", "vector", which, "beyond", layer)


def shift_cells(layers: Sequence[int]) -> list[tuple[str | int, ...]]:
    """What it calls all that are tried."""
    return [shift_cell(layer, which) for layer in layers for which in WHICH]


@dataclass(frozen=True, eq=False)
class Shift:
    """The broken run with a layer's positional vectors changed. which: 'positional', or 'random N': dims shuffled."""

    layer: int
    which: str
    change: np.ndarray

    @property
    def cell(self) -> tuple[str | int, ...]:
        """What the journal calls it."""
        return shift_cell(self.layer, self.which)

    def run(self, contrast: Contrast) -> Outcome:
        """The outcome of this on one item."""

        def change(states: Any) -> Any:
            return states + torch.from_numpy(self.change[: len(states)]).to(states)

        return contrast.run(BROKEN, self.layer, [Edit(("resid_post", self.layer), change)])


def shifts(by_layer: dict[int, np.ndarray]) -> Iterator[Shift]:
    """Every layer's shift, and with its dims shuffled."""
    for layer, change in by_layer.items():
        yield Shift(layer, WHICH[0], change)
        for number, which in enumerate(WHICH[1:]):
            dims = np.random.default_rng(number).permutation(change.shape[1])
            yield Shift(layer, which, change[:, dims])
