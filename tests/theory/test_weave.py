"""The weave functions against integers written out by hand."""

import numpy as np
import pytest
import torch

from theory import weave

DISTANCES = list(range(11))
CASES = {
    "rerope": (lambda r: weave.rerope(r, 4), [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
    "stair": (lambda r: weave.stair(r, 4, 2), [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7]),
    "stair of width 3": (lambda r: weave.stair(r, 2, 3), [0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 5]),
    "stair of width 1 is plain": (lambda r: weave.stair(r, 4, 1), DISTANCES),
}


@pytest.mark.parametrize("name", list(CASES))
def test_weaves_serve_ints_arrays_and_tensors(name):
    function, expected = CASES[name]
    assert [function(r) for r in DISTANCES] == expected
    assert function(np.array(DISTANCES)).tolist() == expected
    assert function(torch.tensor(DISTANCES)).tolist() == expected


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_self_extend_groups_positions_beyond_the_window(kind):
    positions = kind(list(range(8)))
    woven = weave.self_extend(positions[:, None], positions[None, :], 3, 2)
    causal = [[int(woven[t, i]) for i in range(t + 1)] for t in range(8)]
    assert causal == [
        [0],
        [1, 0],
        [2, 1, 0],
        [3, 2, 1, 0],  # 3 // 2 - 0 // 2 + 3 - 1 = 3
        [4, 4, 2, 1, 0],
        [4, 4, 3, 2, 1, 0],
        [5, 5, 4, 4, 2, 1, 0],
        [5, 5, 4, 4, 3, 2, 1, 0],
    ]
