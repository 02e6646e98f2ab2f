"""A tiny model in which planted heads alone attend by position, so that they alone break it beyond its window."""

import json
from pathlib import Path

import tiny
import torch

import mesa
from probe.commands.locate.run import LocateRequest, plan

HEAD = (1, 2)


def planted(heads=(HEAD,), **changes):
    """A random model in which these heads alone attend by position; the others attend to all tokens alike."""
    model = tiny.model(**changes)
    dim = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        for layer, block in enumerate(model.model.layers):
            kept = torch.cat([torch.full((dim,), float((layer, head) in heads)) for head in range(4)])
            block.self_attn.q_proj.weight *= kept[:, None]
            block.self_attn.o_proj.weight *= 30
    return model


def reading(model, planned):
    """Has the model read next tokens off what ReRoPE changes in its states: Origin is the worse on every text."""
    weight = torch.zeros_like(model.lm_head.weight)
    with torch.no_grad():
        for each in planned.items["nll", 320]:
            states = []
            for name in ("rerope", "origin"):
                with mesa.applied(model, planned.methods[name]):
                    states.append(model.model(torch.tensor([each.ids])).last_hidden_state[0, -each.scored - 1 : -1])
            change = states[0] - states[1]
            weight.index_add_(0, torch.tensor(each.ids[-each.scored :]), 10 * change / max(change.square().sum(), 1e-9))
        model.lm_head.weight.copy_(weight)


def folder(path: Path, heads=(HEAD,)) -> Path:
    """A checkpoint's folder, of a window of 160 tokens."""
    path = tiny.folder(path)
    vocabulary = json.loads((path / "config.json").read_text())["vocab_size"]
    model = planted(heads, vocabulary=vocabulary, trained=160)
    model.save_pretrained(path)
    reading(model, plan(LocateRequest(model=str(path), lengths=(320,), samples=4)))
    model.save_pretrained(path)
    return path
