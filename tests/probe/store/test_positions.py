"""Runs of captured positions, written out."""

import numpy as np

from probe.store.select import captured_ranges, run_bounds

POSITION = np.array([3, 4, 5, 9, 11, 12])


def test_ranges_end_with_the_last_position_of_a_run():
    assert captured_ranges(POSITION) == [(3, 5), (9, 9), (11, 12)]


def test_bounds_are_indices_and_half_open():
    start, stop = run_bounds(POSITION)
    assert start.tolist() == [0, 0, 0, 3, 4, 4]
    assert stop.tolist() == [3, 3, 3, 4, 6, 6]
