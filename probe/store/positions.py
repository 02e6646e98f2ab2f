"""Which token positions were captured: the runs of consecutive ones."""

from __future__ import annotations

import numpy as np


def run_bounds(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each position, the index range [start, stop) of the run of consecutive positions it is in."""
    edges = np.concatenate([[0], np.flatnonzero(np.diff(position) != 1) + 1, [len(position)]])
    lengths = np.diff(edges)
    return np.repeat(edges[:-1], lengths), np.repeat(edges[1:], lengths)


def captured_ranges(position: np.ndarray) -> list[tuple[int, int]]:
    """The runs of consecutive positions, as (first, last) with the last included."""
    start, stop = run_bounds(position)
    return [(int(position[a]), int(position[b - 1])) for a, b in sorted(set(zip(start, stop, strict=True)))]
