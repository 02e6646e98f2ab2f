import json
import re
from pathlib import Path
from types import SimpleNamespace

import cases
import numpy as np
import oracle
import pytest
from hypothesis import given, settings, strategies as st
from transformers import BloomConfig, LlamaConfig, MptConfig

import mesa
from mesa.methods.chunked import MIDDLES, WEAVES
from mesa.plan import distances, reach, restarts, rotary_base
from mesa.settings import make_methods
from mesa.support import check_method

BY_HAND = {
    "rerope": (
        mesa.ReRoPE(trained_length=8, window=2), 4, 4, "1: 1 0 .|2: 2 1 0 .|3: 2 2 1 0"),
    "stair": (  # paper, figure 1 right: N = 4, E = 2
        mesa.StairPE(trained_length=8, window=4, width=2), 10, 10, "9: 7 6 6 5 5 4 3 2 1 0"),
    "mesa": (
        mesa.MesaExtrapolation(trained_length=5, window=2, width=2, first=1, last=2, split_threshold=1), 10, 9,
        "0: 0|1: 1 0|2: 2 1 0|3: 3 2 1 0|4: 1 . . . 0|5: 2 . . . 1 0|6: 3 . . . 2 1 0"  # chunks follow the first one
        "|7: 5 4 4 3 3 2 1 0|8: 5 5 4 4 3 3 2 1 0|9: 6 5 5 4 4 3 3 2 1 0"),  # the last one and decoded tokens: Stair
    "mesa, woven middle chunks": (
        mesa.MesaExtrapolation(
            trained_length=9, window=2, width=2, first=2, last=1, split_threshold=1, middle="woven"), 17, 17,
        "2: 2 1 0|5: 5 4 3 2 1 0|9: 6 5 . . . . . . . 0|12: 7 7 . . . . . . . 3 2 1 0"  # W(9), W(8); W(12), W(11)
        "|15: 9 8 . . . . . . . 6 5 4 3 2 1 0"),  # locally 8 and 7
    "mesa, no middle chunk": (  # 5 + ceil((r - 5) / 3)
        mesa.MesaExtrapolation(trained_length=24, window=5, width=3, first=4, last=18, split_threshold=5), 25, 25,
        "10: 7 7 6 6 6 5 4 3 2 1 0"),
    "crop": (  # the prompt's last three see nothing before them, a decoded token the last three
        mesa.Crop(trained_length=3), 7, 5,
        "0: 0|1: 1 0|2: . . 0|3: . . 1 0|4: . . 2 1 0|5: . . . 2 1 0|6: . . . . 2 1 0"),
    "dca": (  # from 5 on the chunk before is no farther than 4
        mesa.DCA(trained_length=6, chunk=3, most=4), 8, 8,
        "0: 0|1: 1 0|2: 2 1 0|3: 3 2 1 0|4: 4 3 2 1 0|5: 4 3 2 2 1 0|6: 4 3 2 3 2 1 0|7: 4 3 2 4 3 2 1 0"),
    "dca, far": (
        mesa.DCA(trained_length=24, chunk=3, most=20), 9, 9, "6: 5 4 3 3 2 1 0|8: 5 4 3 5 4 3 2 1 0"),
    "string": (
        mesa.STRING(trained_length=6, window=3, local=1), 6, 6,
        "0: 0|1: 1 0|2: 2 1 0|3: 1 2 1 0|4: 2 1 2 1 0|5: 3 2 1 2 1 0"),
    "lampe": (  # L = 9, g(x) = 4 x // 8: 0 0 1 1 2 2 3 3 4; e = 3, b1 = 2 - 1 - 1 = 0, b2 = 5 - 2 - 0 = 3
        mesa.LaMPE(trained_length=8, window=2, tail=2, mapped=4), 10, 9,
        "0: 0|3: 1 1 1 0|5: 2 2 1 1 1 0|6: 3 3 2 2 1 1 0|8: 5 4 3 3 2 2 1 1 0|9: 6 5 4 3 2 2 1 1 1 0"),
    "lampe, to more positions": (  # L = 4, g(x) = 40 x // 3: 0 13 26 40; e = 2, b1 = 2 - 26 - 1, b2 = 1 - 13 + 25 = 13
        mesa.LaMPE(trained_length=64, window=2, tail=2, mapped=40), 16, 4,
        "0: 0|1: 1 0|2: 0 1 0|3: 0 0 1 0|15: 2 1 0 0 0 0 0 0 0 0 0 0 0 0 1 0"),
    "lampe, short": (mesa.LaMPE(trained_length=8, window=2, tail=2, mapped=4), 3, 3, "0: 0|1: 1 0|2: 2 1 0"),
}  # fmt: skip
"""Method, length, prompt, and distances of queries to the keys from 0 on; a dot: masked, as is what is left out."""


