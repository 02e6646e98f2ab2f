"""A construction as a Hugging Face model, so that everything which reads models reads it too: MPT, or a Llama."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Joined
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from mesa.constructed import ConstructedConfig, ConstructedForCausalLM
from mesa.constructed_llama import ConstructedLlamaConfig, ConstructedLlamaForCausalLM
from theory.attention import Attention
from theory.model import MLP, Construction
from theory.parts import CONST, FREE
from theory.rotary_model import FREE as ROTARY_FREE


@dataclass(frozen=True)
class Sizes:
    """What a config is made of: the window M, layers, heads and their size, the model's size, the MLP's units."""

    M: int
    layers: int
    heads: int
    head: int
    model: int
    units: int


@dataclass(frozen=True)
class Family:
    """Where matrices go in an architecture.

    free: the first free direction. embedding, layers: names. config: of a construction. matrices: a layer's, from its
    attention and its MLP's W_1 and W_2.
    """

    model: Callable[..., PreTrainedModel]
    free: int
    embedding: str
    layers: str
    config: Callable[[Construction, Sizes], PretrainedConfig]
    matrices: Callable[[Attention, Tensor, Tensor], dict[str, Tensor]]


def pretrained(construction: Construction, M: int) -> PreTrainedModel:
    """The model with a construction's matrices, in its dtype; without its weave, which is a method's to attach.

    Rotary ones are Llamas, the others MPTs. Logits are the free directions of the residual stream, read by the
    embedding: the theorems have none. A layer without an MLP has one of zeros. Raises ValueError for the log-domain
    steps, which are no matrices, and for sizes that Llama's config refuses.
    """
    family = LLAMA if construction.turns else MPT
    blocks: list[Any] = list(construction.blocks)
    if any(block.mlp is not None and not isinstance(block.mlp, MLP) for block in blocks):
        raise ValueError("recovery='log' is a function, no matrices; take recovery 'steps', 'interpolating' or 'naive'")
    units = max([1, *(block.mlp.W_1.shape[1] for block in blocks if block.mlp is not None)])
    heads, head, model = blocks[0].attn.W_Q.shape
    sizes = Sizes(M, len(blocks), heads, head, model, units)
    model: Any = family.model(family.config(construction, sizes))
    model.to(construction.W_E.dtype).eval().requires_grad_(False)
    read = construction.W_E.T.clone()
    read[:, : family.free] = 0
    weights = {family.embedding: construction.W_E.T, "lm_head.weight": read}
    for layer, block in enumerate(blocks):
        matrices = family.matrices(block.attn, *_padded(block.mlp, read.new_zeros(read.shape[1], units)))
        weights |= {f"{family.layers}.{layer}.{name}.weight": matrix for name, matrix in matrices.items()}
    model.load_state_dict({name: matrix.contiguous() for name, matrix in weights.items()})
    return model


def _padded(mlp: MLP | None, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """W_1 and W_2 in matrices as large as `zeros`."""
    weights = zeros.clone(), zeros.clone()
    if mlp is not None:
        for whole, matrix in zip(weights, (mlp.W_1, mlp.W_2), strict=True):
            whole[:, : matrix.shape[1]] = matrix
    return weights


def _output(attn: Attention) -> Tensor:
    """The heads' W_O side by side."""
    return attn.W_O.transpose(0, 1).flatten(1)


def _mpt_config(construction: Construction, sizes: Sizes) -> ConstructedConfig:
    attn: Any = construction.blocks[0].attn
    return ConstructedConfig(
        d_model=sizes.model,
        n_heads=sizes.heads,
        n_layers=sizes.layers,
        head_dim=sizes.head,
        intermediate_size=sizes.units,
        vocab_size=construction.W_E.shape[1],
        max_seq_len=sizes.M,
        slope=0.0 if attn.weave is None else attn.slope,
        bos_token_id=0,
        use_cache=True,
        dtype=construction.W_E.dtype,
    )


def _mpt_matrices(attn: Attention, W_1: Tensor, W_2: Tensor) -> dict[str, Tensor]:
    return {
        "attn.Wqkv": torch.cat([part.flatten(0, 1) for part in (attn.W_Q, attn.W_K, attn.W_V)]),
        "attn.out_proj": _output(attn),
        "ffn.up_proj": W_1.T,
        "ffn.down_proj": W_2,
    }


def _llama_config(construction: Construction, sizes: Sizes) -> ConstructedLlamaConfig:
    assert construction.turns is not None
    if sizes.model % sizes.heads:
        raise ValueError(
            f"model={sizes.model} is no multiple of heads={sizes.heads}, as Llama's config asks; take another size"
        )
    return ConstructedLlamaConfig(
        hidden_size=sizes.model,
        intermediate_size=sizes.units,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        head_dim=sizes.head,
        hidden_act="relu",
        vocab_size=construction.W_E.shape[1],
        max_position_embeddings=sizes.M,
        rope_parameters={"rope_type": "default", "rope_theta": construction.turns.base},
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
        dtype=construction.W_E.dtype,
    )


def _llama_matrices(attn: Attention, W_1: Tensor, W_2: Tensor) -> dict[str, Tensor]:
    """The gate is the MLP; its other factor is CONST."""
    ones = torch.zeros_like(W_1.T)
    ones[:, CONST] = 1
    heads = {f"self_attn.{part}_proj": getattr(attn, f"W_{part.upper()}").flatten(0, 1) for part in "qkv"}
    mlp = {"mlp.gate_proj": W_1.T, "mlp.up_proj": ones, "mlp.down_proj": W_2}
    return {**heads, "self_attn.o_proj": _output(attn), **mlp}


MPT = Family(ConstructedForCausalLM, FREE, "transformer.wte.weight", "transformer.blocks", _mpt_config, _mpt_matrices)
LLAMA = Family(
    ConstructedLlamaForCausalLM,
    ROTARY_FREE,
    "model.embed_tokens.weight",
    "model.layers",
    _llama_config,
    _llama_matrices,
)


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

    Raises ValueError for a model whose vocabulary is not the tokenizer's.
    """
    if model.config.vocab_size != VOCABULARY:
        raise ValueError(
            f"vocabulary={model.config.vocab_size} is not the {VOCABULARY} tokens of <bos> and bytes; build with "
            f"shape=Shape(vocabulary={VOCABULARY}), or save the model with a tokenizer of your own"
        )
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return Path(folder)
