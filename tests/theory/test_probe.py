"""The threshold search of `probe`, on the constructed transformers: it finds the paper's third dimension by itself."""

import numpy as np
import pytest
import xarray as xr

import theory
from probe.thresholds.predict import predict
from probe.thresholds.search import CrossingRule, search
from theory.parts import Shape

M, N, LENGTH = 32, 2, 160
RULE = CrossingRule(smoothing=1, sustained=8, burn_in=8, margin=0, minimum_score=-1e9, floor=0)
"""M / t is smooth and convex, so that trend and spread say nothing here: the paper's bare threshold."""


@pytest.fixture(scope="module", params=[0, 3])
def found(request):
    shared = {"shape": Shape(model=16, heads=3), "recovers": 200, "seed": request.param}
    models = {
        "origin": theory.plain_model(M, 0.5, **shared),
        "rerope": theory.woven_model(M, N, 0.5, **shared),
    }
    outputs = [model.captured(LENGTH, "blocks.1.attn.hook_out")["blocks.1.attn.hook_out"] for model in models.values()]
    hidden = xr.DataArray(
        np.stack([np.asarray(output)[None] for output in outputs]),
        dims=("method", "layer", "position", "dim"),
        coords={"method": list(models), "layer": [1], "position": np.arange(1, LENGTH + 1), "dim": np.arange(16)},
        name="attn_out",
    )
    return search(hidden, M, RULE)


def test_only_the_third_dimension_is_observable(found):
    assert np.flatnonzero(found["observable"].sel(layer=1)).tolist() == [2]


def test_its_threshold_is_H_and_it_is_crossed_just_beyond_M_unless_woven(found):
    assert float(found["threshold"].sel(layer=1, dim=2)) == pytest.approx(0.5, abs=1e-6)
    origin, rerope = predict(found, least=1)
    assert origin.length == M + 1
    assert rerope.length is None
