"""Streamed moments against numpy's over all texts at once; texts that slide, and moments freed of what tokens say."""

import numpy as np
import pytest
import xarray as xr

from probe.attention import moments
from probe.attention.moments import levelled, sliding_windows
from probe.attention.positional import nearest, reliability, share
from probe.capture.spec import Selection

TRAINED, LENGTH, DIMS, STRIDE, TEXTS = 32, 96, 12, 8, 64


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_streaming_equals_numpy_over_all_texts(dtype, tolerance):
    states = np.random.default_rng(0).normal(1, 2, (5, 2, 20, 6))  # (text, layer, position, dim)
    stored = moments.empty(Selection([1, 2], range(20, 40), range(6)), 24, dtype, {"hook": "resid_post"})
    for text in states:
        moments.add(stored, text)
    np.testing.assert_allclose(moments.mean(stored), states.mean(0), atol=tolerance)
    np.testing.assert_allclose(stored["half_mean"][1], states[1::2].mean(0), atol=tolerance)
    squares = ((states[::2] - states[::2].mean(0)) ** 2).sum(0)
    np.testing.assert_allclose(
        stored["half_squares_by_dim"][0].sel(band="beyond"), squares[:, 4:].sum(1), rtol=max(tolerance, 1e-9)
    )
    assert stored["half_mean"].dtype == dtype
    assert stored["count"].values.tolist() == [3, 2]
    assert stored.attrs["hook"] == moments.mean(stored).name == "resid_post"


def test_stored_moments_are_continued_as_in_one_go(tmp_path):
    states, kept = np.random.default_rng(1).normal(0, 1, (5, 1, 8, 3)), Selection([0], range(8), range(3))
    whole, part = moments.empty(kept, 4), moments.empty(kept, 4)
    for text in states:
        moments.add(whole, text)
    for text in states[:3]:
        moments.add(part, text)
    moments.save(part, tmp_path / "origin.npz")
    assert moments.texts_in(tmp_path / "origin.npz") == 3
    stored = moments.load(tmp_path / "origin.npz")
    xr.testing.assert_identical(stored, part)
    for text in states[3:]:
        moments.add(stored, text)
    xr.testing.assert_identical(stored, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["origin.npz"]


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
    means = moments.empty(Selection([0], range(LENGTH), range(DIMS)), TRAINED, attrs={"hook": "resid_post"})
    for ids in windows:
        moments.add(means, [vectors[ids] + position])
    return means


def text():
    return [np.random.default_rng(1).integers(0, 97, 4000)]


def test_the_same_texts_say_more_where_they_slide():
    """Positional power 0.04 beside 12 of tokens: 64 separate texts see little of it, 64 that slide most."""
    apart = read([text()[0][start : start + LENGTH] for start in range(0, 61 * TEXTS, 61)], 0.2)
    slid = read(sliding_windows(text(), LENGTH, TEXTS, STRIDE), 0.2)
    whole = reliability(levelled(slid, STRIDE)).sel(band="beyond").item()
    assert whole > 0.7
    assert reliability(apart).sel(band="beyond").item() < 0.4
    assert reliability(slid).sel(band="beyond").item() < 0.6
    true = 0.2**2 * (1 - abs(np.exp(2j * np.pi * np.arange(TRAINED, LENGTH) / LENGTH).mean()) ** 2)
    means = share(levelled(slid, STRIDE)).sel(band="beyond").item()
    assert means == pytest.approx(true / (true + DIMS), rel=0.4)


def test_nothing_is_found_where_nothing_depends_on_position():
    slid = levelled(read(sliding_windows(text(), LENGTH, TEXTS, STRIDE), 0.0), STRIDE)
    assert (reliability(slid) < 0.4).all()
    assert (np.abs(share(slid)) < 3e-4).all()


def test_steps_of_a_stride_stay_as_they_were_and_the_moments_too():
    steps = np.repeat(np.random.default_rng(2).normal(size=(LENGTH // STRIDE, DIMS)), STRIDE, axis=0)
    sums = moments.empty(Selection([0], range(LENGTH), range(DIMS)), TRAINED, attrs={"hook": "resid_post"})
    for _ in range(2):
        moments.add(sums, [steps + np.tile(np.arange(STRIDE), LENGTH // STRIDE)[:, None]])
    before = sums.copy(deep=True)
    means = moments.mean(levelled(sums, STRIDE)).isel(layer=0)
    np.testing.assert_allclose(means, steps + np.arange(STRIDE).mean(), atol=1e-12)
    xr.testing.assert_identical(sums, before)
    assert nearest(means.expand_dims("layer").assign_coords(layer=[0]), TRAINED)["cosine"].max() <= 1.0001


@pytest.mark.parametrize("positions", [range(20), [*range(30), *range(40, 60)]])
def test_positions_that_cannot_be_levelled_are_named(positions):
    sums = moments.empty(Selection([0], positions, [0]), 10)
    with pytest.raises(ValueError, match="do not hold two whole strides of 8 without a gap after the first"):
        levelled(sums, 8)
