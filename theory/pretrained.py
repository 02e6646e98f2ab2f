"""A construction as a Hugging Face model, so that everything which reads models reads it too: MPT, or a Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Joined
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mesa.constructed import (
    ConstructedConfig,
    ConstructedForCausalLM,
    ConstructedLlamaConfig,
    ConstructedLlamaForCausalLM,
)
from mesa.errors import Refused
from theory.model import MLP, Construction
from theory.parts import CONST, FREE
from theory.rotary_model import FREE as ROTARY_FREE


def pretrained(construction: Construction, M: int) -> PreTrainedModel:
    """The model with a construction's matrices, in its dtype; without its weave, which is a method's to attach.

    Rotary ones are Llamas, the others MPTs. Logits are the free directions of the residual stream, read by the
    embedding: the theorems have none. A layer without an MLP has one of zeros. Raises Refused for the log-domain
    steps, which are no matrices.
    """
    blocks: list[Any] = list(construction.blocks)
    if any(block.mlp is not None and not isinstance(block.mlp, MLP) for block in blocks):
        raise Refused("recovery='log' is a function, no matrices; take recovery 'steps', 'interpolating' or 'naive'")
    units = max([1, *(block.mlp.W_1.shape[1] for block in blocks if block.mlp is not None)])
    encoding, rotary = construction.encoding, construction.encoding.base > 0
    heads, head, width = blocks[0].attn.W_Q.shape
    shared: dict[str, Any] = {"head_dim": head, "intermediate_size": units, "vocab_size": construction.W_E.shape[1]}
    shared |= {"bos_token_id": 0, "dtype": construction.W_E.dtype}
    model: Any
    if rotary:
        rope = {"rope_type": "default", "rope_theta": encoding.base}
        shared |= {"num_hidden_layers": len(blocks), "num_attention_heads": heads, "num_key_value_heads": heads}
        shared |= {"hidden_size": width, "hidden_act": "relu", "eos_token_id": None, "tie_word_embeddings": False}
        config = ConstructedLlamaConfig(max_position_embeddings=M, rope_parameters=rope, **shared)
        model = ConstructedLlamaForCausalLM(config)
    else:
        slope = 0.0 if encoding.weave is None else encoding.slope
        config = ConstructedConfig(
            d_model=width, n_heads=heads, n_layers=len(blocks), max_seq_len=M, slope=slope, use_cache=True, **shared
        )
        model = ConstructedForCausalLM(config)
    model.to(construction.W_E.dtype).eval().requires_grad_(False)
    read = construction.W_E.T.clone()
    read[:, : ROTARY_FREE if rotary else FREE] = 0
    embedding, layers = ("model.embed_tokens", "model.layers") if rotary else ("transformer.wte", "transformer.blocks")
    weights = {f"{embedding}.weight": construction.W_E.T, "lm_head.weight": read}
    for layer, block in enumerate(blocks):
        mlp = block.mlp or MLP((np.zeros((width, 0)), np.zeros((width, 0)))).to(read.dtype)
        W_1, W_2 = (nn.functional.pad(part, (0, units - part.shape[1])) for part in (mlp.W_1, mlp.W_2))
        q, k, v = (part.flatten(0, 1) for part in (block.attn.W_Q, block.attn.W_K, block.attn.W_V))
        output = block.attn.W_O.transpose(0, 1).flatten(1)  # the heads' side by side
        if rotary:  # the gate is the MLP; its other factor is CONST
            const = torch.zeros_like(W_1.T)
            const[:, CONST] = 1
            matrices = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": output}
            matrices |= {"mlp.gate_proj": W_1.T, "mlp.up_proj": const, "mlp.down_proj": W_2}
        else:
            matrices = {"attn.Wqkv": torch.cat([q, k, v]), "attn.out_proj": output}
            matrices |= {"ffn.up_proj": W_1.T, "ffn.down_proj": W_2}
        weights |= {f"{layers}.{layer}.{name}.weight": matrix for name, matrix in matrices.items()}
    model.load_state_dict({name: matrix.contiguous() for name, matrix in weights.items()})
    return model


BOS = "<bos>"
VOCABULARY = 257
"""<bos> and the bytes of a text."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 257 tokens: <bos> (0), put before a text, and a token for every byte."""
    letters = [BOS, *sorted(ByteLevel.alphabet())]
    model = Tokenizer(WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token=BOS))
    model.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False, use_regex=False), Split("", "isolated")])  # pyright: ignore[reportAttributeAccessIssue]
    model.decoder = Joined()  # pyright: ignore[reportAttributeAccessIssue]
    model.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=model, bos_token=BOS)


def save(model: PreTrainedModel, folder: str | Path) -> Path:
    """The folder, with a model of `theory.build` and its tokenizer in it: `mesa.load` and every command read it.

    Raises Refused for a model whose vocabulary is not the tokenizer's.
    """
    if model.config.vocab_size != VOCABULARY:
        raise Refused(
            f"vocabulary={model.config.vocab_size} is not the {VOCABULARY} tokens of <bos> and bytes; build with "
            f"shape=Shape(vocabulary={VOCABULARY}), or save the model with a tokenizer of your own"
        )
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return Path(folder)
