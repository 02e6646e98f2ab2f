"""Damage is found as a store is read: seals of its attributes, check sums of its values, which must be finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing
from zarr.codecs import Crc32cCodec

from mesa.errors import Refused
from probe.files import SEAL, seal_of
from probe.store.regions import FILED, SUM, is_label, region_bytes

AGAIN = "capture it again with --overwrite"
_SLICES = 16
"""Runs of consecutive indices that are read one by one; of more, all between the first and the last."""


def check_whole(store: Path, groups: tuple[str, ...]) -> None:
    """Refused where a store, or one of its groups, has other attributes than when it was sealed.

    And where a chunk is missing of labels, or of an array in one of the groups: zarr would fill it in. An unfinished
    store has no seal.
    """
    for place in (store, *(store / name for name in groups)):
        group = zarr.open_group(place, mode="r", use_consolidated=False)
        if place == store and not group.attrs.get(SEAL):
            return
        if group.attrs.get(SEAL) != seal_of(place):
            whose = "its" if place == store else f"its {place.name}'s"
            raise Refused(f"{whose} attributes are not those that were sealed")
        for name, array in sorted(group.arrays()):
            if (place != store or is_label(name, array)) and array.nchunks_initialized < array.nchunks:
                raise Refused(f"a chunk of {name} is missing")


def with_checks(hidden: xr.Dataset, path: Path) -> xr.Dataset:
    """The store's dataset with its variables checked as their values are read: Refused, naming store and array."""
    group: Any = zarr.open_group(path, mode="r", use_consolidated=False)
    variables = {}
    for name, array in hidden.data_vars.items():
        lazy = indexing.LazilyIndexedArray(_CheckedArray(group[str(name)], path, str(name)))
        variables[name] = xr.Variable(array.dims, lazy, array.attrs, array.encoding)
    return hidden.assign(variables)


class _CheckedArray(BackendArray):
    def __init__(self, values: zarr.Array, path: Path, name: str) -> None:
        self.values, self.path, self.name = values, path, name
        self.shape, self.dtype = values.shape, values.dtype
        is_chunk = values.chunks[len(FILED) :] == values.shape[len(FILED) :]
        self.is_plain = is_chunk and values.compressors == (Crc32cCodec(),)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        try:
            is_basic = not any(isinstance(part, np.ndarray) for part in key)
            if self.is_plain and all(isinstance(at, int | np.integer) for at in key[: len(FILED)]):
                read = _read_region(self.path / self.name, self.values, key)
            elif self.values.shards is not None:
                read = _read_slices(self.values, key)
            else:
                read = np.asarray(self.values[key] if is_basic else self.values.oindex[key])
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            if not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            raise Refused(f"{self.path}: {self.name} is damaged ({reason}); {AGAIN}") from error
        if not _all_finite(read):
            raise Refused(f"{self.path}: {self.name} is damaged (not all values are finite); {AGAIN}")
        return read


def _read_region(folder: Path, values: zarr.Array, key: tuple[Any, ...]) -> np.ndarray:
    """`values.oindex[key]` in a region that is one chunk: in half of zarr's CPU time, which copies it once more."""
    inner = values.shape[len(FILED) :]
    file = folder.joinpath("c", *map(str, key[: len(FILED)]), *"0" * len(inner))
    whole = np.fromfile(file, np.uint8)
    if len(whole) != region_bytes(values):
        raise ValueError(f"{file.relative_to(folder)} has {len(whole)} bytes, not {region_bytes(values)}")
    chunk = whole[:-SUM]
    if google_crc32c.value(chunk) != int.from_bytes(whole[-SUM:].tobytes(), "little"):  # type: ignore[arg-type]
        raise ValueError("the check sum is another than when it was written")
    read = chunk.view(values.dtype.newbyteorder("<")).reshape(inner)
    for axis in reversed(range(len(inner))):
        read = read[(slice(None),) * axis + (key[len(FILED) + axis],)]
    return read


def _read_slices(values: zarr.Array, key: tuple[Any, ...]) -> np.ndarray:
    """`values.oindex[key]`, read by slices: within a shard, zarr reads indices value by value."""
    at = next((axis for axis, part in enumerate(key) if isinstance(part, np.ndarray)), None)
    if at is None:
        return np.asarray(values[key])
    indices, axis = key[at], sum(not isinstance(part, int | np.integer) for part in key[:at])
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    if not indices.size or len(runs) > _SLICES:
        first, stop = (indices.min(), indices.max() + 1) if indices.size else (0, 0)
        return np.take(_read_slices(values, (*key[:at], slice(first, stop), *key[at + 1 :])), indices - first, axis)
    slices = [slice(int(run[0]), int(run[-1]) + 1) for run in runs]
    return np.concatenate([_read_slices(values, (*key[:at], part, *key[at + 1 :])) for part in slices], axis)


def _all_finite(values: np.ndarray) -> bool:
    """Whether all values are finite; of float16 by their bits, which is many times faster."""
    if values.dtype != np.float16:
        return bool(np.isfinite(values).all())
    return bool((np.ascontiguousarray(values).view(np.uint16) & 0x7FFF).max(initial=0) < 0x7C00)
