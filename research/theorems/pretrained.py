"""A construction as a Hugging Face model, so that everything which reads models reads it too."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Joined
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mesa.constructed import ConstructedForCausalLM
from mesa.constructed_config import ConstructedConfig
from mesa.errors import Refused
from theory.model import MLP, Construction, construction
from theory.parts import FREE, Shape

BOS = "<bos>"
VOCABULARY = 257
"""<bos> and the bytes of a text."""


def build(name: str, **parameters: Any) -> PreTrainedModel:
    """A construction as a Hugging Face model, which every command and method takes.

    'woven', 'stair' and 'mesa' have the weights of 'plain', for sizes at which their theorems hold: the remap is the
    method's, `mesa.applied(model, mesa.ReRoPE(trained_length=M, window=N, log_n=False))`, or `mesa.StairPE`.

    Args:
        name: As for `construction`.
        parameters: As for `construction`. `shape` is by default 24 dims and a vocabulary of `<bos>` and the bytes.

    Returns:
        A `PreTrainedModel` in float64.

    Raises:
        Refused: As `construction`, and for recovery 'log'.

    Examples:
        >>> model = build("plain", M=16)
        >>> model.config.max_seq_len, model.config.d_model, model.config.vocab_size
        (16, 24, 257)
    """
    parameters = {"shape": Shape(model=24, vocabulary=VOCABULARY), **parameters}
    return pretrained(construction(name, **parameters), int(parameters["M"]))


def pretrained(construction: Construction, M: int) -> PreTrainedModel:
    """The model with a construction's matrices, in its dtype; without its remap, which is a method's to attach.

    Logits are the free directions of the residual stream, read by the embedding: the theorems have none. A layer
    without an MLP has one of zeros. Raises Refused for the log-domain steps, which are not matrices.
    """
    blocks, encoding, units = list(construction.blocks), construction.encoding, hidden_units(construction)
    heads, head, width = construction.get_buffer("blocks.0.attn.W_Q").shape
    shared: dict[str, Any] = {"head_dim": head, "intermediate_size": units, "vocab_size": construction.W_E.shape[1]}
    shared |= {"bos_token_id": 0, "dtype": construction.W_E.dtype}
    slope = 0.0 if encoding.weave is None else encoding.slope
    config = ConstructedConfig(
        d_model=width, n_heads=heads, n_layers=len(blocks), max_seq_len=M, slope=slope, use_cache=True, **shared
    )
    weights = {"transformer.wte.weight": construction.W_E.T, "lm_head.weight": read_out(construction, FREE)}
    for layer, block in enumerate(blocks):
        q, k, v, output, W_1, W_2 = matrices(block, units)
        named = {"attn.Wqkv": torch.cat([q, k, v]), "attn.out_proj": output, "ffn.up_proj": W_1.T, "ffn.down_proj": W_2}
        weights |= {f"transformer.blocks.{layer}.{name}.weight": matrix for name, matrix in named.items()}
    return filled(ConstructedForCausalLM(config), weights)


def hidden_units(construction: Construction) -> int:
    """Hidden units of the widest MLP, 1 at least. Refused for the log-domain steps, which are not matrices."""
    mlps = [mlp for block in construction.blocks if (mlp := block.mlp) is not None]
    units = [mlp.W_1.shape[1] for mlp in mlps if isinstance(mlp, MLP)]
    if len(units) < len(mlps):
        raise Refused("recovery='log' is a function, no matrices; take recovery 'steps', 'interpolating' or 'naive'")
    return max([1, *units])


def read_out(construction: Construction, free: int) -> Tensor:
    """The unembedding (vocabulary, model size): the embedding in the directions from `free` on."""
    read = construction.W_E.T.clone()
    read[:, :free] = 0
    return read


def matrices(block: Any, units: int) -> tuple[Tensor, ...]:
    """q, k, v, output, W_1 and W_2 of a `Block`, the heads side by side and the MLP with so many hidden units."""
    attention = block.attn
    q, k, v = (part.flatten(0, 1) for part in (attention.W_Q, attention.W_K, attention.W_V))
    width = q.shape[1]
    mlp = block.mlp or MLP((np.zeros((width, 0)), np.zeros((width, 0)))).to(q.dtype)
    W_1, W_2 = (nn.functional.pad(part, (0, units - part.shape[1])) for part in (mlp.W_1, mlp.W_2))
    return q, k, v, attention.W_O.transpose(0, 1).flatten(1), W_1, W_2


def filled(model: Any, weights: dict[str, Tensor]) -> PreTrainedModel:
    """The model with these weights, in their dtype, not to be trained."""
    model.to(next(iter(weights.values())).dtype).eval().requires_grad_(False)
    model.load_state_dict({name: matrix.contiguous() for name, matrix in weights.items()})
    return model


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 257 tokens: <bos> (0), put before a text, and a token for every byte."""
    letters = [BOS, *sorted(ByteLevel.alphabet())]
    model = Tokenizer(WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token=BOS))
    model.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False, use_regex=False), Split("", "isolated")])  # pyright: ignore[reportAttributeAccessIssue]
    model.decoder = Joined()  # pyright: ignore[reportAttributeAccessIssue]
    model.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=model, bos_token=BOS)


def save(model: PreTrainedModel, folder: str | Path) -> Path:
    """Saves a model of `build` with its tokenizer, for `mesa.load` and `--model FOLDER`.

    Args:
        model: What `build` returns.
        folder: Where to; made if it is not there.

    Returns:
        The folder, as a path.

    Raises:
        Refused: The model's vocabulary is not the tokenizer's.

    Examples:
        >>> folder = save(build("plain", M=16), "runs/plain-16")
        >>> mesa.load(str(folder)).tokenizer("ab")["input_ids"]
        [0, 65, 66]
    """
    if model.config.vocab_size != VOCABULARY:
        raise Refused(
            f"vocabulary={model.config.vocab_size} is not the {VOCABULARY} tokens of <bos> and bytes; build with "
            f"shape=Shape(vocabulary={VOCABULARY}), or save the model with a tokenizer of your own"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:  # a file is there whole or not
        model.save_pretrained(unfinished)
        byte_tokenizer().save_pretrained(unfinished)
        for file in sorted(Path(unfinished).iterdir()):
            file.replace(folder / file.name)
    return Path(folder)
