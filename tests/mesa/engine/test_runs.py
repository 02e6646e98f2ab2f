"""A pass in which a layer's attention is not the method's is an error, however it is bypassed."""

import cases
import pytest
import tiny
import torch
from tiny import tokens
from transformer_lens.model_bridge import TransformerBridge
from transformers.models.llama import modeling_llama

import mesa
from mesa.models import load


def remote_attention(module, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
    """Attention as remote code has it: neither AttentionInterface nor the mask."""
    shape = (*hidden_states.shape[:-1], -1, module.head_dim)
    query, key, value = (
        part(hidden_states).view(shape).transpose(1, 2) for part in (module.q_proj, module.k_proj, module.v_proj)
    )
    query, key = modeling_llama.apply_rotary_pos_emb(query, key, *position_embeddings)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return module.o_proj(output.transpose(1, 2).flatten(2)), None


@pytest.mark.parametrize("executor", ["fused", "dense"])
@pytest.mark.parametrize("layer", [0, 2])
def test_attention_that_bypasses_the_interface_is_an_error(layer, executor):
    model = tiny.model()
    attention = model.model.layers[layer].self_attn
    attention.forward = lambda *args, **kwargs: remote_attention(attention, *args, **kwargs)
    method = cases.method("rerope")
    with torch.no_grad(), mesa.applied(model, method, executor=executor) as attachment:
        with pytest.raises(RuntimeError, match=f"rerope is attached, but layer {layer} does not run it"):
            model(tokens())
        assert sum(attachment.calls.values()) == layer
        del attention.forward
        model(tokens())  # the error leaves nothing behind
    model(tokens())


def test_attention_chosen_anew_inside_the_block_is_an_error():
    model = tiny.model()
    with torch.no_grad(), mesa.applied(model, cases.method("rerope")):
        model.set_attn_implementation("eager")
        with pytest.raises(RuntimeError, match=r"leave set_attn_implementation alone there"):
            model(tokens())


@pytest.mark.parametrize("name", ["origin", "rerope"])
def test_transformer_lens_own_bridge_is_an_error(name, tmp_path):
    loaded = load(str(tiny.folder(tmp_path)))
    bridge = TransformerBridge.boot_transformers("LlamaForCausalLM", hf_model=loaded.model, tokenizer=loaded.tokenizer)
    with (
        pytest.raises(ValueError, match=r"use mesa.bridge\(model, tokenizer\)"),
        mesa.applied(bridge.original_model, cases.method(name)),
    ):
        pass
