"""Bridges of the kind that the environment names, over fresh copies of one model."""

import copy
import os
from dataclasses import replace
from functools import cache

import matrix
import torch
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.support import trained_length

KIND = os.environ.get("PEERS_KIND", "none")
METHOD, _, EXECUTOR = ("", "", "") if KIND in ("stock", "none") else KIND.partition(":")
BOOT = TransformerBridge.boot_transformers
torch.set_num_threads(1)
_attached = []


@cache
def loaded():
    """The model and its tokenizer, never changed; a family's tiny model has the shipped model's tokenizer."""
    name = os.environ.get("PEERS_MODEL", "default")
    source = mesa.load("default" if name in matrix.BRIDGED else name)
    if name in matrix.BRIDGED:
        tokens = {f"{kind}_token_id": getattr(source.tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
        source = replace(source, model=matrix.build(name, 2, vocab_size=len(source.tokenizer), **tokens))
        source.model.config.architectures = [type(source.model).__name__]  # by which TransformerLens chooses
    if source.tokenizer.pad_token is None:
        source.tokenizer.pad_token = source.tokenizer.eos_token or source.tokenizer.bos_token
    return source


def fresh(dtype=None):
    """A copy of the model, and of its tokenizer."""
    model = copy.deepcopy(loaded().model)
    return (model if dtype is None else model.to(dtype)).eval(), copy.deepcopy(loaded().tokenizer)


def stock(dtype=None):
    """TransformerLens' bridge."""
    model, tokenizer = fresh(dtype)
    return BOOT(type(model).__name__, hf_model=model, tokenizer=tokenizer, dtype=model.dtype, device="cpu")


def bridge(dtype=None):
    """A bridge of the kind, with its method attached until the process ends."""
    if KIND == "stock":
        return stock(dtype)
    model, tokenizer = fresh(dtype)
    built = mesa.bridge(model, tokenizer)
    if METHOD:
        method = mesa.make(METHOD, trained_length(model.config))
        _attached.append(mesa.applied(model, method, executor=EXECUTOR or "fused"))
        _attached[-1].__enter__()
    return built
