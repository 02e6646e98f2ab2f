"""Single dims of hidden states over position, in memory once they were read: a changed rule asks for the same again."""

from __future__ import annotations

import numpy as np
import xarray as xr

_MOST_BYTES = 64 * 2**20


class Columns:
    """The states (method, layer, position, dim) of one prompt, dim by dim; threads may read other layers at once."""

    def __init__(self, hidden: xr.DataArray) -> None:
        self.hidden, self.known, self.bytes = hidden, {}, 0

    def read(self, method: int, layer: int, dims: np.ndarray) -> np.ndarray:
        """Values (dim, position), float32 or wider, at a method's number, a layer's label and the dims' numbers."""
        known = self.known.get((method, layer), {})
        lacking = [dim for dim in dims.tolist() if dim not in known]
        if lacking:
            stored = self.hidden.sel({"layer": layer}).isel({"method": method, "dim": lacking})
            read = np.ascontiguousarray(stored.transpose("dim", "position").values)
            known = known | dict(zip(lacking, read, strict=True))
            if self.bytes + read.nbytes <= _MOST_BYTES:
                self.bytes += read.nbytes
                self.known[method, layer] = known
        found = np.stack([known[dim] for dim in dims.tolist()])
        return found.astype(np.promote_types(found.dtype, np.float32), copy=False)
