"""Every supported family, as a tiny random model: Origin is the stock model, and both executors agree beyond it."""

import cases
import pytest
import tiny
import torch
from families import FAMILIES, build, shared
from structures import held_to_pairs
from tiny import tokens
from transformers import (
    AttentionInterface,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
)

import mesa

IDS, MASK = tiny.padded(7, 0, 1, length=43)
REAL = MASK.bool()


def decoded(model, ids=IDS, mask=MASK):
    """Logits of a padded prompt, and of the last three tokens one by one."""
    end = ids.shape[1]
    return tiny.in_pieces(
        model, ids, end - 3, end - 2, end - 1, mask=mask, placed=model.config.model_type not in ("mpt", "bloom")
    )


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_origin_equals_the_stock_model(family, executor):
    model = shared(family)
    stock = decoded(model)
    with mesa.applied(model, mesa.Origin(trained_length=cases.TRAINED), executor=executor):
        torch.testing.assert_close(decoded(model)[REAL], stock[REAL], atol=5e-6, rtol=0)


NO_PAIRS = ("mpt", "bloom", "phi3 longrope")
"""Families without rotary embeddings, and one whose frequencies follow the text's length."""


OF_A_KIND = "llama,qwen2 sliding,phi3,gpt_neox,gemma3_text,gemma4_text shared,phi norms,mixtral,mpt,bloom".split(",")
"""Sliding layers, joint projections, partial rotation, two rotations, shared keys, norms, experts, ALiBi."""
EACH = [pytest.param(family, marks=() if family in OF_A_KIND else pytest.mark.slow) for family in FAMILIES]
WITH_PAIRS = [
    pytest.param(family, name, marks=() if name == "rerope" or family in OF_A_KIND else pytest.mark.slow)
    for family in FAMILIES if family not in NO_PAIRS for name in ("rerope", "mesa")
]  # fmt: skip


@pytest.mark.parametrize(("family", "name"), WITH_PAIRS)
def test_a_method_is_what_its_pairs_give(family, name):
    held_to_pairs(shared(family), name)


PAIRS = [("llama", name) for name in cases.CASES]
PAIRS += [(family, name) for family in NO_PAIRS for name in ("rerope", "mesa")]
"""Every method on one family, two methods where no pairs are computed above."""
SCALED_FAMILIES = ("phi3 longrope", "gemma3_text", "gemma4_text", "gemma4_text shared")
SLOW_PAIRS = [
    pytest.param(family, name, marks=pytest.mark.slow)
    for family in FAMILIES
    for name in cases.CASES
    if family != "llama"
    and name not in ("rerope", "mesa")
    and not (family in ("mpt", "bloom") and mesa.METHODS[name].needs_rotary)
    and not (family in SCALED_FAMILIES and mesa.METHODS[name].needs_base)
]


@pytest.mark.parametrize(("family", "name"), [*PAIRS, *SLOW_PAIRS])
def test_executors_agree_and_padding_changes_nothing(family, name):
    model, results = shared(family), []
    for executor in ("dense", "fused"):
        with mesa.applied(model, cases.method(name), executor=executor):
            results.append(decoded(model))
    torch.testing.assert_close(results[0][REAL], results[1][REAL], atol=3e-5, rtol=0)
    with mesa.applied(model, cases.method(name)):
        alone = decoded(model, IDS[:1, 7:], MASK[:1, 7:])
    torch.testing.assert_close(alone[0], results[1][0, 7:], atol=3e-5, rtol=0)


def kept_weights(attachment, layer):
    """A list to which a layer's attention weights are added, call by call."""
    kept, inner = [], attachment.attention

    def attention(module, *args, **kwargs):
        output, weights = inner(module, *args, **kwargs)
        if module.layer_idx == layer:
            kept.append(weights)
        return output, weights

    attachment.attention = attention
    AttentionInterface.register(attachment.model.config._attn_implementation, attention)
    return kept


@pytest.mark.parametrize("family", EACH)
def test_heads_are_chosen_in_prefill_and_decoding(family):
    """The weights of a layer's heads depend on those of the layers below alone; the sliding layers' keys drop out."""
    model, in_heads, in_layer = shared(family), {"heads": {1: (0, 1, 3)}}, {"layers": (1,)}
    weights, logits = {}, {}
    for chosen, changes in (("heads", in_heads), ("layer", in_layer), ("none", {"layers": (2,)})):
        with mesa.applied(model, cases.method("rerope", **changes), executor="dense") as attachment:
            weights[chosen] = kept_weights(attachment, layer=1)
            logits[chosen] = decoded(model)
    assert len(weights["heads"]) == 4
    for got, woven, origin in zip(weights["heads"], weights["layer"], weights["none"], strict=True):
        torch.testing.assert_close(got[:, [0, 1, 3]], woven[:, [0, 1, 3]], atol=3e-5, rtol=0)
        torch.testing.assert_close(got[:, 2], origin[:, 2], atol=3e-5, rtol=0)
        assert (woven - origin).abs().amax((0, 2, 3)).min() > 1e-3
    with mesa.applied(model, cases.method("rerope", **in_heads)):
        torch.testing.assert_close(decoded(model)[REAL], logits["heads"][REAL], atol=3e-5, rtol=0)


