"""Streamed means and variances against numpy's over all texts at once."""

import numpy as np
import pytest
import tiny
import torch
import xarray as xr

import mesa
from mesa.models import load
from probe.capture.bridge import bridge_to
from probe.capture.capture import capture_states
from probe.capture.spec import CaptureSpec, Kept
from probe.mechanism.anatomy import collect as collecting
from probe.mechanism.anatomy import moments
from probe.mechanism.anatomy.collect import collect

METHOD = mesa.ReRoPE(trained_length=24, window=5)
LENGTH = 40


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    loaded = load(str(tiny.folder(tmp_path_factory.mktemp("model"), trained=24)))
    return bridge_to(loaded.model, loaded.tokenizer)


def prompts(count, length=LENGTH):
    return torch.randint(3, 90, (count, length), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_streaming_equals_numpy_over_captured_states(bridge, dtype, tolerance):
    """A population variance (no -1) would be off by a fifth, one of an uneven half's by more."""
    spec = CaptureSpec(layers=((1, 3),), positions=((0, 2), (20, LENGTH)), dims=((4, 30),))
    found = collect(bridge, prompts(5), METHOD, spec, dtype=dtype)
    states = np.stack([capture_states(bridge, ids, METHOD, spec)["resid_post"] for ids in prompts(5)]).astype(float)
    np.testing.assert_allclose(moments.mean(found), states.mean(0), atol=tolerance)
    np.testing.assert_allclose(moments.variance(found), states.var(0, ddof=1).mean(-1), rtol=tolerance)
    np.testing.assert_allclose(found["half_mean"][1], states[1::2].mean(0), atol=tolerance)
    squares = ((states[::2] - states[::2].mean(0)) ** 2).sum(0)
    beyond = squares[:, found["position"].values >= 24].sum(1)
    np.testing.assert_allclose(found["half_squares_by_dim"][0].sel(band="beyond"), beyond, rtol=tolerance)
    assert found["half_mean"].dtype == dtype
    assert found["count"].values.tolist() == [3, 2]
    assert found.attrs["hook"] == moments.mean(found).name == "resid_post"
    assert (found["layer"].values.tolist(), found["dim"].values[0], found["position"].values[2]) == ([1, 2], 4, 20)


def test_continued_moments_equal_those_made_in_one_go(bridge, tmp_path):
    whole, calls = collect(bridge, prompts(5), METHOD), []
    part = collect(bridge, prompts(5)[:3], METHOD, report=lambda: calls.append("text"))
    moments.save(part, tmp_path / "origin.npz")
    read = moments.load(tmp_path / "origin.npz")
    xr.testing.assert_identical(read, part)
    xr.testing.assert_identical(collect(bridge, prompts(5)[3:], METHOD, known=read), whole)
    assert calls == ["text"] * 3
    assert [each.name for each in tmp_path.iterdir()] == ["origin.npz"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": mesa.Origin(trained_length=24)}, "the known moments are of method .*rerope.*, not .*origin"),
        ({"spec": CaptureSpec(hooks=("mlp_out",))}, "the known moments are of hook resid_post, not mlp_out"),
        ({"spec": CaptureSpec(dims=((0, 4),))}, "the known moments have 32 dims, others than asked for"),
        ({"prompts": prompts(1, 30)}, "the known moments have 40 positions"),
        (
            {"prompts": [*prompts(1), prompts(1, 30)[0]]},
            r"prompts of one length are needed; their lengths are \[30, 40\]",
        ),
        ({"prompts": []}, "their lengths are none"),
        ({"spec": CaptureSpec(hooks=("z", "q"))}, "moments are of one hook, not of z, q"),
    ],
)
def test_what_cannot_be_collected_is_named(bridge, changes, message):
    known = moments.empty(
        Kept(range(3), range(LENGTH), range(32)),
        24,
        attrs={"hook": "resid_post", "method": collecting.json.dumps(METHOD.describe(), sort_keys=True)},
    )
    given = {"prompts": prompts(1), "method": METHOD, **changes}
    with pytest.raises(ValueError, match=message):
        collect(bridge, **given, known=known)


def test_states_that_are_not_finite_are_an_error_and_no_moments(tmp_path):
    loaded = load(str(tiny.folder(tmp_path, trained=24)))
    loaded.model.model.layers[1].mlp.down_proj.weight.data[0, 0] = float("inf")
    with pytest.raises(RuntimeError, match="the states of layer 1 are not finite; run the model with a wider --dtype"):
        collect(bridge_to(loaded.model, loaded.tokenizer), prompts(1), METHOD)


def test_too_little_memory_is_told_before_any_pass(bridge, monkeypatch):
    kept = CaptureSpec().resolve(bridge.original_model.config, LENGTH)
    needed = collecting.collect_bytes(bridge.original_model.config, kept, LENGTH, 4)
    assert needed > moments.moments_bytes(kept) == 3 * 3 * LENGTH * 32 * 8 == 2 * moments.moments_bytes(kept, "float32")
    monkeypatch.setattr("probe.capture.memory.free_bytes", lambda device: needed - 1)
    monkeypatch.setattr(collecting, "run_hooked", None)
    with pytest.raises(MemoryError, match=r"length=40 needs about 0.0 GiB.*keep fewer --layers, --dims"):
        collect(bridge, prompts(1), METHOD)


def test_too_few_texts_are_named():
    with pytest.raises(ValueError, match="0 texts were read; read at least 2"):
        moments.variance(moments.empty(Kept([0], [0], [0]), 24))
    with pytest.raises(ValueError, match="unknown dtype 'float16' for means; known: float64, float32"):
        moments.empty(Kept([0], [0], [0]), 24, "float16")
