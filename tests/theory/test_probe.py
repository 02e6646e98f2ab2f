"""The threshold search of `probe`, on the constructed transformers: it finds the paper's third dimension by itself."""

import numpy as np
import pytest
import xarray as xr

import theory
from probe.thresholds.predict import predict
from probe.thresholds.search import CrossingRule, search, smooth
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


def test_only_the_third_dimension_is_observable(crossings):
    assert np.flatnonzero(crossings["observable"].sel(layer=1)).tolist() == [2]


def test_its_threshold_is_H_and_it_is_crossed_just_beyond_M_unless_woven(crossings):
    assert float(crossings["threshold"].sel(layer=1, dim=2)) == pytest.approx(0.5, abs=1e-6)
    origin, rerope = predict(crossings, least=1)
    assert M + 1 <= origin.length <= M + 1 + crossings.attrs["late"]
    assert rerope.length is None


@pytest.mark.parametrize("kind", ["white", "walk", "smooth"])
def test_nothing_is_singled_out_of_noise_or_where_all_is_smooth(kind):
    """1000 dims each: noise turns; and among dims that all fall as 1 / t, not turning says nothing."""
    rng, t = np.random.default_rng(0), np.arange(1, LENGTH + 1)
    values = rng.standard_normal((10, LENGTH, 100))
    if kind == "walk":
        values = values.cumsum(1)
    if kind == "smooth":
        values = M / t[:, None] * rng.standard_normal((10, 1, 100))
    hidden = xr.DataArray(
        values[None].astype(np.float32),
        dims=("method", "layer", "position", "dim"),
        coords={"method": ["origin"], "layer": range(10), "position": t, "dim": range(100)},
        name="attn_out",
    )
    rule = RULES["default"]
    inside = smooth(hidden[0], rule.smoothing).sel(position=slice(rule.warm_up, M - 1))
    width = inside.quantile(0.95, "position") - inside.quantile(0.05, "position")
    assert (search(hidden, M, rule)["spread"] * 3.29 >= width * 0.999).all()
    planted = hidden.copy()
    planted[0, :, :, 7] = 20 * (M / t - 0.5)
    observable = search(planted, M, RULES["default"])["observable"].sel(dim=7)
    assert observable.all() == (kind != "smooth")
