"""Phases by hand for a head of 4 dims, M = 8: pair 0 turns by 1 a token and has gone round, pair 1 by 0.5, 3.5 at most.

So pair 1 meets a new phase at relative positions 8 to 12 (4 to 6) and at 13 is back among those it met
(6.5 - 2 pi = 0.22).
"""

import numpy as np
from transformers import LlamaConfig

import mesa
from research.phases import Phases, first_unmet, unmet_by_position

TRAINED = 8
CONFIG = LlamaConfig(
    hidden_size=8, head_dim=4, num_attention_heads=2, max_position_embeddings=TRAINED,
    rope_parameters={"rope_type": "default", "rope_theta": 4.0},  # 4 ** -(2 m / 4): 1, 0.5
)  # fmt: skip


def method(name, **parameters):
    return mesa.make(name, TRAINED, **parameters)


def unmet(frequency, relative, name="origin", own=None):
    """Whether pair 1 is new at these relative positions; pair 0 has gone round."""
    frequency, own = np.array(frequency), np.array(own or frequency)
    phases = Phases.of(method(name).plan(16), frequency, own, TRAINED)
    assert phases.open_pairs.tolist() == [1]
    return phases.unmet(np.array(relative), 1).tolist()


def test_phases_by_hand():
    new = [r for r in range(40) if unmet([1.0, 0.5], r)]
    assert new == [8, 9, 10, 11, 12, 20, 21, 22, 23, 24, 25, 33, 34, 35, 36, 37]  # a round is 12.57 tokens
    assert unmet([1.0, 0.5], [-1, 7, 7.2]) == [False, False, True]
    # n = 16 = 2 M: the base grows, pair 1 of 2 is slowed by the factor 4 * 2 - 3 = 5: 35 is the last phase it has met
    assert unmet([1.0, 0.5], [35, 36, 62, 63], "dynamic-ntk") == [False, True, True, False]  # 6.3 is round again
    assert unmet([1.0, 0.5], [3, 4, 6, 7], own=[1.0, 1.0]) == [False, True, True, False]  # another turns twice as fast


def test_share_by_position_by_hand():
    """Query t of Origin sees t + 1 keys, t - 7 of them at distance 8 to 12, five at most; one pair of two counts."""
    share = unmet_by_position(method("origin"), CONFIG, 16)
    np.testing.assert_allclose(share, [min(5, max(0, t - 7)) / (2 * (t + 1)) for t in range(16)])
    assert first_unmet(method("origin"), CONFIG, 16, share=0.18) == 12  # 5 of 26; 4 of 24 at 11
    assert first_unmet(method("origin"), CONFIG, 16, share=0.2) is None