ALIBI = "it changes rotary frequencies, and ALiBi has"
BASE = "cannot be attached to model type 'gemma4_text': it goes by the base of rotary frequencies, and some"
REFUSED = [
    (lambda: build("gemma3_text", use_bidirectional_attention=True), "rerope", "its tokens see ahead "),
    *(
        (lambda: shared("mpt"), name, f"{name} cannot be attached to model type 'mpt': {ALIBI}")
        for name in ("dynamic-ntk", "ntk-mixed", "yarn", "cope")
    ),
    *((lambda: shared("gemma4_text"), name, f"{name} {BASE}") for name in ("yarn", "cope")),
]


@pytest.mark.parametrize(("make", "name", "message"), REFUSED)
def test_what_a_method_cannot_be_on_a_model_is_refused_with_the_reason(make, name, message):
    with pytest.raises(ValueError, match=message), mesa.applied(make(), cases.method(name)):
        pass


VISION = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
VISION |= {"image_size": 4, "patch_size": 2}
PATCHES = {"vision_config": VISION, "mm_tokens_per_image": 4, "image_token_index": 96}
IMAGES = {
    "gemma3": (Gemma3ForConditionalGeneration, Gemma3ForCausalLM, PATCHES),
    "gemma4": (Gemma4ForConditionalGeneration, Gemma4ForCausalLM, {}),
}


@pytest.mark.parametrize("kind", list(IMAGES))
def test_gemma_with_images_is_refused_and_its_text_model_is_the_way_round(kind, tmp_path):
    whole, text_only, options = IMAGES[kind]
    model = whole(whole.config_class(text_config=build(f"{kind}_text").config, **options))
    message = f"model type '{kind}' is not supported: its images see ahead; take its text model out of it"
    with pytest.raises(ValueError, match=message), mesa.applied(model, cases.method("rerope")):
        pass
    with torch.device("meta"):  # as docs/models.md has it
        text = text_only(model.config.text_config).eval()
    text.model, text.lm_head = model.model.language_model, model.lm_head
    text.save_pretrained(tmp_path)
    loaded, ids = text_only.from_pretrained(tmp_path).eval(), tokens(1, 30)
    with torch.no_grad(), mesa.applied(loaded, mesa.Origin(trained_length=cases.TRAINED)):
        torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits, atol=5e-6, rtol=0)


@torch.no_grad()
def test_gemma4s_shared_layers_generate_as_stock():
    """Stock leaves the prompt out in layers that share keys, and slices the mask for it."""
    model, ids = shared("gemma4_text shared"), tokens(2, 40)
    stock = tiny.generated(model, ids, 6)
    for executor in ("dense", "fused"):
        with mesa.applied(model, mesa.Origin(trained_length=cases.TRAINED), executor=executor):
            assert torch.equal(tiny.generated(model, ids, 6), stock)
    assert torch.equal(tiny.generated(model, ids, 6), stock)


ORIGINAL = {"original_max_position_embeddings": cases.TRAINED}
SCALED = {
    "linear": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "yarn": {"factor": 4.0, **ORIGINAL},
    "dynamic": {"factor": 4.0},
}


@torch.no_grad()
@pytest.mark.parametrize("kind", list(SCALED))
def test_yarn_is_refused_where_frequencies_are_scaled_already(kind):
    config = tiny.model().config.to_dict() | {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **SCALED[kind]}}
    model, ids = LlamaForCausalLM(LlamaConfig(**config)).eval(), tokens(1, 40)
    if kind == "dynamic":  # a longer prompt has other frequencies, which are not looked at
        plain = LlamaForCausalLM(LlamaConfig(**tiny.model().config.to_dict())).eval()
        plain.load_state_dict(model.state_dict())
        model(tokens(1, 300))
        with mesa.applied(model, cases.method("yarn")), mesa.applied(plain, cases.method("yarn")):
            torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=5e-6, rtol=0)
        return
    message = rf"yarn cannot be attached to model type 'llama': its config scales .* already \(rope_type '{kind}'\)"
    with pytest.raises(ValueError, match=message), mesa.applied(model, cases.method("yarn")):
        pass
