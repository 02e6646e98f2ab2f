"""Hidden states of models that TransformerLens has no adapter for, and of layers that do not attend."""

import cases
import matrix
import numpy as np
import pytest
import torch
from tiny import tokens

import mesa
from mesa.engine.bridge import LayerHooks, check_adapted, hooked, without_adapter
from mesa.errors import Refused
from mesa.models import tokenizer_of
from mesa.support import attending_layers, headed_layers
from probe.capture.capture import capture_states
from probe.capture.spec import CaptureSpec
from probe.commands.anatomy.run import head_statistics

BOTH = CaptureSpec(hooks=("resid_pre", "resid_post"))
UNADAPTED = ("minicpm3", "moshi", "bailing_hybrid")


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*UNADAPTED, "qwen3_5", "falcon_h1", "llama"])
def test_states_are_those_that_the_model_gives(family):
    ids, method = tokens(1, 40), cases.method("rerope")
    model = matrix.build(family)
    with mesa.applied(model, method):
        expected = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    bridge = hooked(model, tokenizer_of("default"))
    assert isinstance(bridge, LayerHooks) == (family in UNADAPTED)
    states = capture_states(bridge, ids[0].tolist(), method, BOTH)
    np.testing.assert_allclose(states["resid_pre"].values, torch.stack(expected[:2]).squeeze(1), atol=1e-5)
    np.testing.assert_allclose(states["resid_post"].values[0], expected[1][0], atol=1e-5)  # the last one's are normed


@pytest.mark.filterwarnings("ignore")
def test_the_layers_hooks_are_those_of_a_bridge_where_both_can_be_had():
    model, ids, method = matrix.build("llama"), tokens(1, 40)[0].tolist(), cases.method("rerope")
    by_layer = capture_states(LayerHooks(model), ids, method, BOTH)
    by_bridge = capture_states(mesa.bridge(model, tokenizer_of("default")), ids, method, BOTH)
    for hook in BOTH.hooks:
        assert np.array_equal(by_layer[hook], by_bridge[hook])


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_had_is_refused_before_any_pass():
    config = matrix.build("minicpm3").config
    config.architectures = ["MiniCPM3ForCausalLM"]
    with pytest.raises(Refused, match="hook 'q' needs TransformerLens, which has no adapter for a MiniCPM3ForCausalLM"):
        check_adapted(config, "hook 'q'", "capture resid_post")
    assert without_adapter(config) == "MiniCPM3ForCausalLM"
    config.architectures = ["LlamaForCausalLM"]
    assert without_adapter(config) == ""
    config = matrix.build("qwen3_5").config
    assert attending_layers(config) == headed_layers(config, None) == [1]
    with pytest.raises(Refused, match="layer 0 has no attention, so no heads; those with: layer 1"):
        headed_layers(config, [0, 1])
    with pytest.raises(Refused, match=r"hook 'z' is in layers with attention: .* has layer 1; name them as layers"):
        CaptureSpec(hooks=("resid_post", "z")).resolve(config, 40)
    assert list(CaptureSpec(hooks=("resid_post", "z"), layers=((1, 2),)).resolve(config, 40).layers) == [1]


@pytest.mark.filterwarnings("ignore")
def test_statistics_are_of_the_layers_that_have_heads():
    data = head_statistics(matrix.build("qwen3_5"), tokens(1, 60)[0].tolist(), cases.method("rerope"))
    assert data["layer"].values.tolist() == [1]
    assert data["mass"].dims == ("layer", "head", "query", "part")
    np.testing.assert_allclose(data["mass"].sum("part"), 1, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "hook", "layers", "problem"),
    [
        ("deepseek_v3", "q", (0, 2), "is never reached in layer 0"),
        ("qwen3_5", "q", (1, 2), r"has another size, \(40, 128\) in layer 1"),  # its queries come with gates
        ("phi", "resid_mid", (0, 2), "is not there in layer 0"),
    ],
)
def test_hooks_that_a_bridge_lacks_or_has_in_another_size_give_no_states(family, hook, layers, problem):
    bridge = mesa.bridge(matrix.build(family), tokenizer_of("default"))
    spec = CaptureSpec(("resid_post", hook), (layers,))
    with pytest.raises(Refused, match=f"^hook '{hook}' {problem} of this {family}.* model; take resid_pre, resid_post"):
        capture_states(bridge, tokens(1, 40)[0].tolist(), cases.method("rerope"), spec)


@pytest.mark.filterwarnings("ignore")
def test_a_refused_hook_leaves_no_hook_on_the_layers_and_states_are_finite():
    model, ids = matrix.build("minicpm3"), tokens(1, 40)[0].tolist()
    with pytest.raises(Refused, match="needs an adapter"):
        capture_states(LayerHooks(model), ids, cases.method("rerope"), CaptureSpec(("resid_post", "q")))
    assert not any(module._forward_hooks for module in model.modules())
    torch.nn.init.constant_(model.get_input_embeddings().weight, float("nan"))
    with pytest.raises(
        RuntimeError, match="the values of resid_post in layer 0 under rerope are not finite; run the model with"
    ):
        capture_states(LayerHooks(model), ids, cases.method("rerope"))
