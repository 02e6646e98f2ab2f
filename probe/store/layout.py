"""How a region, the positions and dims of one (method, prompt, layer), is cut into chunks, and what its file weighs."""

from __future__ import annotations

import math

import numpy as np
import zarr

WHOLE = 64 * 2**20
"""Bytes up to which a region is one chunk: it is read about as fast as a slice of it."""
_CHUNK = (1024, 256)
"""Positions and dims of a chunk of larger ones, about: half a MiB in float16.

Neither one dim over all positions nor one position over all dims reads much beside itself (benchmarks/slices.py).
"""
_SUM, _ENTRY = 4, 16  # bytes of a check sum, and of a chunk's place in its file


def layout(positions: int, dims: int, itemsize: int) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """Chunk of a region, and the file that holds its chunks, (positions, dims); None: a file is one chunk."""
    if positions * dims * itemsize <= WHOLE:
        return (positions, dims), None
    counts = [math.ceil(size / about) for size, about in zip((positions, dims), _CHUNK, strict=True)]
    chunk = tuple(math.ceil(size / count) for size, count in zip((positions, dims), counts, strict=True))
    return (chunk[0], chunk[1]), (chunk[0] * counts[0], chunk[1] * counts[1])


def region_bytes(array: zarr.Array) -> int:
    """What the file of a whole region weighs: nothing is compressed."""
    chunk = int(np.prod(array.chunks)) * array.dtype.itemsize
    if array.shards is None:
        return chunk + (_SUM if array.compressors else 0)
    count = int(np.prod([shard // each for shard, each in zip(array.shards, array.chunks, strict=True)]))
    return count * (chunk + _SUM + _ENTRY) + _SUM
