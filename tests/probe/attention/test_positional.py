"""Positional vectors planted among texts are recovered, and noise alone gives none."""

import numpy as np
import positions
import pytest
import xarray as xr
from positions import DIMS, LENGTH, TRAINED, planted, walks, waves

from probe.attention import moments
from probe.attention.positional import (
    components,
    interpolation,
    mean_vector,
    nearest,
    packed,
    reliability,
    share,
)
from probe.thresholds.drift import find_drift
from probe.thresholds.predict import false_predictions, negative_control
from probe.thresholds.search import CrossingRule, search

T = np.arange(LENGTH)
RULE = CrossingRule.scaled(TRAINED)


def ramp(height):
    """(LENGTH, DIMS): one direction, along which states go once around the window and back."""
    axis = np.random.default_rng(5).normal(size=DIMS)
    return height * np.cos(2 * np.pi * T / TRAINED)[:, None] * (axis / np.linalg.norm(axis))


def test_the_share_that_is_positional_is_recovered():
    """Variance 4^2 / 2 along one direction against 24 dims of 1. Uncorrected noise would add 0.03 to nothing."""
    result = share(planted(np.stack([ramp(4.0), ramp(0.0)]), texts=32))
    assert result.sel(layer=0).values == pytest.approx(8 / (8 + DIMS), abs=0.02)
    assert result.sel(layer=1).values == pytest.approx(0, abs=0.006)
    assert result["band"].values.tolist() == ["inside", "beyond"]


def test_bands_have_shares_of_their_own():
    vectors = ramp(4.0) * (T >= TRAINED)[:, None]
    result = share(planted(vectors[None], texts=16)).isel(layer=0)
    assert abs(float(result.sel(band="inside"))) < 0.02
    assert float(result.sel(band="beyond")) == pytest.approx(0.25, abs=0.03)


def test_reliability_is_power_over_power_and_noise():
    """Power 8 on average against noise 24 / 32; a layer without positional vectors has none."""
    whole = reliability(planted(np.stack([ramp(4.0), ramp(0.0)]), texts=32, seed=3))
    assert whole.sel(layer=0).values == pytest.approx(32 / 35, abs=0.03)
    assert (whole.sel(layer=1) < 0.5).all()


def test_a_step_at_the_window_is_no_agreement_inside_it():
    """Inside nothing depends on position; beyond, every vector lies apart from those inside."""
    step = 3 * np.random.default_rng(1).normal(size=DIMS) * (T >= TRAINED)[:, None]
    whole = reliability(planted(step[None], texts=32)).sel(layer=0)
    assert whole.sel(band="inside") < 0.5
    assert whole.sel(band="beyond") > 0.9


def test_the_first_component_is_the_planted_direction():
    axis = ramp(1.0)[0] / np.linalg.norm(ramp(1.0)[0])
    p = moments.mean(planted((T[:, None] / TRAINED * 20 * axis)[None], texts=16))
    result = components(p, TRAINED)
    along = (p - p.sel(position=slice(1, TRAINED - 1)).mean("position")).isel(layer=0).values @ axis
    np.testing.assert_allclose(result["score"].sel(layer=0, component=1), along, atol=0.5)
    # in-window variance 20^2 / 12 of it, 24 / 16 of noise at most
    assert result["share"].sel(layer=0, component=1) == pytest.approx(1 / (1 + 12 / 400 * DIMS / 16), abs=0.02)
    with pytest.raises(ValueError, match=r"1 positions in \[1, 2\) were collected; 2 components take more"):
        components(p, 2)


def test_what_comes_back_beyond_the_window_is_found_inside_it():
    """Position 128 + n is as n inside; from 256 on it is as nothing met before."""
    back = np.where(T[:, None] < 256, waves(T % TRAINED), waves(T, seed=9))
    p = moments.mean(planted(back[None], texts=64, noise=0.3))
    near = nearest(p - mean_vector(p, upto=TRAINED), TRAINED)
    assert near["position"].values.tolist() == list(range(TRAINED, LENGTH))
    again = near.isel(layer=0).sel(position=slice(140, 250))
    assert (np.abs(again["nearest"] - (again["position"] - TRAINED)) <= 1).all()
    assert again["cosine"].min() > 0.95
    assert near["cosine"].sel(position=slice(256, None)).max() < 0.9
    coarse = nearest(p - mean_vector(p, upto=TRAINED), TRAINED, step=8)
    assert set(np.unique(coarse["nearest"])) <= set(range(1, TRAINED, 8))


def test_pieces_give_the_same_as_the_whole(monkeypatch):
    m = moments.mean(planted(waves(T)[None], texts=2))
    whole = nearest(m, TRAINED)
    monkeypatch.setattr("probe.attention.positional._CHUNK_BYTES", 4 * TRAINED * 7)
    xr.testing.assert_allclose(nearest(m, TRAINED), whole, atol=1e-6)


def test_u_leaves_out_the_first_token():
    p = xr.DataArray(np.array([[[9.0], [1.0], [2.0], [6.0]]]), dims=("layer", "position", "dim")).assign_coords(
        position=range(4)
    )
    assert mean_vector(p).item() == 3
    assert mean_vector(p, upto=3).item() == 1.5


