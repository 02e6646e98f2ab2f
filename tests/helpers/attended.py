"""Attention in layer 0 of a tiny Llama, as a method computes it and as the oracle's formula says; random states."""

from functools import cache

import cases
import numpy as np
import oracle
import torch
from tiny import tokens
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import mesa
from mesa.engine.rope import RotaryLayout, Rotation
from mesa.engine.schedule import Schedule
from mesa.plan import Carry, Constant, Plan, Region, Stepped

PROMPT, STEPS, DIM = 58, 2, 8

FORTY = (0, 40), (0, 40)
OF_OTHERS = {
    "the first part has all queries but one": (
        Region(*FORTY, query_position=Constant(9), key_position=Constant(0), nearest=1),
        Region(*FORTY, farthest=0),
    ),
    "a window that ends before the text": (
        Region(*FORTY, query_position=Constant(9), key_position=Constant(0), nearest=6),
        Region((0, 40), (0, 20), farthest=5),
        Region((0, 40), (20, 40), farthest=5),
    ),
    "keys at two positions": (
        Region(*FORTY, holds=lambda _, key: key % 5 == 0, farthest=11),
        Region(*FORTY, key_position=Stepped(3), holds=lambda _, key: key % 5 != 0, farthest=11),
    ),
    "two stairs": (
        Region(*FORTY, farthest=1),
        *(
            Region(
                (0, 40), keys, Stepped(width, 1, -carried), Stepped(width), nearest=2, holds=Carry(width, 1, carried)
            )
            for keys, width in (((0, 20), 3), ((20, 40), 5))
            for carried in (False, True)
        ),
    ),
    "a carry with keys of its own": (
        Region(*FORTY, farthest=1),
        *(
            Region(*FORTY, Stepped(3, 1), Stepped(3, 0, carried), nearest=2, holds=Carry(3, 1, carried))
            for carried in (False, True)
        ),
    ),
    "chunks at two positions": (Region((0, 20), (0, 20)), Region((20, 40), (20, 40), key_position=Stepped(3))),
}
"""Regions as our methods have none."""


def rotate():
    """Llama's rotation."""
    config = LlamaConfig(hidden_size=2 * DIM, num_attention_heads=2)
    own = LlamaRotaryEmbedding(config)
    return Rotation(RotaryLayout(0, len(own.inv_freq)), own.inv_freq)


def states(length, heads=2, key_heads=2, start=0, first_key=0, batch=1):
    """Random queries from `start` on, keys and values from `first_key` on, (row, head, token, dim) in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = (heads, length - start), (key_heads, length - first_key), (key_heads, length - first_key)
    return [2 * torch.randn(batch, *shape, DIM, generator=generator, dtype=torch.float64) for shape in shapes]


def given(method, tensors, start, prompt, slopes=None, **scoring):
    """What an executor is given: a schedule, queries from `start` on, keys and values, the scale."""
    query, key, value = tensors
    length, cached, turn = key.shape[2], method.cached_position, None
    if slopes is None:
        turn, index = rotate(), torch.arange(length)
        query, key = (turn(part, cached(index), Plan(length, ())) for part in (query, key))  # as the model itself does
    slopes = None if slopes is None else torch.tensor(slopes, dtype=torch.float64)
    schedule = Schedule(method.plan(length, prompt), start, cached, turn, slopes=slopes, **scoring)
    return schedule, query[:, :, start:], key, value, DIM**-0.5


@cache
def heads_by_formula(name, length, prompt, slopes=None, **changes):
    """The oracle's output (head, token, dim) for `states` of so many tokens."""
    parameters = cases.CASES[name] | {"trained": cases.TRAINED, "prompt": prompt, **changes}
    heads = zip(*(tensor[0].numpy() for tensor in states(length)), slopes or (None, None), strict=True)
    return np.stack([oracle.attention(name, *head, slope=slope, **parameters) for *head, slope in heads])


def attended(model, method, executor, mask):
    """What enters (q, k, v) and leaves (o) attention, (row, head, token, dim), in a prompt and as it goes on."""
    attention, states = model.model.layers[0].self_attn, {name: [] for name in "qkvo"}
    hooks = [
        getattr(attention, f"{name}_proj").register_forward_hook(lambda _, args, out, to=states[name]: to.append(out))
        for name in "qkv"
    ]
    hooks.append(attention.o_proj.register_forward_pre_hook(lambda _, args: states["o"].append(args[0])))
    ids, cache = tokens(len(mask), PROMPT + STEPS), DynamicCache()
    try:
        with torch.no_grad(), mesa.applied(model, method, executor=executor) as attachment:
            for begin, end in ((0, PROMPT), *((PROMPT + n, PROMPT + n + 1) for n in range(STEPS))):
                model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache)
    finally:
        for hook in hooks:
            hook.remove()
    heads = {layer: method.heads_in(layer) for layer in range(3)}
    assert attachment.heads == {layer: (0, 1, 2, 3) if some is None else some for layer, some in heads.items()}
    return {
        name: torch.cat(parts, 1).unflatten(-1, (-1, DIM)).transpose(1, 2).numpy() for name, parts in states.items()
    }


def by_formula(name, states, prompt):
    """The oracle's output for a head, a decoded token at a time: some methods follow the length so far."""
    log_n = cases.method(name).log_n
    options = {"trained": cases.TRAINED, "prompt": prompt, "log_n": log_n, **cases.CASES[name]}
    pieces = [(0, prompt), *((end - 1, end) for end in range(prompt + 1, prompt + STEPS + 1))]
    parts = [oracle.attention(name, *(part[:end] for part in states), begin=begin, **options) for begin, end in pieces]
    return np.concatenate(parts)
