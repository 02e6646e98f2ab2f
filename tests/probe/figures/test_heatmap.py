"""Pooling keeps spikes, signs and labels; images have one pixel a cell."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings, strategies as st
from matplotlib.image import imread
from synthetic import hidden_states
from xarray.backends import BackendArray
from xarray.core import indexing

from probe.figures import heatmap
from probe.figures.export import heatmap_export
from probe.figures.static import LEFT, TOP, write_png


def panel(values, positions, bounds, first_dim=0):
    values = np.asarray(values, dtype=np.float32)
    coords = {"layer": range(len(values)), "dim": first_dim + np.arange(values.shape[1]), "position": positions}
    hidden = xr.DataArray(values, dims=("layer", "dim", "position"), coords=coords, name="resid_post")
    return heatmap.regions(hidden, bounds)


def test_regions_are_half_open_and_numbered():
    both = panel(np.zeros((1, 1, 10)), range(10), [(0, 3), (7, 9)])
    assert both["position"].values.tolist() == [0, 1, 2, 7, 8]
    assert both["region"].values.tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="region 20-29 holds no captured position; captured: 0-9"):
        panel(np.zeros((1, 1, 10)), range(10), [(20, 30)])
    with pytest.raises(ValueError, match="region 5-10 ends behind the last captured position; captured: 0-9"):
        panel(np.zeros((1, 1, 10)), range(10), [(5, 11)])


def test_a_region_is_split_where_positions_were_not_captured():
    both = panel(np.zeros((1, 1, 8)), [0, 1, 2, 3, 7, 8, 9, 10], [(1, 9), (9, 11)])
    assert both["position"].values.tolist() == [1, 2, 3, 7, 8, 9, 10]
    assert both["region"].values.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_default_regions_lie_around_m_and_at_the_end():
    assert heatmap.default_regions(np.arange(1024), 256) == [(128, 384), (768, 1024)]
    assert heatmap.default_regions(np.arange(400), 256) == [(128, 384), (384, 400)]
    assert heatmap.default_regions(np.arange(300), 256) == [(128, 300)]
    assert heatmap.default_regions(np.arange(1000, 1100), 256) == [(1000, 1100)]  # all beyond, or before
    assert heatmap.default_regions(np.arange(5, 7), 256) == [(5, 7)]
    assert heatmap.default_regions(np.arange(300, 1000), 256) == [(300, 384), (744, 1000)]
    assert heatmap.default_regions(np.r_[4000:5001, 7000:8001], 4096) == [(4000, 5001), (7000, 8001)]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 30), st.integers(1, 30), st.integers(1, 3), st.integers(4, 90), st.integers(0, 99)
)
def test_pooling_agrees_with_a_plain_loop(dims, first, second, layers, cells, seed):
    values = np.random.default_rng(seed).normal(size=(layers, dims, first + second))
    both = panel(values, [*range(first), *range(100, 100 + second)], [(0, 100), (100, 100 + second)])
    pooled = heatmap.pool(both, cells)
    assert pooled.size <= max(cells, 2 * layers)
    dim, position = both["dim"].values, both["position"].values
    for row, (top, bottom) in enumerate(zip(pooled["dim"].values, pooled["dim_last"].values, strict=True)):
        for column, (left, right) in enumerate(
            zip(pooled["position"].values, pooled["position_last"].values, strict=True)
        ):
            block = both.values[:, (dim >= top) & (dim <= bottom)][..., (position >= left) & (position <= right)]
            for got, cell in zip(pooled.values[:, row, column], block.reshape(layers, -1), strict=True):
                assert got == cell[np.abs(cell).argmax()]


def test_layer_limits_are_robust_and_do_not_mix_layers():
    values = np.stack([np.full((10, 100), -2.0), np.full((10, 100), 6.0), np.zeros((10, 100))])
    values[0, 0, 0] = 500
    limits = heatmap.layer_limits(panel(values, range(100), [(0, 100)]))
    assert limits.values.tolist() == [2, 6, 1]


def test_images_have_one_pixel_a_cell_red_above_zero(tmp_path):
    values = [[[5, -5, 0, 5]], [[-1, 1, 0, 0]]]
    limits = xr.DataArray([5.0, 2.0], dims="layer")
    write_png(panel(values, [0, 1, 8, 9], [(0, 2), (8, 10)]), tmp_path / "panel.png", limits)
    image = (imread(tmp_path / "panel.png")[..., :3] * 255).round().astype(int)
    axes = image.copy()
    axes[TOP : TOP + 4, LEFT : LEFT + 6] = axes[0, 0]
    assert (axes != axes[0, 0]).any()  # labels stand about the cells
    image = image[TOP : TOP + 4, LEFT : LEFT + 6]
    red, blue, white = [103, 0, 31], [5, 48, 97], [247, 246, 246]
    assert image[0].tolist() == [red, blue, [128] * 3, [128] * 3, white, red]
    assert image[1:3].reshape(-1, 3).tolist() == [[128] * 3] * 12
    assert image[3, 0, 2] > image[3, 0, 0]  # -1: pale blue
    assert image[3, 1, 0] > image[3, 1, 2]  # 1: pale red


def test_differences_are_labelled():
    hidden = hidden_states(windows=2).sel(prompt="repeated")
    less = heatmap.difference(heatmap.regions(hidden, [(0, 128)]), "rerope")
    assert less["method"].values.tolist() == ["origin", "dynamic-ntk", "mesa"]
    expected = hidden.sel({"method": "mesa"}) - hidden.sel({"method": "rerope"})
    np.testing.assert_array_equal(less.sel({"method": "mesa"}), expected)
    assert heatmap.describe(less).startswith("resid_post minus rerope, repeated, layers 0-2")
    with pytest.raises(ValueError, match="'origin' is the only method; a difference takes a second one"):
        heatmap.difference(heatmap.regions(hidden.isel({"method": [0]}), [(0, 9)]), "origin")


class Disk(BackendArray):
    """Values as a store hands them out; keeps the shapes it was asked for."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.reads = values, values.shape, values.dtype, []

    def __getitem__(self, key):
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._get)

    def _get(self, key):
        result = self.values[key]
        self.reads.append(result.shape)
        return result


