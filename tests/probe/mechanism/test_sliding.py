"""Prompts that slide over a text, and positional vectors freed of what tokens say."""

import numpy as np
import pytest
import xarray as xr

from probe.capture.spec import Kept
from probe.mechanism.anatomy import moments
from probe.mechanism.anatomy.evidence import reliability, share
from probe.mechanism.anatomy.positional import nearest
from probe.mechanism.anatomy.sliding import levelled, sliding_windows

TRAINED, LENGTH, DIMS, STRIDE, TEXTS = 32, 96, 12, 8, 64


def test_every_second_run_is_of_the_other_half_and_each_half_is_slid_over():
    runs = sliding_windows([np.arange(30), np.arange(30, 61)], 10, 5, 3)
    assert [(run[0], run[-1], len(run)) for run in runs] == [
        (0, 9, 10),
        (30, 39, 10),
        (3, 12, 10),
        (33, 42, 10),
        (6, 15, 10),
    ]


def test_a_text_too_short_is_named_with_what_it_takes():
    assert len(sliding_windows([np.arange(32)], 10, 5, 3)) == 5
    with pytest.raises(ValueError, match=r"the text has 31 tokens; 5 runs of 10 that slide by 3 .* take 32; give"):
        sliding_windows([np.arange(31)], 10, 5, 3)


def read(windows, height):
    """Moments of states that are the token's own vector and, `height` high, one that turns with position."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(0, 1, (97, DIMS))
    angle = np.arange(LENGTH) * 2 * np.pi / LENGTH
    position = height * np.stack([np.cos(angle), np.sin(angle)], 1) @ np.eye(2, DIMS)
    found = moments.empty(Kept([0], range(LENGTH), range(DIMS)), TRAINED, attrs={"hook": "resid_post"})
    for ids in windows:
        moments.add(found, 0, vectors[ids] + position)
        moments.added(found)
    return found


def text():
    return [np.random.default_rng(1).integers(0, 97, 4000)]


def test_the_same_texts_say_more_where_they_slide():
    """Positional power 0.04 beside 12 of tokens: 64 separate texts see little of it, 64 that slide most."""
    apart = read([text()[0][start : start + LENGTH] for start in range(0, 61 * TEXTS, 61)], 0.2)
    slid = read(sliding_windows(text(), LENGTH, TEXTS, STRIDE), 0.2)
    whole = reliability(levelled(slid, STRIDE))["whole"].sel(band="beyond").item()
    assert whole > 0.7
    assert reliability(apart)["whole"].sel(band="beyond").item() < 0.4
    assert reliability(slid)["whole"].sel(band="beyond").item() < 0.6
    true = 0.2**2 * (1 - abs(np.exp(2j * np.pi * np.arange(TRAINED, LENGTH) / LENGTH).mean()) ** 2)
    found = share(levelled(slid, STRIDE))["share"].sel(band="beyond").item()
    assert found == pytest.approx(true / (true + DIMS), rel=0.4)


def test_nothing_is_found_where_nothing_depends_on_position():
    slid = levelled(read(sliding_windows(text(), LENGTH, TEXTS, STRIDE), 0.0), STRIDE)
    assert (reliability(slid)["whole"] < 0.4).all()
    assert (np.abs(share(slid)["share"]) < 3e-4).all()


def test_steps_of_a_stride_stay_as_they_were_and_the_moments_too():
    steps = np.repeat(np.random.default_rng(2).normal(size=(LENGTH // STRIDE, DIMS)), STRIDE, axis=0)
    made = moments.empty(Kept([0], range(LENGTH), range(DIMS)), TRAINED, attrs={"hook": "resid_post"})
    for _ in range(2):
        moments.add(made, 0, steps + np.tile(np.arange(STRIDE), LENGTH // STRIDE)[:, None])
        moments.added(made)
    before = made.copy(deep=True)
    found = moments.mean(levelled(made, STRIDE)).isel(layer=0)
    np.testing.assert_allclose(found, steps + np.arange(STRIDE).mean(), atol=1e-12)
    xr.testing.assert_identical(made, before)
    assert nearest(found.expand_dims("layer").assign_coords(layer=[0]), TRAINED)["cosine"].max() <= 1.0001


@pytest.mark.parametrize("positions", [range(20), [*range(30), *range(40, 60)]])
def test_positions_that_cannot_be_levelled_are_named(positions):
    made = moments.empty(Kept([0], positions, [0]), 10)
    with pytest.raises(ValueError, match="do not hold two whole strides of 8 without a gap after the first"):
        levelled(made, 8)
