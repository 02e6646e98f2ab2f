"""The regions of a store, one file for each (method, prompt, layer): chunks, sizes, and which are missing."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import zarr

from mesa.errors import Refused

FILED = ("method", "prompt", "layer")
"""The first dimensions of every variable; a region holds what has one label of each."""
WHOLE = 64 * 2**20
"""Bytes up to which a region is one chunk: it is read about as fast as a slice of it."""
_CHUNK = (1024, 256)
"""Positions and dims of a chunk of larger regions, about: half a MiB in float16; of further axes before them one.

Neither one dim over all positions nor one position over all dims reads much beside itself (benchmarks/slices.py).
"""
SUM, _ENTRY = 4, 16
"""Bytes of a check sum, and of a chunk's entry in the index of its file."""


Shape = tuple[int, ...]


def layout(region: Shape, itemsize: int) -> tuple[Shape, Shape | None]:
    """Shape of a region's chunks, and of the shard that holds them; None: the region is one chunk."""
    if math.prod(region) * itemsize <= WHOLE:
        return region, None
    about = (*(1,) * (len(region) - len(_CHUNK)), *_CHUNK)[-len(region) :]
    counts = [math.ceil(size / each) for size, each in zip(region, about, strict=True)]
    chunk = tuple(math.ceil(size / count) for size, count in zip(region, counts, strict=True))
    return chunk, tuple(size * count for size, count in zip(chunk, counts, strict=True))


def is_label(name: str, array: zarr.Array) -> bool:
    """Whether the array holds the labels of the dimension of its name."""
    return getattr(array.metadata, "dimension_names", None) == (name,)


def variables(group: zarr.Group) -> dict[str, zarr.Array]:
    """The arrays of a store that are not labels, by name."""
    return {name: array for name, array in sorted(group.arrays()) if not is_label(name, array)}


def region_bytes(array: zarr.Array) -> int:
    """Size of a whole region's file: nothing is compressed."""
    chunk = math.prod(array.chunks) * array.dtype.itemsize
    if array.shards is None:
        return chunk + (SUM if array.compressors else 0)
    count = math.prod(array.shards) // math.prod(array.chunks)
    return count * (chunk + SUM + _ENTRY) + SUM


def stored_array(group: zarr.Group, name: str) -> zarr.Array:
    """The array `name` of a store; Refused lists those that it holds."""
    array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise Refused(f"{name!r} is not in the store, which holds {sorted(group.array_keys())}")
    return array


def stored_labels(group: zarr.Group, name: str) -> list:
    """The labels of a dimension."""
    return np.asarray(stored_array(group, name)[:]).tolist()


def missing_regions(store: Path) -> list[str]:
    """The regions without a file of the right size: as nothing is compressed, a region cut short shows."""
    if not (store / "zarr.json").exists():
        return ["everything"]
    return [
        f"{hook} of method {method!r}, prompt {prompt!r}, layer {layer}"
        for hook, method, prompt, layer, _, is_whole in _regions(store)
        if not is_whole
    ]


def list_missing(missing: Sequence[str]) -> str:
    """What `missing_regions` returns, in one line; empty if nothing is missing."""
    return f"{len(missing)} region(s) missing or cut short, the first is {missing[0]}" if missing else ""


def whole_passes(store: Path) -> set[tuple[str, str]]:
    """The (method, prompt) pairs all of whose regions are whole."""
    regions = list(_regions(store))
    return {region[1:3] for region in regions} - {region[1:3] for region in regions if not region[-1]}


def region_sums(store: Path) -> Iterator[bytes]:
    """The check sum at the end of every region's file, which changes with its values.

    A sharded file ends with the sum of its index alone: its time of writing follows.
    """
    names = [name for *_, name, _ in _regions(store)]
    for path in map(store.joinpath, names):
        with path.open("rb") as file:
            file.seek(-SUM, io.SEEK_END)
            yield file.read(SUM)
        if path.stat().st_size > WHOLE:
            yield str(path.stat().st_mtime_ns).encode()


def _regions(store: Path) -> Iterator[tuple[str, str, str, int, str, bool]]:
    """Hook, method, prompt, layer, file name of every region, and whether the file has the right size."""
    group = zarr.open_group(store, mode="r", use_consolidated=False)
    labels = [stored_labels(group, name) for name in FILED]
    for hook, array in variables(group).items():
        size = region_bytes(array)
        for index in np.ndindex(*map(len, labels)):
            name = "/".join([hook, "c", *map(str, index), *"0" * (array.ndim - len(index))])
            path = store / name
            stored = path.stat().st_size if path.exists() else None
            method, prompt, layer = (names[i] for names, i in zip(labels, index, strict=True))
            yield hook, method, prompt, layer, name, stored == size
