"""What a heatmap draws and exports are numbers: differences of halves do not overflow, NaN is refused."""

import numpy as np
import pytest
import synthetic

from probe.figures.export import heatmap_export
from probe.figures.heatmap import difference, regions, survey


@pytest.fixture
def panel():
    hidden = synthetic.hidden_states(layers=2, dims=16)
    return regions(hidden.isel(prompt=0) if "prompt" in hidden.dims else hidden, [(60, 100)]).load()


def test_a_difference_of_halves_is_not_infinite(panel):
    signs = np.where(np.arange(panel.sizes["method"]) % 2, 1, -1)[:, None, None, None]
    halves = panel.copy(data=np.broadcast_to(60000 * signs, panel.shape).astype(np.float16))
    found = difference(halves, "origin")
    assert np.abs(found.values).max() == 2 * np.abs(halves.values[0].astype(float)).max()
    others = [name for name in halves["method"].values.tolist() if name != "origin"]
    pooled, limits = survey(halves, [others], minus="origin")
    assert pooled.values.max() == found.values.max()
    assert np.isfinite(limits).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_values_that_are_not_finite_are_not_exported(panel, wrong):
    panel.values[0, 0, 3, 5] = wrong
    with pytest.raises(ValueError, match=f"1 of {panel.size} values of resid_post are not finite"):
        heatmap_export(panel, 64)
