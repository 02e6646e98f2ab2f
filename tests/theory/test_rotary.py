"""The rotary constructions: as Llamas under shipped methods, saved and loaded, hooked, decoded; closed forms."""

from functools import partial

import numpy as np
import pytest
import torch

import mesa
import theory
from mesa import weave
from mesa.models import load
from probe.capture.capture import capture_states
from probe.capture.spec import HOOKS, CaptureSpec
from theory.parts import POSITION, Shape
from theory.rotary import READS, Rotary, fails_from, most, ntk_factor, woven_reach, yarn_scale
from theory.rotary_model import FREE

M, N, E, LENGTH = 16, 4, 2, 48
SHAPE = Shape(vocabulary=257, head=6, heads=2)
NTK, YARN = mesa.DynamicNTK(trained_length=M), mesa.YaRN(trained_length=M)
FASTER = (4 * LENGTH / M - 3) ** np.array([0, -0.5, -1.0])
METHODS = {
    "origin": (mesa.Origin(trained_length=M), {}),
    "rerope": (mesa.ReRoPE(trained_length=M, window=N, log_n=False), {"weave": partial(weave.rerope, window=N)}),
    "stair": (
        mesa.StairPE(trained_length=M, window=N, width=E, log_n=False),
        {"weave": partial(weave.stair, window=N, width=E)},
    ),
    "ntk": (NTK, {"factors": tuple(FASTER)}),
    "yarn": (YARN, {"factors": (1.0, 0.25, 0.25), "grown": yarn_scale(4)}),
}


@pytest.fixture(scope="module", params=READS)
def options(request):
    return {"M": M, "reads": request.param, "shape": SHAPE, "pair": 1}


@pytest.fixture(scope="module")
def built(options):
    return theory.build("rotary", **options)


def deviation(found, expected):
    return float(((found - expected).abs() / expected.abs().clamp(min=1)).max())


@pytest.mark.parametrize("name", list(METHODS))
def test_executors_agree_with_theorys_own_attention(built, options, name):
    """Angles in float32, as Llama's own, are 1e-6 apart, another method further than 0.1."""
    method = METHODS[name][0]
    slow = {other: theory.construction("rotary", **options, **METHODS[other][1]) for other in METHODS}
    tokens = slow[name].tokens(LENGTH)
    expected = slow[name](tokens)
    for executor in ("dense", "fused"):
        with torch.no_grad(), mesa.applied(built, method, executor=executor):
            found = built.model(tokens).last_hidden_state
        assert deviation(found[..., :FREE], expected[..., :FREE]) < 1e-12
        assert deviation(found, expected) < 1e-10
    assert min(deviation(found, slow[other](tokens)) for other in METHODS if other != name) > 0.1


@pytest.mark.parametrize("name", list(METHODS))
def test_closed_form_is_theorys_own_model(options, name):
    more = METHODS[name][1]
    own = theory.construction("rotary", **options, **more)
    sizes = Rotary(M=M, reads=options["reads"], pairs=3, pair=1)
    given = {key: value for key, value in more.items() if key in ("weave", "grown")}
    if "factors" in more:
        given["factor"] = more["factors"][1]
    t = np.arange(1, LENGTH + 1)
    np.testing.assert_allclose(1 / own.bos_attention(LENGTH), sizes.denominator(t, **given), rtol=1e-11)
    np.testing.assert_allclose(own.recovered_position(LENGTH), sizes.position(LENGTH, **given), atol=1e-10)


def test_without_a_method_and_decoded_it_is_the_same(built):
    tokens = theory.construction("rotary", M=M, shape=SHAPE).tokens(LENGTH)
    with torch.no_grad(), mesa.applied(built, METHODS["origin"][0]):
        wanted = built(tokens).logits
    first = built(tokens[:, :20], use_cache=True)
    rest = built(tokens[:, 20:], past_key_values=first.past_key_values)
    assert deviation(torch.cat([first.logits, rest.logits], 1), wanted) < 1e-10


def test_logits_read_the_free_directions(built):
    read, written = built.lm_head.weight, built.model.embed_tokens.weight
    assert not read[:, :FREE].any()
    assert torch.equal(read[:, FREE:], written[:, FREE:])
    assert built.config.max_position_embeddings == M


def test_a_saved_one_has_every_hook(built, tmp_path):
    loaded = load(str(theory.save(built, tmp_path)))
    assert loaded.model.dtype == loaded.model.model.rotary_emb.inv_freq.dtype == torch.float64
    assert all(torch.equal(weight, built.state_dict()[name]) for name, weight in loaded.model.state_dict().items())
    assert torch.equal(loaded.model.model.rotary_emb.inv_freq, built.model.rotary_emb.inv_freq)
    ids = loaded.tokenizer("a text, and more of it" * 3)["input_ids"][:LENGTH]
    bridge = mesa.bridge(loaded.model, loaded.tokenizer)
    t = np.arange(1, LENGTH + 1)
    for name, above in (("origin", t < M), ("rerope", np.full(LENGTH, True))):
        for hooks in (HOOKS.keys() - {"q", "k", "v", "z"}, ("q", "k", "v", "z")):
            found = capture_states(bridge, ids, METHODS[name][0], CaptureSpec(hooks=tuple(hooks)))
            assert found.keys() == set(hooks)
            if "attn_out" in hooks:
                o = found["attn_out"].sel(layer=1, dim=POSITION).values
                assert ((o > 0.5) == above)[t != M].all()