@pytest.mark.parametrize("case", list(BY_HAND))
def test_distances_by_hand(case):
    method, length, prompt, rows = BY_HAND[case]
    matrix = distances(method.plan(length, prompt))
    for query, row in (row.split(":") for row in rows.split("|")):
        expected = [-1 if distance == "." else int(distance) for distance in row.split()]
        assert matrix[int(query)].tolist() == expected + [-1] * (length - len(expected))


def test_a_rest_of_the_split_threshold_is_a_chunk_more():
    sizes = {"window": 5, "width": 3, "first": 4, "split_threshold": 3}
    method = mesa.MesaExtrapolation(trained_length=24, last=6, **sizes)
    assert method.chunks(32) == [0, 4, 24, 32]
    assert method.chunks(33) == [0, 4, 15, 26, 33]
    reference = mesa.MesaExtrapolation(trained_length=64, last=8, **sizes, variant="reference", headroom=8)
    assert reference.chunks(56) == [0, 56]  # with 8 tokens of the answer: 64
    assert reference.chunks(57) == [0, 4, 57]
    assert reference.chunks(62) == [0, 4, 60, 62]  # 58 is 56 and a rest of 2
    assert reference.chunks(100) == [0, 4, 52, 100]  # 96 is 56 and a rest of 40: two of 48


def test_lampes_mapped_length_is_the_authors_scaled_to_the_window():
    lengths = [mesa.LaMPE(trained_length=128).mapped_length(prompt) for prompt in (64, 200, 333)]
    assert lengths == [48, 48, 44]
    assert mesa.LaMPE(trained_length=2000).tail == 98  # 97.7, where rounding down leaves 97
    assert mesa.LaMPE(trained_length=4096).mapped_length(32768) == 2239
    assert [mesa.LaMPE(trained_length=4096).mapped_length(prompt) for prompt in (8191, 8192)] == [1536, 1283]


def checked_plan(name, length, prompt, queries, **changes):
    """The method's plan, in which every pair is in one region, and has the formula's distance to these queries."""
    plan = cases.method(name, **changes).plan(length, prompt)
    tokens, matrix = np.arange(length), distances(plan)
    assert sum(region.contains(tokens[:, None], tokens).astype(int) for region in plan.regions).max() <= 1
    parameters = {"trained": cases.TRAINED, "prompt": prompt, **cases.CASES[name], **changes}
    for t in queries:
        expected = [oracle.relative(name, t, i, **parameters) for i in range(length)]
        assert matrix[t].tolist() == pytest.approx([-1 if r is None else r for r in expected])
    return plan


@pytest.mark.parametrize("middle", MIDDLES)
@pytest.mark.parametrize("weave", WEAVES)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(("length", "prompt"), [(90, 80), (30, 20)])
def test_what_is_woven_and_where(weave, middle, width, length, prompt):
    changes, tokens = {"weave": weave, "middle": middle, "width": width}, np.arange(length)
    plan = checked_plan("mesa", length, prompt, range(length), **changes)
    assert all(region.contains(tokens[:, None], tokens).any() for region in plan.regions if not region.holds)


