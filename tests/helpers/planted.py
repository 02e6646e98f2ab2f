"""A tiny Llama without MLPs in which heads can be planted: tokens are one-hot, so weights say what a head looks for."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = 16


def model(trained: int = 8) -> LlamaForCausalLM:
    """Two layers of two heads, all queries and keys 0: uniform attention; a head reads the token itself."""
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=TOKENS,
        head_dim=TOKENS,
        intermediate_size=4,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=trained,
        bos_token_id=0,
        eos_token_id=None,
    )
    built = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        built.model.embed_tokens.weight.copy_(torch.eye(TOKENS))
    return built


def plant(built: LlamaForCausalLM, layer: int, head: int, asks: torch.Tensor, shows: torch.Tensor) -> None:
    """Has a head's query be `asks[:, token]` and its key `shows[:, token]`, times 4 each (norm of a one-hot: 4)."""
    attention = built.model.layers[layer].self_attn
    rows = slice(TOKENS * head, TOKENS * (head + 1))
    with torch.no_grad():
        attention.q_proj.weight[rows] = asks
        attention.k_proj.weight[rows] = shows


def successor() -> torch.Tensor:
    """Asks, at token v, for token v + 1."""
    return torch.eye(TOKENS).roll(1, 0)
