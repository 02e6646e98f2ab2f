"""Hidden states that a study reads lengths from, on disk: Origin's and one method's, of one prompt and of a mean."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.capture.capture import capture
from probe.capture.spec import Kept
from probe.store.store import check_values

HOOK = "resid_post"
LABELS = ("origin", "method")
"""What the two are called in the arrays."""


class States:
    """Room for the hidden states of two methods, in files of `folder` that have no name and go with the process.

    A layer is read when it is asked for: in memory is one captured pass, and what a reader makes of a layer.
    """

    def __init__(self, kept: Kept, folder: Path, *, averaged: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = kept
        shape = (2, len(kept.layers), len(kept.positions), len(kept.dims))
        self._first = _room(shape, np.float32, folder)
        self._mean = _room(shape, np.float64, folder) if averaged else None

    def fill(
        self,
        bridge: TransformerBridge,
        prompts: Sequence[Sequence[int]],
        method: Method,
        row: int,
    ) -> None:
        """Keeps as number `row` of `LABELS` the states of the first prompt and, where there are several, their mean.

        Prompts may be shorter than what is kept: then their positions alone are written.
        """
        length = min(len(prompts[0]), len(self.kept.positions))
        kept = replace(self.kept, positions=self.kept.positions[:length])
        for number, ids in enumerate(prompts):
            values = capture(bridge, ids, method, [HOOK], kept)[HOOK]
            for layer, states in zip(kept.layers, values, strict=True):
                check_values(states, self._first.dtype, f"layer {layer}")
            if number == 0:
                self._first[row, :, :length] = values
            if self._mean is not None and len(prompts) > 1:
                for layer, states in zip(self._mean[row, :, :length], values, strict=True):
                    layer[:] = states + (layer if number else 0.0)
                    if number + 1 == len(prompts):
                        layer /= len(prompts)
            del values  # before the next pass makes its own

    def hidden(self, *, mean: bool, both: bool, length: int | None = None) -> xr.DataArray:
        """States (method, layer, position, dim) of the first prompt or of the mean: of Origin, and of the method.

        length: of the pass, in tokens; None: all that is kept.
        """
        values = self._mean if mean else self._first
        if values is None:
            raise ValueError("no mean over prompts is kept")
        count = 2 if both else 1
        kept = (list(each) for each in (self.kept.layers, self.kept.positions, self.kept.dims))
        coords = dict(zip(("method", "layer", "position", "dim"), (list(LABELS[:count]), *kept), strict=True))
        return xr.DataArray(values[:count], coords, list(coords), name=HOOK).isel(position=slice(length))


def _room(shape: tuple[int, ...], dtype: type, folder: Path) -> np.memmap:
    """Zeros on disk. Raises OSError here, and not where they are written, if the disk is too small."""
    with tempfile.TemporaryFile(dir=folder) as file:
        layer = bytes(int(np.prod(shape[2:])) * np.dtype(dtype).itemsize)
        for _ in range(shape[0] * shape[1]):
            file.write(layer)
        file.flush()
        return np.memmap(file, dtype, "r+", shape=shape)
