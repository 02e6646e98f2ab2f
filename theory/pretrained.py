"""A construction as a Hugging Face model, with a tokenizer, so that everything which reads models reads it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Joined
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mesa.constructed import ConstructedConfig, ConstructedForCausalLM
from theory.model import MLP, Construction
from theory.parts import FREE

BOS = "<bos>"
VOCABULARY = 257
"""<bos> and the bytes of a text."""


def pretrained(construction: Construction, M: int) -> ConstructedForCausalLM:
    """The model with a construction's matrices, in its dtype; without its weave, which is a method's to attach.

    Its logits are the free directions of the residual stream, read by the embedding: the theorems have none. A layer
    without an MLP has one of zeros. Raises ValueError for the log-domain steps, which are no matrices.
    """
    blocks: list[Any] = list(construction.blocks)
    heads, size, model = blocks[0].attn.W_Q.shape
    if any(block.mlp is not None and not isinstance(block.mlp, MLP) for block in blocks):
        raise ValueError("recovery='log' is a function, no matrices; take recovery 'steps', 'interpolating' or 'naive'")
    units = max([1, *(block.mlp.W_1.shape[1] for block in blocks if block.mlp is not None)])
    config = ConstructedConfig(
        d_model=model,
        n_heads=heads,
        n_layers=len(blocks),
        head_dim=size,
        intermediate_size=units,
        vocab_size=construction.W_E.shape[1],
        max_seq_len=M,
        slope=0.0 if blocks[0].attn.weave is None else blocks[0].attn.slope,
        bos_token_id=0,
        use_cache=True,
        dtype=construction.W_E.dtype,
    )
    made: Any = ConstructedForCausalLM(config)
    made.to(construction.W_E.dtype).eval().requires_grad_(False)
    made.load_state_dict(_weights(construction, units))
    return made


def _weights(construction: Construction, units: int) -> dict[str, Tensor]:
    """The matrices by the names that MPT has for them."""
    read = construction.W_E.T.clone()
    read[:, :FREE] = 0
    found = {"transformer.wte.weight": construction.W_E.T, "lm_head.weight": read}
    blocks: list[Any] = list(construction.blocks)
    for layer, block in enumerate(blocks):
        name, attn = f"transformer.blocks.{layer}", block.attn
        found[f"{name}.attn.Wqkv.weight"] = torch.cat([part.flatten(0, 1) for part in (attn.W_Q, attn.W_K, attn.W_V)])
        found[f"{name}.attn.out_proj.weight"] = attn.W_O.transpose(0, 1).flatten(1)
        zeros = read.new_zeros(read.shape[1], units)
        for matrix, place in (("W_1", "up_proj"), ("W_2", "down_proj")):
            whole = zeros.clone()
            if block.mlp is not None:
                own = getattr(block.mlp, matrix)
                whole[:, : own.shape[1]] = own
            found[f"{name}.ffn.{place}.weight"] = whole.T if matrix == "W_1" else whole
    return {name: matrix.contiguous() for name, matrix in found.items()}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 257 tokens: <bos> (0), put before a text, and a token for every byte."""
    letters = [BOS, *sorted(ByteLevel.alphabet())]
    made = Tokenizer(WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token=BOS))
    made.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False, use_regex=False), Split("", "isolated")])  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = Joined()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BOS)


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
