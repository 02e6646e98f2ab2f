"""Giving positions beyond the window the positional vector of a position inside it: is it the vector that breaks?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.capture.spec import CaptureSpec, Kept
from probe.mechanism.anatomy import moments
from probe.mechanism.anatomy.collect import collect, collect_bytes
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


@dataclass(frozen=True)
class Shift:
    """The broken run with a layer's positional vectors changed. which: 'positional', or 'random N': dims shuffled."""

    layer: int
    which: str

    @property
    def cell(self) -> tuple[str | int, ...]:
        """What the journal calls it."""
        return ("clamp", "shift", "vector", self.which, "beyond", self.layer)

    def run(self, contrast: Contrast, changes: Mapping[int, np.ndarray]) -> Outcome:
        """The outcome of this on one item; changes: by layer, as `changes` gives them."""
        added = changes[self.layer]
        if self.which != WHICH[0]:
            seed = int(self.which.rpartition(" ")[2])
            added = added[:, np.random.default_rng(seed).permutation(added.shape[1])]

        def change(states: Any) -> Any:
            return states + torch.from_numpy(added[: len(states)]).to(states)

        return contrast.run(BROKEN, self.layer, [Edit(("resid_post", self.layer), change)])


def reading_tokens(length: int) -> int:
    """Tokens that `changes` reads."""
    return TEXTS * length


def vectors_bytes(config: Any, layers: Sequence[int], length: int) -> int:
    """Memory of what `changes` gives."""
    return 4 * len(layers) * length * config.hidden_size


def shifts(layers: Sequence[int]) -> list[Shift]:
    """Every layer's shift, and with its dims shuffled."""
    return [Shift(layer, which) for layer in layers for which in WHICH]


def shift_bytes(config: Any, layers: Sequence[int], length: int, number_bytes: int) -> int:
    """Estimate of the memory that `changes` takes beside the weights."""
    kept = Kept(layers, range(length), range(config.hidden_size))
    return collect_bytes(config, kept, length, number_bytes, "float32") + vectors_bytes(config, layers, length)
