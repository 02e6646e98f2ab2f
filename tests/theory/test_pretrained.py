"""The constructions as Hugging Face models, MPT and Llama: theory's own attention is the oracle of the executors."""

from functools import partial

import numpy as np
import oracle
import pytest
import torch

import mesa
import theory
from mesa.models import load
from probe.capture.capture import capture_states
from probe.capture.spec import HOOKS, CaptureSpec
from theory import weave
from theory.parts import FREE, POSITION, Shape
from theory.rotary import READS, Rotary, yarn_scale
from theory.rotary_model import FREE as ROTARY_FREE

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
ROTARY = {
    "origin": {},
    "rerope": {"weave": partial(weave.rerope, window=N)},
    "stair": {"weave": partial(weave.stair, window=N, width=E)},
    "ntk": {"factors": tuple((4 * LENGTH / M - 3) ** np.array([0, -0.5, -1.0]))},
    "yarn": {"factors": (1.0, 0.25, 0.25), "grown": yarn_scale(4)},
}


def by_pairs() -> theory.Construction:
    """The plain construction with Mesa's distances, pair by pair."""
    sizes = {"trained": M, "prompt": LENGTH, "split": 2, **CHUNKS}
    pairs = [[oracle.relative("mesa", t, i, **sizes) for i in range(LENGTH)] for t in range(LENGTH)]
    table = np.array([[-1 if pair is None else pair for pair in row] for row in pairs], float)
    return theory.construction("plain", M=M, shape=SHAPE).with_distances(table)


class Family:
    """A built model and its oracles by method: MPT for 'bias', else a Llama that reads positions that way."""

    def __init__(self, reads: str) -> None:
        rotary = {"M": M, "reads": reads, "shape": SHAPE, "pair": 1}
        if reads == "bias":
            self.built = theory.build("plain", M=M, shape=SHAPE)
            self.oracles = {"origin": theory.construction("plain", M=M, shape=SHAPE), "mesa": by_pairs()}
            self.oracles["rerope"] = theory.construction("woven", M=M, N=N, shape=SHAPE)
            self.oracles["stair"] = theory.construction("stair", M=M, N=N, E=E, shape=SHAPE)
        else:
            self.built = theory.build("rotary", **rotary)
            self.oracles = {
                name: theory.construction("rotary", **rotary).under(**more) for name, more in ROTARY.items()
            }
        self.free = FREE if reads == "bias" else ROTARY_FREE
        self.states = lambda tokens: self.built.base_model(tokens).last_hidden_state


@pytest.fixture(scope="module", params=["bias", *READS])
def family(request):
    return Family(request.param)


def deviation(states, expected):
    return float(((states - expected).abs() / expected.abs().clamp(min=1)).max())


def test_executors_agree_with_theorys_own_attention(family):
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


def test_without_a_method_and_decoded_it_is_the_plain_construction(family):
    tokens = family.oracles["origin"].tokens(LENGTH)
    assert deviation(family.states(tokens), family.oracles["origin"](tokens)) < 1e-10
    first = family.built(tokens[:, :20], use_cache=True)
    rest = family.built(tokens[:, 20:], past_key_values=first.past_key_values)
    assert deviation(torch.cat([first.logits, rest.logits], 1), family.built(tokens).logits) < 1e-10


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", list(ROTARY))
def test_closed_form_is_theorys_own_model(reads, name):
    options = dict(ROTARY[name])
    model = theory.construction("rotary", M=M, reads=reads, shape=SHAPE, pair=1).under(**options)
    if "factors" in options:
        options["factor"] = options.pop("factors")[1]
    sizes, t = Rotary(M=M, reads=reads, pairs=3, pair=1), np.arange(1, LENGTH + 1)
    np.testing.assert_allclose(1 / model.bos_attention(LENGTH), sizes.denominator(t, **options), rtol=1e-11)
    np.testing.assert_allclose(model.recovered_position(LENGTH), sizes.position(LENGTH, **options), atol=1e-10)


def test_logits_read_the_free_directions_and_the_config_has_the_window(family):
    read, written = family.built.lm_head.weight, family.built.get_input_embeddings().weight
    assert not read[:, : family.free].any()
    assert torch.equal(read[:, family.free :], written[:, family.free :])
    config = family.built.config
    assert (config.max_seq_len if hasattr(config, "max_seq_len") else config.max_position_embeddings) == M


def test_a_saved_one_has_every_hook_and_its_words_come_back(family, tmp_path):
    """o_t is attn_out's third dimension: below H beyond M under Origin, above it under the weave."""
    loaded = load(str(theory.save(family.built, tmp_path)))
    assert loaded.model.dtype == torch.float64
    weights = family.built.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.model.state_dict().items())
    ids = loaded.tokenizer("a text, and émore of it" * 3)["input_ids"][:LENGTH]
    assert (ids[0], min(ids[1:]) > 0) == (0, True)
    assert loaded.tokenizer.decode(loaded.tokenizer(" hello, wörld\n")["input_ids"][1:]) == " hello, wörld\n"
    bridge = mesa.bridge(loaded.model, loaded.tokenizer)
    t = np.arange(1, LENGTH + 1)
    for name, above in (("origin", t < M), ("rerope", np.full(LENGTH, True))):
        for hooks in (HOOKS.keys() - {"q", "k", "v", "z"}, ("q", "k", "v", "z")):
            states = capture_states(bridge, ids, METHODS[name], CaptureSpec(hooks=tuple(hooks)))
            assert states.keys() == set(hooks)
            if "attn_out" in hooks:
                o = states["attn_out"].sel(layer=1, dim=POSITION).values
                assert ((o > 0.5) == above)[t != M].all()


@pytest.mark.parametrize(("name", "methods"), [("nope", ["origin"]), ("rotary_nope", list(ROTARY))])
def test_keys_alike_are_theorem_31_under_every_method(name, methods):
    model = theory.build(name, M=M, H=0.3, shape=SHAPE)
    tokens = theory.construction("nope", M=M, shape=SHAPE).tokens(LENGTH)
    for method in methods:
        with torch.no_grad(), mesa.applied(model, METHODS[method]):
            o = model.base_model(tokens).last_hidden_state[0, :, POSITION]
        assert deviation(o, M / torch.arange(1, LENGTH + 1).double() - 0.7) < 1e-12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theory.build("plain", M=M, recovery="log"), "recovery='log' is a function, no matrices; take"),
        (
            lambda: theory.save(theory.build("nope", M=M, shape=Shape(vocabulary=300)), "x"),
            "vocabulary=300 is not the 257 tokens",
        ),
    ],
)
def test_what_cannot_be_built_or_saved_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