def test_a_survey_is_pools_and_limits_with_every_layer_read_once():
    hidden = hidden_states(windows=4).sel(prompt="repeated")
    bounds, methods = [(8, 40), (100, 128)], hidden["method"].values.tolist()
    disk = Disk(hidden.values)
    lazy = hidden.copy(data=indexing.LazilyIndexedArray(disk))
    *pooled, limits = heatmap.survey(heatmap.regions(lazy, bounds), [methods, ["mesa", "origin"]], cells=500)
    assert disk.reads == [(4, 1, 60, 32)] * 3  # every method's, a layer at a time
    plain = heatmap.regions(hidden, bounds)
    xr.testing.assert_identical(pooled[0], heatmap.pool(plain, 500))
    xr.testing.assert_identical(pooled[1], heatmap.pool(plain.sel({"method": ["mesa", "origin"]}), 500))
    xr.testing.assert_identical(limits, heatmap.layer_limits(plain))
    assert limits.values.tolist() == [
        np.quantile(np.abs(layer), 0.99) for layer in plain.transpose("layer", ...).values
    ]


@pytest.fixture
def small():
    return heatmap.regions(hidden_states(layers=2, dims=16).isel(prompt=0), [(60, 100)]).load()


def test_a_difference_of_halves_is_not_infinite(small):
    signs = np.where(np.arange(small.sizes["method"]) % 2, 1, -1)[:, None, None, None]
    halves = small.copy(data=np.broadcast_to(60000 * signs, small.shape).astype(np.float16))
    result = heatmap.difference(halves, "origin")
    assert np.abs(result.values).max() == 2 * np.abs(halves.values[0].astype(float)).max()
    others = [name for name in halves["method"].values.tolist() if name != "origin"]
    pooled, limits = heatmap.survey(halves, [others], minus="origin")
    assert pooled.values.max() == result.values.max()
    assert np.isfinite(limits).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_values_that_are_not_finite_are_not_exported(small, wrong):
    small.values[0, 0, 3, 5] = wrong
    with pytest.raises(ValueError, match=f"1 of {small.size} values of resid_post are not finite"):
        heatmap_export(small, 64)
