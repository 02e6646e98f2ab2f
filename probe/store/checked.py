"""Stored values that are checked as they are read: against their check sums, and that they are numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing

from probe.store.place import Remote, zarr_place

_RUNS = 16
"""Runs of indices that are read one by one; of more, all between the first and the last."""
AGAIN = "capture it again with --overwrite"


class _Checked(BackendArray):
    """A stored array. Raises ValueError, naming store and array, for values that are damaged."""

    def __init__(self, values: zarr.Array, path: Path, name: str) -> None:
        self.values, self.path, self.name = values, path, name
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        try:
            plain = not any(isinstance(part, np.ndarray) for part in key)
            if self.values.shards is not None:
                found = _by_slices(self.values, key)
            else:
                found = np.asarray(self.values[key] if plain else self.values.oindex[key])
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            if isinstance(self.path, Remote) and not isinstance(error, ValueError):  # of the object store
                raise OSError(f"{self.path}: {self.name} could not be read ({reason}); try again") from error
            if not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            raise ValueError(f"{self.path}: {self.name} is damaged ({reason}); {AGAIN}") from error
        if not _all_finite(found):
            raise ValueError(f"{self.path}: {self.name} is damaged (not all values are finite); {AGAIN}")
        return found


def _by_slices(values: zarr.Array, key: tuple[Any, ...]) -> np.ndarray:
    """`values.oindex[key]`, read by slices: within a shard, zarr takes chosen indices value by value."""
    at = next((number for number, part in enumerate(key) if isinstance(part, np.ndarray)), None)
    if at is None:
        return np.asarray(values[key])
    chosen, axis = key[at], sum(not isinstance(part, int | np.integer) for part in key[:at])
    runs = np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1)
    if not chosen.size or len(runs) > _RUNS:
        first, last = (chosen.min(), chosen.max() + 1) if chosen.size else (0, 0)
        return np.take(_by_slices(values, (*key[:at], slice(first, last), *key[at + 1 :])), chosen - first, axis)
    spans = [slice(int(run[0]), int(run[-1]) + 1) for run in runs]
    return np.concatenate([_by_slices(values, (*key[:at], span, *key[at + 1 :])) for span in spans], axis)


def _all_finite(values: np.ndarray) -> bool:
    """Whether all are numbers; of halves, by their bits, which is many times faster."""
    if values.dtype != np.float16:
        return bool(np.isfinite(values).all())
    largest = (np.ascontiguousarray(values).view(np.uint16) & 0x7FFF).max(initial=0)
    return bool(largest < 0x7C00)


def checked(hidden: xr.Dataset, path: Path) -> xr.Dataset:
    """The store's dataset with its variables checked whenever some of their values are read."""
    group = zarr.open_group(zarr_place(path, reads=True), mode="r", use_consolidated=False)
    made = {}
    for name, array in hidden.data_vars.items():
        stored: Any = group[str(name)]
        lazy = indexing.LazilyIndexedArray(_Checked(stored, path, str(name)))
        made[name] = xr.Variable(array.dims, lazy, array.attrs, array.encoding)
    return hidden.assign(made)
