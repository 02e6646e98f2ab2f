"""The threshold search of `probe`, on the constructed transformers: it finds the paper's third dimension by itself."""

import numpy as np
import pytest
import xarray as xr

import theory
from probe.thresholds.onset import threshold_onsets
from probe.thresholds.search import CrossingRule, search
from theory.parts import Shape

M, N, LENGTH = 32, 2, 160
RULES = {
    "paper": CrossingRule(smoothing=1, sustained=8, warm_up=8, margin=0, minimum_score=-1e9, floor=0),
    "default": CrossingRule.scaled(M),
}
LATE = {"paper": 0, "default": 1}
"""By how many tokens a crossing is late: `margin` spreads beyond the threshold, and no less than `floor` each."""


@pytest.fixture(scope="module", params=[(name, seed) for name in RULES for seed in (0, 3)])
def crossings(request):
    rule, seed = request.param
    shared = {"shape": Shape(model=16, heads=3), "recovers": 200, "seed": seed}
    models = {
        "origin": theory.construction("plain", M=M, **shared),
        "rerope": theory.construction("woven", M=M, N=N, **shared),
    }
    outputs = [model.captured(LENGTH, "blocks.1.attn.hook_out")["blocks.1.attn.hook_out"] for model in models.values()]
    hidden = xr.DataArray(
        np.stack([np.asarray(output)[None] for output in outputs]),
        dims=("method", "layer", "position", "dim"),
        coords={"method": list(models), "layer": [1], "position": np.arange(1, LENGTH + 1), "dim": np.arange(16)},
        name="attn_out",
    )
    return search(hidden, M, RULES[rule]).assign_attrs(late=LATE[rule])


def test_only_the_third_dimension_is_a_threshold_dim(crossings):
    assert np.flatnonzero(crossings["threshold_dim"].sel(layer=1)).tolist() == [2]


def test_its_threshold_is_H_and_it_is_crossed_just_beyond_M_unless_woven(crossings):
    assert float(crossings["threshold"].sel(layer=1, dim=2)) == pytest.approx(0.5, abs=1e-6)
    origin, rerope = threshold_onsets(crossings, least=1)
    assert M + 1 <= origin.length <= M + 1 + crossings.attrs["late"]
    assert rerope.length is None