@pytest.mark.parametrize("slowed", [1, 4, 8])
def test_the_interpolation_ratio_is_recovered(slowed):
    """A method under which position t is as t / 4 was to the model as trained, against that one's own positions."""
    trained = planted(waves(T)[None], texts=16, noise=0.5)
    slow = planted(waves(T / slowed)[None], texts=16, noise=0.5, seed=1)
    u = mean_vector(moments.mean(trained), upto=TRAINED)
    near = nearest(moments.mean(slow) - u, TRAINED, among=moments.mean(trained) - u, begin=2)
    result = interpolation(near.sel(position=slice(None, TRAINED * min(slowed, 3) - 1))).isel(layer=0)
    assert result["low"] <= 1 / slowed <= result["high"]
    assert result["high"] - result["low"] < 0.05
    assert result["slope"] == pytest.approx(1 / slowed, abs=0.02)


def test_noise_has_no_slope():
    p = moments.mean(planted(np.zeros((1, LENGTH, DIMS)), texts=8))
    result = interpolation(nearest(p - mean_vector(p), TRAINED + 32, begin=TRAINED + 32)).isel(layer=0)
    assert result["low"] < 0 < result["high"]
    with pytest.raises(ValueError, match="3 positions are too few for a slope; give at least 4"):
        interpolation(nearest(p, LENGTH - 3))


def broken(texts):
    """Twelve of 24 dims step by 2 from 1.5 M on, under `origin`; under `mended` nothing depends on position."""
    step = 2 * ((T >= 1.5 * TRAINED)[:, None] & (np.arange(DIMS) < 12))
    level = np.random.default_rng(2).normal(0, 1, DIMS)
    vectors = {"origin": level + step, "mended": np.broadcast_to(level, (LENGTH, DIMS))}
    return {name: planted(each[None], texts=texts, seed=row) for row, (name, each) in enumerate(vectors.items())}


def test_thresholds_are_found_on_the_mean_and_not_by_chance_or_inside():
    by_method = broken(64)
    result = search(packed(by_method), TRAINED, RULE)
    assert int(result["qualified"]) == 12
    assert result["observable"].isel(layer=0).values[:12].all()
    crossing = result["crossing"].sel({"method": "origin"}).isel(layer=0).values[:12]
    assert ((crossing >= 1.5 * TRAINED - 2) & (crossing <= 1.5 * TRAINED + 8)).all()
    assert np.isnan(result["crossing"].sel({"method": "mended"}).isel(layer=0)[:12]).mean() > 0.8
    assert int(search(packed(by_method, chance=True), TRAINED, RULE)["qualified"]) == 0
    control = negative_control(packed(by_method), TRAINED, RULE)
    assert (control["qualified"] <= 1).all()
    assert not false_predictions(control).any()


def test_one_text_does_not_give_what_the_mean_gives():
    rng = np.random.default_rng(0)
    step = 2 * ((T >= 1.5 * TRAINED)[:, None] & (np.arange(DIMS) < 12))
    one = packed(broken(2)).sel({"method": ["origin"]}).copy(data=(step + walks(rng, 1.0))[None, None])
    assert int(search(one, TRAINED, RULE)["qualified"]) == 0


def test_drift_is_found_on_the_mean_and_not_by_chance():
    by_method = broken(64)
    result = find_drift(packed(by_method), TRAINED).isel(layer=0)
    assert abs(float(result["first"].sel({"method": "origin"})) - 1.5 * TRAINED) <= 2
    assert np.isnan(result["first"].sel({"method": "mended"}))
    assert np.isnan(find_drift(packed(by_method, chance=True), TRAINED)["first"]).all()


def test_chance_has_the_noise_of_the_mean():
    """Its variance over positions and dims is that of p about the vectors: 1 / texts, for halves of 3 and 2 as well."""
    for texts in (5, 16):
        sums = planted(np.zeros((1, LENGTH, DIMS)), texts=texts)
        noise, p = packed({"origin": sums}, chance=True), packed({"origin": sums})
        assert float(noise.var()) == pytest.approx(1 / texts, rel=0.25)
        assert float(p.var()) == pytest.approx(1 / texts, rel=0.25)
        assert noise.dims == p.dims == ("method", "layer", "position", "dim")
        assert noise.name == "resid_post"


def test_too_few_texts_are_named():
    vectors = np.zeros((1, 8, 2)) + np.arange(8)[:, None]
    few = moments.empty(positions.Selection([0], range(8), range(2)), 4)
    moments.add(few, vectors)
    with pytest.raises(ValueError, match="1 texts were read; noise takes one in each half"):
        packed({"origin": few}, chance=True)
    with pytest.raises(ValueError, match="1 texts were read; the share of variance takes at least 4"):
        share(few)
    with pytest.raises(ValueError, match=r"no positions from 9 on, or none in \[1, 9\)"):
        nearest(moments.mean(few), 9)
