"""The constructions as Hugging Face models: theory's own attention is the oracle of the shipped executors."""

import numpy as np
import oracle
import pytest
import torch

import mesa
import theory
from mesa.models import load
from probe.capture.capture import capture_states
from probe.capture.spec import HOOKS, CaptureSpec
from theory.parts import POSITION, Shape

M, N, E, LENGTH = 16, 4, 2, 60
CHUNKS = {"window": N, "width": E, "first": 2, "last": 6}
METHODS = {
    "origin": mesa.Origin(trained_length=M),
    "rerope": mesa.ReRoPE(trained_length=M, window=N, log_n=False),
    "stair": mesa.StairPE(trained_length=M, window=N, width=E, log_n=False),
    "mesa": mesa.MesaExtrapolation(trained_length=M, log_n=False, split_threshold=2, **CHUNKS),
}
SHAPE = Shape(vocabulary=257, head=3, heads=3)


def by_theory(name: str) -> theory.Construction:
    if name == "rerope":
        return theory.woven_model(M, N, shape=SHAPE)
    if name == "stair":
        return theory.stair_model(M, N, E, shape=SHAPE)
    plain = theory.plain_model(M, shape=SHAPE)
    if name == "origin":
        return plain
    sizes = {"trained": M, "prompt": LENGTH, "split": 2, **CHUNKS}
    pairs = [[oracle.relative("mesa", t, i, **sizes) for i in range(LENGTH)] for t in range(LENGTH)]
    return plain.with_distances(np.array([[-1 if pair is None else pair for pair in row] for row in pairs], float))


@pytest.fixture(scope="module")
def built():
    return theory.build("plain", M=M, shape=SHAPE)


@pytest.fixture(scope="module")
def folder(built, tmp_path_factory):
    return theory.save(built, tmp_path_factory.mktemp("built"))


def deviation(found, expected):
    return float(((found - expected).abs() / expected.abs().clamp(min=1)).max())


@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize("name", list(METHODS))
def test_executors_agree_with_theorys_own_attention(built, name, executor):
    """In float32 they are 1e-5 apart, another method further than 0.1."""
    own = by_theory(name)
    tokens = own.tokens(LENGTH)
    with torch.no_grad(), mesa.applied(built, METHODS[name], executor=executor):
        found = built.transformer(tokens).last_hidden_state
    expected = own(tokens)
    assert deviation(found[..., : POSITION + 1], expected[..., : POSITION + 1]) < 1e-12
    assert deviation(found, expected) < 1e-10
    others = [by_theory(other)(tokens) for other in METHODS if other != name]
    assert min(deviation(found, other) for other in others) > 0.1


def test_without_a_method_it_is_the_plain_construction(built):
    assert built.config.max_seq_len == M
    own = by_theory("origin")
    tokens = own.tokens(LENGTH)
    assert deviation(built.transformer(tokens).last_hidden_state, own(tokens)) < 1e-10
    first = built(tokens[:, :40], use_cache=True)
    rest = built(tokens[:, 40:], past_key_values=first.past_key_values)
    assert deviation(rest.logits, built(tokens).logits[:, 40:]) < 1e-10


def test_a_construction_without_positions_is_one_too():
    own, made = theory.nope_model(M, 0.3, shape=SHAPE), theory.build("nope", M=M, H=0.3, shape=SHAPE)
    tokens = own.tokens(LENGTH)
    with torch.no_grad(), mesa.applied(made, METHODS["origin"]):
        assert deviation(made.transformer(tokens).last_hidden_state, own(tokens)) < 1e-10


def test_all_hooks_of_probe_are_there_on_a_saved_one(built, folder):
    """o_t is attn_out's third dimension: below H beyond M under Origin, above it under the weave."""
    loaded = load(str(folder))
    assert loaded.model.dtype == torch.float64
    assert all(torch.equal(weight, built.state_dict()[name]) for name, weight in loaded.model.state_dict().items())
    ids = loaded.tokenizer("a text, and émore of it" * 3)["input_ids"][:LENGTH]
    assert (ids[0], min(ids[1:]) > 0) == (0, True)
    bridge = mesa.bridge(loaded.model, loaded.tokenizer)
    t = np.arange(1, LENGTH + 1)
    for name, above in (("origin", t < M), ("stair", np.full(LENGTH, True))):
        for hooks in (HOOKS.keys() - {"q", "k", "v", "z"}, ("q", "k", "v", "z")):
            states = capture_states(bridge, ids, METHODS[name], CaptureSpec(hooks=tuple(hooks)))
            assert states.keys() == set(hooks)
            if "attn_out" in hooks:
                o = states["attn_out"].sel(layer=1, dim=POSITION).values
                far = (t != M) & (t < theory.extended_length(M, N, E))
                assert ((o > 0.5) == above)[far].all()


def test_words_come_back_from_the_tokenizer(folder):
    tokenizer = load(str(folder)).tokenizer
    assert tokenizer.decode(tokenizer(" hello, wörld\n")["input_ids"][1:]) == " hello, wörld\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theory.build("plain", M=M, recovery="log"), "recovery='log' is a function, no matrices; take"),
        (lambda: theory.save(theory.build("nope", M=M, shape=Shape()), "x"), "vocabulary=11 is not the 257 tokens"),
        (
            lambda: theory.save(theory.build("nope", M=M, shape=Shape(vocabulary=258)), "x"),
            "vocabulary=258 is not the 257 tokens",
        ),
    ],
)
def test_what_cannot_be_built_or_saved_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
