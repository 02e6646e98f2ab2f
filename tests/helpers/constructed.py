"""What holds of a construction as a Hugging Face model, with theory's own attention as the oracle of the executors."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

import mesa
import theory
from mesa.models import load
from probe.capture.capture import capture_states
from probe.capture.spec import HOOKS, CaptureSpec
from research.theorems.pretrained import save
from theory.parts import POSITION, Shape

M, N, E, LENGTH = 16, 4, 2, 48
CHUNKS = {"window": N, "width": E, "first": 2, "last": 6}
METHODS = {
    "origin": mesa.Origin(trained_length=M),
    "rerope": mesa.ReRoPE(trained_length=M, window=N, log_n=False),
    "stair": mesa.StairPE(trained_length=M, window=N, width=E, log_n=False),
    "mesa": mesa.MesaExtrapolation(trained_length=M, log_n=False, split_threshold=2, **CHUNKS),
    "ntk": mesa.DynamicNTK(trained_length=M),
    "yarn": mesa.YaRN(trained_length=M),
}
SHAPE = Shape(vocabulary=257, head=6, heads=2)


@dataclass(frozen=True)
class Family:
    """A built model, its oracles by method, and the first free direction of its residual stream."""

    built: PreTrainedModel
    oracles: dict[str, theory.Construction]
    free: int

    def states(self, tokens):
        return self.built.base_model(tokens).last_hidden_state


def deviation(states, expected):
    return float(((states - expected).abs() / expected.abs().clamp(min=1)).max())


def check_executors(family):
    """In float32 they are 1e-5 apart, another method further than 0.1."""
    tokens = family.oracles["origin"].tokens(LENGTH)
    expected = {name: model(tokens) for name, model in family.oracles.items()}
    for name, states in expected.items():
        for executor in ("dense", "fused"):
            with torch.no_grad(), mesa.applied(family.built, METHODS[name], executor=executor):
                computed = family.states(tokens)
            assert deviation(computed[..., : family.free], states[..., : family.free]) < 1e-12, name
            assert deviation(computed, states) < 1e-10, name
        assert min(deviation(computed, expected[other]) for other in expected if other != name) > 0.1, name


def check_decoded(family):
    tokens = family.oracles["origin"].tokens(LENGTH)
    assert deviation(family.states(tokens), family.oracles["origin"](tokens)) < 1e-10
    first = family.built(tokens[:, :20], use_cache=True)
    rest = family.built(tokens[:, 20:], past_key_values=first.past_key_values)
    assert deviation(torch.cat([first.logits, rest.logits], 1), family.built(tokens).logits) < 1e-10


def check_read_out(family):
    read, written = family.built.lm_head.weight, family.built.get_input_embeddings().weight
    assert not read[:, : family.free].any()
    assert torch.equal(read[:, family.free :], written[:, family.free :])
    config = family.built.config
    assert (config.max_seq_len if hasattr(config, "max_seq_len") else config.max_position_embeddings) == M


def check_saved(family, folder, dtype=None):
    """o_t is attn_out's third dimension: below H beyond M under Origin, above it under the remap."""
    loaded = load(str(save(family.built, folder)), dtype=dtype)
    assert loaded.model.dtype == torch.float64
    weights = family.built.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.model.state_dict().items())
    ids = loaded.tokenizer("a text, and émore of it" * 3)["input_ids"][:LENGTH]
    assert (ids[0], min(ids[1:]) > 0) == (0, True)
    assert loaded.tokenizer.decode(loaded.tokenizer(" hello, wörld\n")["input_ids"][1:]) == " hello, wörld\n"
    bridge = mesa.bridge(loaded.model, loaded.tokenizer)
    t = np.arange(1, LENGTH + 1)
    for name, above in (("origin", t < M), ("rerope", np.full(LENGTH, True))):
        states = capture_states(bridge, ids, METHODS[name], CaptureSpec(hooks=tuple(HOOKS)))
        assert states.keys() == HOOKS.keys()
        o = states["attn_out"].sel(layer=1, dim=POSITION).values
        assert ((o > 0.5) == above)[t != M].all()


def check_keys_alike(model, methods):
    """Theorem 3.1: o_t = M / t - 1 + H, H = 0.3, under each of these methods."""
    tokens = theory.construction("nope", M=M, shape=SHAPE).tokens(LENGTH)
    for method in methods:
        with torch.no_grad(), mesa.applied(model, METHODS[method]):
            o = model.base_model(tokens).last_hidden_state[0, :, POSITION]
        assert deviation(o, M / torch.arange(1, LENGTH + 1).double() - 0.7) < 1e-12


def check_seeds(build, free):
    """Alone the constructed head's matrices and the named rows are the same for every seed."""
    shape = Shape(head=6, heads=3)
    one, again, other = (dict(build(8, shape=shape, seed=seed).named_buffers()) for seed in (1, 1, 2))
    assert one["blocks.0.attn.W_Q"].shape == (shape.heads, shape.head, shape.model)
    assert all(torch.equal(matrix, again[name]) for name, matrix in one.items())
    assert torch.equal(one["W_E"][:free], other["W_E"][:free])
    assert (one["W_E"][free:] != other["W_E"][free:]).all()
    for name in filter(lambda name: name.endswith("attn.W_V"), one):
        assert torch.equal(one[name][0], other[name][0])
        assert (one[name][1:, :, :POSITION] != other[name][1:, :, :POSITION]).all()