@pytest.mark.parametrize("name", list(cases.CASES))
@settings(max_examples=60)
@given(length=st.integers(1, 90), decoded=st.integers(0, 20))
def test_every_pair_is_in_one_region_and_has_the_formulas_distance(name, length, decoded):
    total = length + decoded
    checked_plan(name, total, length, {0, length - 1, total - 1, total // 2})


@pytest.mark.parametrize(("trained", "sizes"), [(8, {}), (64, {"window": 1, "tail": 1})])
def test_lampe_passes_no_key_a_distance_below_0(trained, sizes):
    method = mesa.LaMPE(trained_length=trained, **sizes)
    for prompt in range(1, 40):
        plan = method.plan(prompt + 20, prompt)
        np.testing.assert_array_equal(distances(plan) >= 0, np.tri(prompt + 20, dtype=bool))
        assert all(region.farthest is None or region.nearest <= region.farthest for region in plan.regions)


@given(
    trained=st.integers(8, 300), extra=st.integers(1, 2000), share=st.floats(0.01, 0.45), threshold=st.integers(1, 50)
)
def test_mesa_chunks_stay_within_the_window(trained, extra, share, threshold):
    first = last = max(1, int(share * trained))
    sizes = {"trained_length": trained, "window": 1, "first": first, "last": last, "split_threshold": threshold}
    method = mesa.MesaExtrapolation(**sizes, variant="exact")
    borders = method.chunks(trained + extra)
    widths = np.diff(borders)
    assert borders[0] == 0
    assert borders[-1] == trained + extra
    assert (widths > 0).all()
    assert (widths[1:-1] + first <= trained).all()
    assert widths[-1] >= last


MESAS = [
    {"trained_length": 24, "window": 5, "width": 3, "first": 4, "last": 6, "split_threshold": 3},
    {"trained_length": 128, "split_threshold": 12},
    {"trained_length": 4096},
]


@pytest.mark.parametrize("settings", MESAS)
@pytest.mark.parametrize(("variant", "headroom"), [("exact", 8), ("reference", 0), ("reference", 8), ("reference", 50)])
def test_mesa_plans_prompts_of_every_length(settings, variant, headroom):
    """Whole, or growing from a short prompt; every query is in a plan, and the reference spares prompts with room."""
    method = mesa.MesaExtrapolation(**settings, variant=variant, headroom=headroom)
    trained = method.trained_length
    for length in range(1, 4 * trained + 1, 1 + trained // 500):
        borders = method.chunks(length)
        assert borders[0] == 0
        assert borders[-1] == length
        assert (np.diff(borders) > 0).all(), borders
        assert (np.diff(borders[1:-1]) + method.first <= trained).all(), borders
        if length <= (trained - headroom if variant == "reference" else trained):
            assert borders == [0, length]
        for plan in (method.plan(length), method.plan(length, min(length, 28))):
            begins = {region.queries[0] for region in plan.regions if region.queries[0] < region.queries[1]}
            ends = {region.queries[1] for region in plan.regions if region.queries[0] < region.queries[1]}
            assert begins | {length} == ends | {0}, (length, begins, ends)


BAD = [
    ("rerope", {"window": 64}, "window=64 is not below the trained length 64"),
    ("rerope", {"window": -3}, "window=-3 is below 1"),
    ("rerope", {"window": 6.5}, "window=6.5 is not an integer"),
    ("rerope", {"window": True}, "window=True is not an integer"),
    ("rerope", {"log_n": "no"}, "log_n=no is not true or false"),
    ("rerope", {"log_n": None}, "log_n=None is not true or false"),
    ("rerope", {"window": np.arange(2)}, "window=[0 1] is not an integer"),
    ("rerope", {"trained_length": None}, "trained_length=None is not an integer"),
    ("leaky-rerope", {"k": None}, "k=None is not a number"),
    ("dynamic-ntk", {"factor": None}, "factor=None is not a number"),
    ("rerope", {"width": 3}, "unknown parameter 'width'; known: heads, layers, log_n, window"),
    ("rerope", {"layers": 1}, "layers=1 is not a sequence of different layers, such as (0, 1)"),
    ("rerope", {"layers": (1, 1)}, "layers=(1, 1) is not a sequence of different layers"),
    ("rerope", {"heads": "2:0", "layers": (1,)}, "heads=2:0 and layers=(1,) are both passed; pass one"),
    ("leaky-rerope", {"k": "x"}, "k=x is not a number"),
    ("leaky-rerope", {"k": 0.5}, "k=0.5 is below 1"),
    ("stair", {"width": 0}, "width=0 is below 1"),
    ("mesa", {"first": 30, "last": 34}, "first=30 plus last=34 is not below the trained length 64"),
    ("mesa", {"variant": "fast"}, "variant=fast is not exact, reference"),
    ("mesa", {"variant": "reference", "middle": "woven"}, "middle=woven goes with variant exact, not reference"),
    ("mesa", {"variant": "reference", "weave": "rerope"}, "weave=rerope goes with variant exact, not reference"),
    ("mesa", {"first": 32, "last": 8, "variant": "reference"}, "first=32 is not below half of the trained length 64"),
    ("pi", {"factor": 0.5}, "factor=0.5 is below 1"),
    ("yarn", {"factor": None}, "factor=None is not a number"),
    ("cope", {"clip": 1}, "clip=1 is below 2 pairs, which changes nothing"),
    ("dca", {"chunk": 20, "most": 19}, "most=19 is below chunk=20"),
    ("string", {"window": 5, "local": 6}, "local=6 exceeds window=5"),
    ("lampe", {"tail": 9}, "tail=9 exceeds window=8"),
]
BAD += [
    ("rerope", {"heads": bad}, f"heads={bad} names no different heads by layer; write it as {{1: (5,), 2: (0, 3)}} or")
    for bad in ("2:", "2:0;", "-1:0", "2:0-99999999", "2:3-1", "2:0,0-1", "2:0,x", "2:0;2:1", {}, {2: ()}, 2,
                {2: (0, -1)}, {2: (0.5,)})
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "message"), BAD)
def test_bad_parameters_are_named(name, parameters, message):
    with pytest.raises(ValueError, match=re.escape(f"{name}: {message}")):
        mesa.make(name, **{"trained_length": 64} | parameters)


def test_numbers_of_numpy_are_kept_as_pythons():
    values = {"k": np.float32(2.5), "window": np.int8(100), "log_n": np.bool_(False), "layers": (np.int64(1),)}
    method = mesa.make("leaky-rerope", np.int16(16384), **values)
    assert json.loads(json.dumps(method.describe())) == method.describe() | {"layers": [1]}
    assert (method.window * method.trained_length, method.k, method.log_n) == (1638400, 2.5, False)


def heads(given, **changes):
    return mesa.make("rerope", 64, heads=given, **changes)


def test_heads_are_kept_in_one_form_however_they_are_written():
    method = make_methods("rerope", 64, ["rerope.heads=2:3,0; 1:0-2"])["rerope"]
    assert method.heads == ((1, (0, 1, 2)), (2, (0, 3)))
    assert [method.heads_in(layer) for layer in range(4)] == [(), (0, 1, 2), (0, 3), ()]
    for same in ({2: (0, 3), 1: range(3)}, {1: {0, 1, 2}, 2: np.array([3, 0])}, [(2, [0, 3]), (1, [2, 1, 0])]):
        assert heads(same) == method
        assert hash(heads(same)) == hash(method)
    assert make_methods("rerope", 64, ["rerope.heads={2: (0, 3), 1: (0, 1, 2)}"])["rerope"] == method
    assert mesa.ReRoPE(trained_length=64).heads_in(5) is None
    assert [mesa.ReRoPE(trained_length=64, layers=(1,)).heads_in(layer) for layer in (0, 1)] == [(), None]


def test_what_a_record_says_of_heads_makes_the_method_again():
    record = json.loads(json.dumps(heads("2:0,3").describe()))
    assert mesa.make(record.pop("name"), record.pop("trained_length"), **record) == heads("2:0,3")
    assert mesa.ReRoPE(trained_length=64).describe() == {  # as it was before there were heads
        "name": "rerope", "trained_length": 64, "log_n": True, "layers": None, "window": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "last"),
    [(LlamaConfig(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2), 3), (MptConfig(n_layers=3), 15),
     (BloomConfig(n_layer=3, n_head=6), 5)],
)  # fmt: skip
def test_layers_and_heads_that_a_model_lacks_are_named_with_what_it_has(config, last):
    check_method(config, heads({0: (0,), 2: (1, last)}))
    with pytest.raises(ValueError, match=f"head {last + 1} of layer 1 is out of range; the model has heads 0-{last}"):
        check_method(config, heads({0: (0,), 1: (0, last + 1)}))
    for changes in ({"heads": {0: (0,), 3: (0,)}}, {"layers": (0, 3)}):
        with pytest.raises(ValueError, match="layer 3 is out of range; the model has layers 0-2"):
            check_method(config, mesa.make("rerope", 64, **changes))


def test_switches_are_read_in_any_case():
    for text in ("false", "False", "FALSE"):
        assert make_methods("rerope", 64, [f"rerope.log_n={text}"])["rerope"].log_n is False
    assert make_methods("stair", 64, ["stair.log_n=true"])["stair"].log_n is True
    assert make_methods("rerope", 64, ["rerope.layers=0,1"])["rerope"].layers == (0, 1)


def test_sizes_left_out_are_the_papers_scaled_to_the_window():
    paper = mesa.MesaExtrapolation(trained_length=4096)
    assert (paper.window, paper.width, paper.first, paper.last, paper.split_threshold) == (512, 50, 100, 512, 200)
    small = mesa.MesaExtrapolation(trained_length=256)
    assert (small.window, small.width, small.first, small.last, small.split_threshold) == (32, 50, 6, 32, 12)
    shares = {"rerope": 8, "leaky-rerope": 8, "self-extend": 4, "stair": 8}
    assert {name: 256 // mesa.make(name, 256).window for name in shares} == shares
    assert mesa.StreamingLLM(trained_length=256).window == 252
    assert (mesa.DCA(trained_length=256).chunk, mesa.DCA(trained_length=256).most) == (160, 192)


@pytest.fixture
def install(monkeypatch):
    """Has an entry point's method found as an installed package's."""

    def add(point):
        monkeypatch.setattr("mesa.plugins.named_in", lambda group: [point] if group == "mesa_lens.methods" else [])

    return add


def test_the_documented_new_method_is_known_by_name_and_does_what_it_says(install):
    text = (Path(__file__).parents[2] / "docs" / "new-method.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 40
    namespace: dict = {}
    exec(code, namespace)
    install(SimpleNamespace(load=lambda: namespace["Coarse"], value="my_package:Coarse"))
    method = mesa.make("coarse", 64, window=2, width=2)
    assert str(distances(method.plan(6))) == text.split("by hand:\n\n```\n")[1].split("\n```")[0]


def test_two_methods_of_one_name_are_an_error(install):
    install(SimpleNamespace(load=lambda: SimpleNamespace(name="rerope"), value="my_package:Other"))
    with pytest.raises(ValueError, match=r"Other is called 'rerope', as another of mesa_lens\.methods is; rename"):
        mesa.make("rerope", 64)


@pytest.mark.parametrize("name", list(mesa.METHODS))
def test_positions_begin_anew_where_the_largest_distance_falls(name):
    plan = mesa.make(name, 64).plan(300)
    largest = reach(plan)
    falls = [int(t) for t in np.flatnonzero(np.diff(largest) < -1) + 1]
    assert restarts(plan) == {at: int(largest[at]) for at in falls}
    assert bool(falls) == (name in ("mesa", "crop"))


def test_a_fall_by_one_is_no_new_beginning():
    plan = mesa.MesaExtrapolation(trained_length=16, first=2, last=4, window=6, width=3, split_threshold=2).plan(35)
    assert reach(plan)[[29, 30]].tolist() == [15, 14]
    assert restarts(plan) == {16: 2}


def test_yarns_ramp_begins_and_ends_where_pairs_turn_32_times_and_once():
    """Of 32 pairs in M = 2048: 8.06, rounded down, and 20.10, rounded up."""
    share = mesa.YaRN(trained_length=2048).plan(1).frequency_scale(np.array([0, 8, 9, 20, 21, 31]), 64, 1e4)
    assert share.tolist() == pytest.approx([1, 1, 1 - 0.75 / 13, 1 - 0.75 * 12 / 13, 0.25, 0.25])


@pytest.mark.parametrize(
    ("clip", "dims", "base", "trained", "first"),
    [
        (None, 64, 1e7, 262_144, 22),  # the mlx-vlm port's example: 10 of 32 pairs turn less than once
        (None, 128, 5e5, 8192, 35),  # Llama-3: the paper's CoPE-29
        (20, 128, 1e7, 8192, 44),  # the paper's own onset
        (99, 8, 1e4, 24, 0),
        (None, 8, 1e4, 10**6, 4),  # all pairs turn
    ],
)
def test_copes_taper_begins_where_stated_and_ends_at_zero(clip, dims, base, trained, first):
    method = mesa.CoPE(trained_length=trained, clip=clip)
    share = method.plan(1).frequency_scale(np.arange(dims / 2), dims, base)
    taper = (1 + np.cos(np.linspace(0, np.pi, dims // 2 - first))) / 2
    np.testing.assert_allclose(share, [*np.ones(first), *taper], atol=1e-12)


def test_the_base_is_read_off_the_frequencies():
    for pairs in (2, 3, 32):
        assert rotary_base(1e4 ** (-np.arange(pairs) / pairs)) == pytest.approx(1e4)
    assert rotary_base([1.0]) == rotary_base(np.array([1.0, 0.1, 0.0])) == np.inf
