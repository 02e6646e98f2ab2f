"""M is estimated from planted scores, and not where they cannot tell it."""

import json

import numpy as np
import pytest

from probe.thresholds.window_estimate import estimate_window


def planted(window, slope=0.004, texts=20, noise=0.03, gain=0.4, seed=0):
    """NLL that falls with context up to `window` tokens and rises beyond, with noise that texts share and their own."""
    rng, shared = np.random.default_rng(seed), np.random.default_rng(seed + 1).normal(0, 0.8, texts)
    tried = []

    def measure(length):
        tried.append(length)
        mean = 2.4 + gain * np.exp(-min(length, window) / 100) + slope * max(0, length - window)
        return mean + shared + rng.normal(0, noise, texts)

    return measure, tried


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("window", [200, 256, 1000, 4096])
def test_a_planted_window_is_estimated(window, seed):
    measure, tried = planted(window, seed=seed)
    estimate = estimate_window(measure, 4 * window)
    assert window - window // 4 <= estimate.works <= window + window // 8 + 30
    assert estimate.works < estimate.fails <= estimate.works + max(1, estimate.works // 16) + 64
    assert len(tried) <= 16
    assert tried == list(dict.fromkeys(tried))
    assert f"M is at most about {estimate.works} tokens" in str(estimate)


def test_a_model_that_never_gets_worse_has_a_window_of_the_longest_or_more():
    estimate = estimate_window(planted(2**20)[0], 2048)
    assert (estimate.works, estimate.fails) == (2048, None)
    assert "M is 2048 or more, or the positions extrapolate" in str(estimate)


def test_chance_noise_and_a_window_below_the_shortest_cannot_tell():
    flat = estimate_window(planted(2**20, gain=0)[0], 2048, chance=2.0)
    assert (flat.works, str(flat)) == (None, "Cannot tell M: the model is at chance at every length (20 texts).")
    noisy = estimate_window(planted(256, texts=2, noise=3.0)[0], 1024)
    differ = "Cannot tell M: the texts differ too much; give more with --samples (2 texts)."
    assert (noisy.works, str(noisy)) == (None, differ)
    short = estimate_window(planted(16, gain=0)[0], 1024)
    assert "128 tokens are worse than 64, the shortest context tried; M is below 128" in str(short)
    for estimate in (flat, noisy, short):
        record = json.loads(json.dumps(estimate.record(), allow_nan=False))
        assert "compared" not in record  # they are the lengths
        assert [row["length"] for row in record["lengths"]] == [at.length for at in estimate.compared]
        assert len(estimate.table().splitlines()) == 1 + len(estimate.compared)


def test_what_the_texts_leave_open_is_not_said_to_bound_the_window():
    """From 200 tokens on the texts differ too much, and at 2048 all are worse: M may lie anywhere between."""
    apart = np.array([-3.0, 3.0, -3.0, 3.0])

    def measure(length):
        return 2.0 + (2.0 if length >= 2000 else 0.0) + apart * (200 < length < 2000)

    estimate = estimate_window(measure, 2048)
    assert (estimate.works, estimate.fails) == (128, 2048)
    assert str(estimate).startswith("M is below 2048 tokens")
    assert "What lies between cannot be told from 4 texts" in str(estimate)
    assert "at most about" not in str(estimate)
    beyond = estimate_window(measure, 1024)
    assert (beyond.works, beyond.fails) == (128, None)
    assert "What lies beyond, up to 1024, cannot be told." in str(beyond)
