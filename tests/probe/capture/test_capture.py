"""Captures through the delegating bridge against Hugging Face's own hidden states."""

import cases
import numpy as np
import pytest
import tiny
import torch

import mesa
from mesa.engine.bridge import bridge as bridge_to
from mesa.models import load
from probe.capture import spec as spec_module
from probe.capture.capture import capture, capture_states
from probe.capture.spec import CaptureSpec, Hook, Selection


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(str(tiny.folder(tmp_path_factory.mktemp("model"), trained=cases.TRAINED)))


@pytest.fixture(scope="module")
def bridged(loaded):
    """A bridge around a further copy of the model, for tests that leave it as it is."""
    fresh = load(loaded.name)
    return bridge_to(fresh.model, fresh.tokenizer)


def selected(layers, positions, dims, hooks=("resid_post",)):
    return Selection(layers, positions, {hook: {"position": positions, "dim": dims} for hook in hooks})


def ids(length=70):
    return torch.randint(3, 90, (length,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("name", cases.names())
def test_bridge_equals_the_plugged_model(loaded, bridged, name):
    """Difference 0: the bridge runs the very same attention. TransformerLens' own would give Origin here."""
    tokens = torch.tensor([ids()])
    with torch.no_grad(), mesa.applied(loaded.model, cases.method(name)):
        expected = loaded.model(tokens, output_hidden_states=True)
    with torch.no_grad(), mesa.applied(bridged.original_model, cases.method(name)) as attachment:
        assert torch.equal(bridged(tokens), expected.logits)
    assert dict(attachment.calls) == {0: 1, 1: 1, 2: 1}
    kept = selected([0, 1], [0, 5, 69], [3, 31])
    states = capture(bridged, ids(), cases.method(name), kept)["resid_post"]
    for layer in (0, 1):  # hidden_states[i + 1] is block i's output, but for the last, which is normed
        hidden = expected.hidden_states[layer + 1][0].numpy()
        np.testing.assert_array_equal(states[layer], hidden[[0, 5, 69]][:, [3, 31]])


def test_heads_are_side_by_side_and_other_hooks_fire(loaded):
    fresh = load(loaded.name)
    bridge = bridge_to(fresh.model, fresh.tokenizer)
    hooks = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post", "q", "z"]
    states = capture(bridge, ids(), cases.method("mesa"), selected([2], range(70), range(32), hooks))
    np.testing.assert_allclose(states["resid_pre"] + states["attn_out"], states["resid_mid"], atol=1e-6)
    np.testing.assert_allclose(states["resid_mid"] + states["mlp_out"], states["resid_post"], atol=1e-6)
    layer = fresh.model.model.layers[2]
    with torch.no_grad():
        projected = layer.self_attn.o_proj(torch.from_numpy(states["z"][0])).numpy()
    np.testing.assert_allclose(projected, states["attn_out"][0], atol=1e-5)


@pytest.mark.parametrize("name", ["origin", "mesa"])
def test_a_pass_ends_with_the_last_kept_layer_and_caches_nothing(loaded, name, monkeypatch):
    fresh = load(loaded.name)
    tokens = torch.tensor([ids()])
    with torch.no_grad(), mesa.applied(fresh.model, cases.method(name)):
        expected = fresh.model(tokens, output_hidden_states=True).hidden_states[2][0].numpy()
    bridge = bridge_to(fresh.model, fresh.tokenizer)
    ran = []
    for part in (fresh.model.lm_head, fresh.model.model.norm, fresh.model.model.layers[2].mlp):
        part.register_forward_pre_hook(lambda *_: ran.append("above"))
    monkeypatch.setattr("transformers.cache_utils.Cache.update", lambda *_, **__: ran.append("cached"))
    kept = selected([1], range(70), range(32))
    np.testing.assert_array_equal(capture(bridge, ids(), cases.method(name), kept)["resid_post"][0], expected)
    assert ran == []
    capture(bridge, ids(), cases.method(name), selected([2], [0], [0]))
    assert ran == ["above"]  # the last layer's MLP; no norm, no logits


def test_captured_states_carry_their_labels(loaded):
    fresh = load(loaded.name)
    bridge = bridge_to(fresh.model, fresh.tokenizer)
    spec = CaptureSpec(
        hooks=("resid_pre", "resid_post"), layers=((1, 3),), positions=((5, 7), (60, 70)), dims=((4, 9),)
    )
    kept = selected([1, 2], [5, 6, *range(60, 70)], [4, 5, 6, 7, 8], spec.hooks)
    for method in (cases.method("origin"), cases.method("rerope")):
        states = capture_states(bridge, ids(), method, spec)
        expected = capture(bridge, ids(), method, kept)
        for hook in spec.hooks:
            np.testing.assert_array_equal(states[hook], expected[hook])
        labels = {name: states[name].values.tolist() for name in ("layer", "position", "dim", "method")}
        assert labels == {"layer": kept.layers, **kept.axes["resid_post"], "method": method.name}
    assert states["resid_post"].attrs == {"long_name": "resid_post", "units": "activation"}
    assert capture_states(bridge, ids(9), method)["resid_post"].shape == (3, 9, 32)
    with pytest.raises(ValueError, match="position 60-69 is out of range; there are positions 0-29"):
        capture_states(bridge, ids(30), method, spec)


@pytest.mark.parametrize("ranges", [(200, 400), 5, ((4, 2),), ((0, 1.5),), ((-1, 3),), ((True, 2),)])
@pytest.mark.parametrize("name", ["layers", "positions", "dims"])
def test_ranges_that_are_none_are_refused(name, ranges):
    with pytest.raises(mesa.Refused, match=rf"^{name}=.*(is not a sequence of half-open ranges|is empty or begins)"):
        CaptureSpec(**{name: ranges})


def test_hooks_of_other_widths_and_shapes_are_kept_beside_states(loaded, monkeypatch):
    """A quantity of another shape is a row of HOOKS: here the size of every head's output, (position, head)."""
    size = Hook("blocks.{layer}.attn.hook_z", {"position": None, "head": lambda config: 4}, lambda z: z.norm(dim=-1))
    monkeypatch.setitem(spec_module.HOOKS, "z_size", size)
    hooks = ("resid_post", "q", "k", "v", "z", "z_size")
    fresh = load(loaded.name)
    bridge = bridge_to(fresh.model, fresh.tokenizer)
    states = capture_states(bridge, ids(), cases.method("mesa"), CaptureSpec(hooks, ((1, 3),), ((5, 7), (60, 70))))
    sizes = {hook: dict(states[hook].sizes) for hook in hooks}
    assert sizes["resid_post"] == sizes["q"] == sizes["z"] == {"layer": 2, "position": 12, "dim": 32}
    assert [sizes["k"], sizes["v"]] == [{"layer": 2, "position": 12, f"dim_{hook}": 16} for hook in "kv"]
    heads = states["z"].values.reshape(2, 12, 4, 8)
    np.testing.assert_allclose(states["z_size"], np.linalg.norm(heads, axis=-1), rtol=1e-6)
    with pytest.raises(mesa.Refused, match=r"^dim 0-19 is out of range; there are dims 0-15$"):
        CaptureSpec(hooks, dims=((0, 20),)).resolve(fresh.model.config, 70)
    with pytest.raises(mesa.Refused, match=r"^hook 'z_size' has no dims, which thresholds and drift are of"):
        CaptureSpec(("z_size",)).resolve(fresh.model.config, 70)
