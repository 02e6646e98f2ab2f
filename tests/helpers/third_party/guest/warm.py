"""A family: a Llama whose attention has an argument of its own, a temperature that scores are divided by."""

from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as llama

from mesa import Family

TEMPERATURE = 0.5


def eager_attention_forward(module, query, key, value, attention_mask, scaling, temperature=1.0, **kwargs):
    return llama.eager_attention_forward(module, query, key, value, attention_mask, scaling / temperature, **kwargs)


def _sdpa(module, *states, scaling, temperature, **kwargs):
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, *states, scaling=scaling / temperature, **kwargs)


WARM_FUNCTIONS = {"eager": eager_attention_forward, "sdpa": _sdpa}


class WarmAttention(llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        projections: tuple[nn.Module, ...] = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (each(hidden_states).view(shape).transpose(1, 2) for each in projections)
        query, key = llama.apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = WARM_FUNCTIONS.get(name := self.config._attn_implementation) or ALL_ATTENTION_FUNCTIONS[name]
        mixed, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, temperature=TEMPERATURE, **kwargs
        )
        return self.o_proj(mixed.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


class WarmConfig(LlamaConfig):
    model_type = "warm"


class WarmForCausalLM(LlamaForCausalLM):
    config_class = WarmConfig

    def __init__(self, config):
        super().__init__(config)
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = WarmAttention(config, number)


AutoConfig.register("warm", WarmConfig)
AutoModelForCausalLM.register(WarmConfig, WarmForCausalLM)
WARM = Family(arguments={"temperature": lambda value: 1 / value})