def test_keys_of_zero_are_theorem_31_under_every_method():
    made = theory.build("rotary_nope", M=M, H=0.3, shape=Shape(model=8, head=4, heads=2))
    tokens = torch.zeros((1, LENGTH), dtype=torch.long)
    tokens[:, 1:] = 1
    for method, _ in METHODS.values():
        with torch.no_grad(), mesa.applied(made, method):
            o = made.model(tokens).last_hidden_state[0, :, POSITION]
        assert deviation(o, M / torch.arange(1, LENGTH + 1).double() - 0.7) < 1e-12


def test_closed_forms_by_hand():
    """(M, N, K, L) = (8, 2, 8, 8), slope 0.5: T*, where ReRoPE fails first, and what bounds every method."""
    read, counted = (Rotary(M=8, reads=reads, slope=0.5) for reads in READS)
    assert (read.recovers, read.quarter, read.pair, read.exponent) == (8, 8, 1, 1.0)
    assert read.theta == pytest.approx(np.pi / 16, rel=1e-15)
    assert woven_reach(read, 2) == pytest.approx(4 + np.exp(read.amplitude * np.sin(2 * read.theta)) * 4.7836, rel=1e-4)
    assert int(woven_reach(counted, 2)) + 1 == 117
    t = np.array([116, 117])
    below = counted.denominator(t, partial(weave.rerope, window=2)) < 8
    assert below.tolist() == [True, False]
    assert counted.position(12).tolist() == pytest.approx([*range(1, 9), 8, 8, 8, 8])
    assert fails_from(counted, np.arange(100) / 4) == 35  # (t - 1) / 4 >= 7 + 6 / 4
    assert fails_from(counted, weave.rerope(np.arange(100), 2)) is None
    assert most(counted) == pytest.approx(8 * np.exp(2 * 8 / np.pi))
    assert ntk_factor(counted, 2.0, 16) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("sizes", "window", "begins"),
    [({"M": 12, "slope": 0.1}, 11, 22), ({"M": 16, "reads": "count", "recovers": 64, "slope": 0.05}, 2, 66)],
)
def test_a_slope_too_small_for_the_reach_is_refused(sizes, window, begins):
    """The line would tell 16.03 and -89.9, D reaches M at 14 and 28."""
    made = Rotary(**sizes)
    D = made.denominator(np.arange(1, begins + 1), partial(weave.rerope, window=window))
    assert (D[made.M :] >= made.M).any()
    with pytest.raises(ValueError, match=f"D reaches M={made.M} before t={begins}; take a larger slope"):
        woven_reach(made, window)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"M": 16, "reads": "touch"}, "reads='touch' is not known; take rotation or count"),
        ({"M": 2}, "M=2 is below 3"),
        ({"M": 16, "recovers": 15}, "recovers=15 positions are too few for M=16; take recovers >= 16"),
        ({"M": 16, "quarter": 9}, "quarter=9 is less than the 15 distances to tell apart"),
        ({"M": 16, "reads": "count", "quarter": 1}, "quarter=1 turns too fast"),
        ({"M": 16, "pair": -2}, "pair=0 turns by 1 a token whatever the base"),
        ({"M": 16, "pair": 2}, "pair=2 is none of the 2 of a head; take 1 .. 1"),
        ({"M": 16, "pair": -3}, "pair=-3 is none of the 2 of a head"),
        ({"M": 16, "recovers": 16.5}, "recovers=16.5 is not a whole number"),
        ({"M": 16, "slope": 0.0}, "slope=0.0 is not a positive finite number"),
        ({"M": 4096}, "slope=1.0 over recovers=4096 positions overflows; take e.g. 0.17"),
    ],
)
def test_sizes_without_a_theorem_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Rotary(**sizes)


def test_positions_that_a_dtype_does_not_tell_apart_are_refused():
    """The last third's 1 / x, up to e^99, is beyond float32: these would be read as the position where it ends."""
    assert theory.construction("rotary", M=128, dtype=torch.float32).recovered_position(128)[-1] == pytest.approx(
        128, abs=0.01
    )
    with pytest.raises(ValueError, match=r"slope=1.0 over recovers=155 positions leaves them .* off in float32; take"):
        theory.construction("rotary", M=155, dtype=torch.float32)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(head=3), "head=3, model=8 do not fit; take an even head size"),
        (Shape(heads=3), "model=8 is no multiple of heads=3, as Llama's config asks"),
    ],
)
def test_shapes_that_are_no_llama_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        theory.build("rotary", M=8, shape=shape)
