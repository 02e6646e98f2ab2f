"""Moments of synthetic states: a known vector for each position, and what differs by text."""

import numpy as np

from probe.attention import moments
from probe.capture.spec import Selection

TRAINED, LENGTH, DIMS = 128, 384, 24


def waves(position, seed=0):
    """(position, DIMS): vectors that turn with position, slowly enough that one is most like its neighbours."""
    rng = np.random.default_rng(seed)
    rates, phases = np.exp(rng.uniform(np.log(0.01), np.log(0.3), DIMS)), rng.uniform(0, 6, DIMS)
    return np.sin(np.asarray(position)[:, None] * rates + phases)


def walks(rng, noise, length=LENGTH):
    """One text: noise whose neighbours are alike, as a topic's are, of variance noise^2 at every position."""
    white = rng.normal(0, noise, (length, DIMS))
    for at in range(1, length):
        white[at] = 0.9 * white[at - 1] + np.sqrt(1 - 0.9**2) * white[at]
    return white


def planted(vectors, texts=32, noise=1.0, seed=0, trained=TRAINED):
    """Moments over `texts` texts of layers with `vectors` (layer, position, dim)."""
    rng = np.random.default_rng(seed)
    layers, length, dims = vectors.shape
    found = moments.empty(Selection(range(layers), range(length), range(dims)), trained, attrs={"hook": "resid_post"})
    for _ in range(texts):
        moments.add(found, [vector + walks(rng, noise, length) for vector in vectors])
    return found
