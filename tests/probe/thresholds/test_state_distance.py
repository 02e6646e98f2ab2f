"""Distances of states on text to the in-window distribution: against scikit-learn's, and both ways."""

import copy
import warnings

import numpy as np
import pytest
import torch
import xarray as xr
from commands import main
from sklearn.covariance import LedoitWolf
from synthetic import evaluation, hidden_states, write_run
from transformers import DynamicCache, LogitsProcessor

import mesa
import probe
from mesa.errors import Refused
from probe.figures.states import distance_layers
from probe.thresholds.state_distance import compared, find_distance_by_length, text_distances
from probe.thresholds.watch import StateWatch

M, DIMS = 64, 24


def correlated(rng, texts=8, tokens=64):
    """States (text, token, dim) in which few directions carry most of the motion, about a centre far from 0."""
    mixing = rng.normal(size=(DIMS, DIMS)) * np.geomspace(10, 0.1, DIMS)[:, None]
    return rng.normal(size=(texts, tokens, DIMS)) @ mixing + 100, mixing


def test_the_distance_is_that_of_the_covariance_in_all_directions():
    rng = np.random.default_rng(0)
    states, _ = correlated(rng)
    reference = probe.StateReference.fit(states)
    rows = states.reshape(-1, DIMS)
    scores = (rows - rows.mean(0)) @ reference.components.components_.T
    covariance = LedoitWolf().fit(scores / scores.std(0, ddof=1)).covariance_
    expected = [score @ np.linalg.solve(covariance, score) / DIMS for score in (scores / scores.std(0, ddof=1))[:5]]
    np.testing.assert_allclose(reference.distances(states[0, :5]), expected, rtol=1e-9)
    assert 0.8 < reference.distances(states).mean() < 1.2


@pytest.mark.parametrize(
    ("times", "direction", "ratio"), [(0.7, "collapse", 0.49), (1.0, "level", 1.0), (1.5, "growth", 2.25)]
)
def test_states_nearer_to_the_centre_collapse_and_those_further_out_grow(times, direction, ratio):
    rng = np.random.default_rng(1)
    inside, mixing = correlated(rng)
    beyond = 100 + times * (rng.normal(size=inside.shape) @ mixing)
    result = probe.state_distance(inside, beyond)
    assert result.direction == direction
    assert result.low < result.ratio < result.high
    assert result.ratio == pytest.approx(ratio, rel=0.15)
    assert str(result).startswith(f"{result.ratio:.2f} [")


def test_each_text_is_measured_by_the_others():
    rng = np.random.default_rng(2)
    inside, _ = correlated(rng, texts=3)
    inside[0] += 1000  # one text alone lies elsewhere: fitted on it too, it would look near
    distances = text_distances(inside, [inside])[0]
    assert distances[0].mean() > 100 * distances[1:].mean()
    together = text_distances(inside, [inside], documents=["a", "b", "b"])[0]
    assert together[1].mean() > 100  # fitted on text 0 alone


def test_few_texts_have_no_interval_and_no_direction():
    inside, _ = correlated(np.random.default_rng(3), texts=3)
    result = probe.state_distance(inside, 0.1 * inside + 90)
    assert np.isnan(result.low)
    assert result.direction == "level"


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (np.zeros((8, 64)), "text, token, dim"),
        (np.zeros((7, 64, DIMS)), "of 8 texts"),
        (np.full((8, 64, DIMS), np.nan), "not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(states, words):
    inside, _ = correlated(np.random.default_rng(4))
    with pytest.raises(Refused, match=words):
        probe.state_distance(inside, states)


def test_states_that_do_not_vary_are_refused():
    with pytest.raises(Refused, match="vary"):
        probe.state_distance(np.ones((8, 64, DIMS)), np.ones((8, 64, DIMS)))


def test_one_document_is_refused():
    inside, _ = correlated(np.random.default_rng(4))
    with pytest.raises(Refused, match="two documents"):
        probe.state_distance(inside, inside, documents=["a"] * 8)


@pytest.mark.parametrize("texts", [4, 8])
def test_where_nothing_changes_one_interval_in_20_excludes_1(texts):
    rng = np.random.default_rng(6)
    near = 1 + 0.08 * rng.normal(size=(2000, texts))
    far = near + 0.1 * rng.normal(size=near.shape)
    false = np.mean([compared(*each).direction != "level" for each in zip(near, far, strict=True)])
    assert false == pytest.approx(0.05, abs=0.02)


def test_texts_of_a_document_count_once():
    rng = np.random.default_rng(7)
    documents = np.repeat(range(8), 6)
    near = np.ones(48)
    shared = rng.normal(size=(1000, 8))[:, documents]
    false = [compared(near, 1 + 0.1 * each, documents).direction != "level" for each in shared]
    assert np.mean(false) == pytest.approx(0.05, abs=0.03)
    inside, _ = correlated(rng, texts=6)
    beyond = 100 + 0.5 * (inside - 100)
    of_two = probe.state_distance(inside, beyond, documents=list("aaabbb"))
    assert (of_two.texts, np.isnan(of_two.low), of_two.direction) == (6, True, "level")
    assert probe.state_distance(inside, beyond, documents=list("abcdde")).direction == "collapse"


def texts_of(shrunk):
    """Hidden states of six texts under two methods; under Origin those of layer 1 beyond M are `shrunk`."""
    hidden = hidden_states(prompts=[f"text-{number}" for number in range(6)], noise=0.2)
    hidden = hidden.sel({"method": ["origin", "rerope"]}).copy()
    rng = np.random.default_rng(5)
    hidden.values[:] = rng.normal(size=hidden.shape)
    hidden.values[0, :, 1, M:] *= shrunk
    return hidden


def test_a_run_shows_where_and_under_which_method_states_collapse():
    distance = probe.find_state_distance(texts_of(0.5), M)
    beyond = distance["ratio"].sel(window=slice(M, None))
    assert beyond.sel({"method": "origin", "layer": 1}).max() < 0.35
    others = beyond.sel({"method": "rerope"}).values
    assert ((others > 0.8) & (others < 1.2)).all()
    assert (distance["high"].sel(window=slice(M, None)).sel({"method": "origin", "layer": 1}) < 0.4).all()
    assert distance_layers(distance) == [0, 1]
    assert distance["window"].values[0] == M // 4


def test_a_run_draws_and_exports_them(tmp_path):
    run = probe.open_run(write_run(tmp_path, texts_of(0.5)))
    result = run.distance()
    assert result.names == ["state-distance-resid_post"]
    assert "origin" in result.text
    csv = dict(result.export.files("csv"))
    assert any(name.startswith("state-distance-resid_post") for name in csv)
    with pytest.raises(ValueError, match="layer 7"):
        run.distance(layers=[7])


def test_a_run_with_one_text_has_none(tmp_path):
    run = probe.open_run(write_run(tmp_path, hidden_states(layers=1, dims=8)))
    with pytest.raises(Refused, match="two texts"):
        run.distance()


def test_the_watch_warns_where_the_model_fails_and_not_under_a_method_that_holds():
    loaded = mesa.load()
    prompt = loaded.tokenizer(probe.heldout()[1][:2000], return_tensors="pt")
    with pytest.warns(UserWarning, match="up to 4% of prompts within M cross it"), probe.watch(loaded) as watching:
        output = loaded.model.generate(**prompt, max_new_tokens=9, do_sample=False, stopping_criteria=[watching])
    assert watching.false_detection_rate == 1 / 25  # 24 prompts, whose farthest window is the limit
    with probe.watch(loaded, limit=watching.limit + 1e-6) as nearer:
        assert nearer.false_detection_rate == 2 / 25
    assert 256 < watching.detections[0][1] <= 768
    assert output.shape[1] == prompt["input_ids"].shape[1] + 1  # ended at its first detection
    with warnings.catch_warnings(), probe.watch(loaded) as watching:
        warnings.simplefilter("error", UserWarning)
        with mesa.applied(loaded.model, mesa.ReRoPE(trained_length=256)):
            loaded.model.generate(**prompt, max_new_tokens=9, do_sample=False)
    assert not watching.detections
    assert len(watching.distances[0]) == (prompt["input_ids"].shape[1] + 8) // M - 1
    with pytest.raises(Refused, match="layer 9"), probe.watch(loaded, layer=9):
        pass
    assert not any(layer._forward_hooks for layer in loaded.model.model.layers)


def test_the_watch_goes_by_the_layer_at_nine_tenths_of_the_depth():
    loaded = mesa.load()
    config, layers = loaded.model.config, [*loaded.model.model.layers]
    layers += [copy.deepcopy(layer, {id(config): config}) for layer in layers]
    for number, layer in enumerate(layers):
        layer.self_attn.layer_idx = number
    loaded.model.model.layers = torch.nn.ModuleList(layers)
    config.num_hidden_layers, limits = 8, []
    for layer in (None, 6, 7):
        with probe.watch(loaded, samples=2, layer=layer) as watching:
            limits.append(watching.limit)
    assert limits[0] == limits[1] != limits[2]


@pytest.mark.filterwarnings("ignore")
def test_the_watch_is_of_the_latest_prompt_with_a_cache_or_without():
    loaded, greedy = mesa.load(), {"max_new_tokens": 3, "do_sample": False}
    ids = [loaded.tokenizer(text[:1600], return_tensors="pt")["input_ids"][:, :400] for text in probe.heldout()[:2]]
    with probe.watch(loaded, samples=2) as watching:
        loaded.model.generate(ids[0], **greedy)
        of_one = watching.distances
        loaded.model.generate(ids[0], use_cache=False, **greedy)
        np.testing.assert_allclose(watching.distances, of_one, rtol=1e-4)
        loaded.model.generate(torch.cat(ids), **greedy)
        np.testing.assert_allclose(watching.distances[:1], of_one, rtol=1e-4)
        assert len(watching.distances) == 2
        mask = torch.ones(2, 400)
        mask[1, :9] = 0
        with pytest.raises(Refused, match="prompts of a batch are padded"):
            loaded.model.generate(torch.cat(ids), attention_mask=mask, **greedy)
    with pytest.raises(Refused, match="trained_length=2 is below 16"), probe.watch(loaded, trained_length=2):
        pass


GREEDY = {"do_sample": False, "pad_token_id": 2}


def tokens_of(loaded, text, count):
    """The first tokens of a shipped text, (1, count)."""
    return loaded.tokenizer(probe.heldout()[text], return_tensors="pt")["input_ids"][:, :count]


@pytest.mark.filterwarnings("ignore")
def test_the_watch_follows_the_cache():
    loaded = mesa.load()
    with probe.watch(loaded, samples=2) as watching:
        prompt = tokens_of(loaded, 0, 100)
        loaded.model.generate(prompt, min_new_tokens=150, max_new_tokens=150, **GREEDY)
        expected = watching.distances
        loaded.model.generate(prompt, min_new_tokens=150, max_new_tokens=150, prompt_lookup_num_tokens=8, **GREEDY)
        assert [position for position, _ in watching.distances[0]] == [128, 192]  # rejected drafts are not counted
        np.testing.assert_allclose(watching.distances, expected, rtol=1e-4)
        shared, cache = tokens_of(loaded, 2, 120), DynamicCache(config=loaded.model.config)
        with torch.no_grad():
            loaded.model(shared, past_key_values=cache)
        prompts = torch.cat([torch.cat([shared, tokens_of(loaded, text, 100)], 1) for text in (0, 1)])
        alone = []
        for one in prompts[:, None]:
            loaded.model.generate(one, past_key_values=copy.deepcopy(cache), max_new_tokens=2, **GREEDY)
            alone += [watching.distances[0][-1]]
        assert [position for position, _ in alone] == [192, 192]
        cache.batch_repeat_interleave(2)
        loaded.model.generate(prompts, past_key_values=cache, max_new_tokens=2, **GREEDY)
        np.testing.assert_allclose([row[-1] for row in watching.distances], alone, rtol=1e-4)
        with torch.no_grad():
            loaded.model(prompts[:1])
        assert [row[-1] for row in watching.distances] == [pytest.approx(alone[0], rel=1e-4)]


@pytest.mark.filterwarnings("ignore")
def test_another_cache_and_another_turn_begin_anew_in_the_watch():
    rng = np.random.default_rng(8)
    states = rng.normal(size=(2, 64, DIMS))
    watching = StateWatch(probe.StateReference.fit(states), 1.0, 16, 0.6, 0.0)
    ids, one, other = torch.zeros(2, 64, dtype=torch.long), DynamicCache(), DynamicCache()
    watching.begin(ids, 0, cache=one)
    watching.read(0.1 * states)
    assert watching.detections
    watching.begin(ids[:, :1], 64, cache=other)  # as long, of another text
    assert not watching.detections
    watching.begin(ids[:, :1], 65, eos=[0], cache=other)
    watching.read(states[:, :14])
    assert watching._ended == {0, 1}
    watching.begin(ids[:, :40], 79, eos=[0], cache=other)
    assert not watching._ended
    watching.begin(ids, 0)
    watching.read(np.concatenate([states[:, :48], 0.1 * states[:, :16]], axis=1))
    warned = {row for row, *_ in watching.detections}
    watching.begin(ids[:, :1], 50)  # what was read after it was a draft
    assert warned
    assert not watching._warned


@pytest.mark.filterwarnings("ignore")
def test_rejected_drafts_leave_no_trace_in_the_watch():
    rng = np.random.default_rng(8)
    states = rng.normal(size=(2, 300, DIMS)) * np.where(np.arange(300) < 200, 1, 0.5)[:, None]
    direct, drafted = (StateWatch(probe.StateReference.fit(states), 1.0, 16, 0.6, 0.0) for _ in range(2))
    direct.begin(torch.zeros(2, 300, dtype=torch.long), 0)
    direct.read(states)
    read = 0
    while read < 300:
        right, wrong = min(int(rng.integers(1, 7)), 300 - read), int(rng.integers(0, 15))
        drafted.begin(torch.zeros(2, right + wrong, dtype=torch.long), read)
        drafted.read(np.concatenate([states[:, read : read + right], 9 + np.zeros((2, wrong, DIMS))], axis=1))
        read += right
    drafted.begin(torch.zeros(2, 1, dtype=torch.long), 300)
    np.testing.assert_allclose(drafted.distances, direct.distances)
    assert [each[:2] for each in drafted.detections] == [each[:2] for each in direct.detections]
    assert direct.detections


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_is_refused_under_a_static_cache(attention):
    loaded = mesa.load()
    loaded.model.set_attn_implementation(attention)
    prompts, mask = tokens_of(loaded, 0, 200).repeat(2, 1), torch.ones(2, 200, dtype=torch.long)
    static = {"max_new_tokens": 2, "cache_implementation": "static", **GREEDY}
    with probe.watch(loaded, samples=2) as watching:
        loaded.model.generate(prompts, attention_mask=mask, **static)
        assert [len(row) for row in watching.distances] == [2, 2]
        mask[1, :80] = 0
        with pytest.raises(Refused, match="are padded"):
            loaded.model.generate(prompts, attention_mask=mask, **static)


@pytest.mark.parametrize(("cached", "eos", "options"), [
    (True, 1, {}), (False, 1, {}), (True, 3, {"eos_token_id": 3}), (False, 4, {"eos_token_id": [3, 4]}),
])  # fmt: skip
def test_a_row_that_ended_is_left_out(cached, eos, options):
    class Ends(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores[:, [1, 3, 4]] = -np.inf
            scores[: input_ids.shape[1] == 105, eos] = np.inf  # the first row alone
            return scores

    loaded = mesa.load()
    prompts = torch.cat([tokens_of(loaded, text, 100) for text in (0, 1)])
    with probe.watch(loaded, limit=0.6, samples=4) as watching, warnings.catch_warnings():
        warnings.filterwarnings("error", "states of row")
        options |= {"max_new_tokens": 30, "use_cache": cached, "logits_processor": [Ends()], **GREEDY}
        loaded.model.generate(prompts, **options)
        assert [len(row) for row in watching.distances] == [0, 1]
        loaded.model(prompts[:, :20])  # a pass of one's own ends at the model's
        watched = watching._ended.copy()
        loaded.model(torch.cat([prompts[:, :20], torch.full((2, 1), eos)], 1))
    assert (not watched, watching._ended == {0, 1}) == (True, eos == 1)
    assert "_get_logits_processor" not in vars(loaded.model)


def test_a_prompt_without_a_cache_warns_once():
    loaded = mesa.load()
    with probe.watch(loaded, samples=2) as watching:
        for _ in range(2):
            with pytest.warns(UserWarning, match="in-window distance") as warned:
                loaded.model.generate(tokens_of(loaded, 0, 700), max_new_tokens=4, use_cache=False, **GREEDY)
            assert len([each for each in warned if "in-window" in str(each.message)]) == 1
    assert watching.detections


def test_states_that_have_no_distance_are_refused_by_the_watch():
    loaded = mesa.load()
    with probe.watch(loaded, samples=2) as watching:
        watching.begin(torch.zeros(1, 200, dtype=torch.long), 0)
        with pytest.raises(Refused, match="not finite"):
            watching.read(np.full((1, 200, loaded.model.config.hidden_size), np.inf))
    with pytest.raises(Refused, match="samples=1 is below 2"), probe.watch(loaded, samples=1):
        pass


def test_the_example_of_find_state_distance_has_labels():
    distance = probe.find_state_distance(texts_of(1.0), M)
    assert isinstance(distance, xr.Dataset)
    assert distance.attrs["texts"] == 6
    assert distance["inside"].dims == ("method", "layer")


def by_length(texts=6, seed=7):
    """An evaluation: under Origin states of layer 1 collapse from 2 M on, under ReRoPE from 3 M back at 4 M."""
    rng = np.random.default_rng(seed)
    of_text = rng.uniform(0.85, 1.15, (1, 1, texts, 1))
    ratio = np.ones((2, 5, 1, 2))
    ratio[0, 2:, :, 1] = np.array([0.6, 0.4, 0.3])[:, None]
    ratio[1, 3, :, 1] = 0.4
    labels = {"method": ["origin", "rerope"], "length": [48, M, 2 * M, 3 * M, 4 * M], "window": range(texts)}
    labels |= {"layer": [0, 9]}
    noise = rng.uniform(0.99, 1.01, (2, 5, texts, 2))
    return xr.Dataset({"state_distance": xr.DataArray(ratio * of_text * noise, labels, [*labels])})


def test_by_length_states_leave_from_where_all_longer_prompts_are_outside():
    distance = find_distance_by_length(by_length(), M)
    assert distance["length"].values.tolist() == [M, 2 * M, 3 * M, 4 * M]
    np.testing.assert_array_equal(distance["leaves"], [[np.nan, 2 * M], [np.nan, np.nan]])
    at = distance.sel({"method": "origin", "layer": 9})
    np.testing.assert_allclose(at["ratio"], [1, 0.6, 0.4, 0.3], atol=0.01)
    assert ((at["low"] <= at["ratio"]) & (at["ratio"] <= at["high"])).all()
    assert ((distance["limit"] > 0.8) & (distance["limit"] < 1)).all()
    assert (distance["texts"] == 6).all()
    assert distance_layers(distance) == [0, 9]


def test_by_length_growth_counts_and_a_method_may_lack_lengths_and_texts():
    read = by_length()
    values = read["state_distance"].values
    values[0, 2:, :, 0] *= 2
    values[0, 3] = np.nan  # not measured under Origin
    values[0, 4, 5] = np.nan  # nor of this text
    distance = find_distance_by_length(read, M).sel({"method": "origin"})
    assert distance["leaves"].values.tolist() == [2 * M, 2 * M]
    assert distance["texts"].values.tolist() == [6, 6, 0, 5]
    assert np.isnan(distance["ratio"].sel(length=3 * M)).all()
    assert distance["ratio"].sel(length=4 * M, layer=0) == pytest.approx(2, rel=0.02)


def test_by_length_three_texts_have_no_interval_and_no_limit():
    distance = find_distance_by_length(by_length(texts=3), M)
    assert np.isnan(distance[["low", "limit", "leaves"]].to_array()).all()
    looked = find_distance_by_length(by_length(texts=3).assign_attrs(looks=[3, 6, 20]), M)
    assert np.isfinite(looked["low"]).all()  # of a run in stages the first look is of three
    assert np.isnan(looked["leaves"]).all()


def test_by_length_states_that_collapse_and_then_grow_leave_where_they_grow():
    read = by_length()
    read["state_distance"].values[0, 3:, :, 1] *= 8
    distance = find_distance_by_length(read, M).sel({"method": "origin", "layer": 9})
    assert distance["ratio"].round(1).values.tolist() == [1, 0.6, 3.2, 2.4]
    assert distance["leaves"] == 3 * M


def test_by_length_windows_of_a_document_count_once_where_there_are_four_documents():
    read = by_length(texts=8)
    values = read["state_distance"]
    values.values[:, 2:, 4:] *= np.linspace(0.5, 2, 4)[:, None]  # four windows of one document differ
    alone = find_distance_by_length(read, M)
    values.attrs["documents"] = [0, 1, 2, 3, 4, 4, 4, 4]
    together = find_distance_by_length(read, M)
    of_documents = [*range(4), slice(4, None)]
    far, near = (np.array([values[0, at, text, 0].mean() for text in of_documents]) for at in (2, 1))
    assert together["ratio"][0, 0, 1] == pytest.approx(far.mean() / near.mean())
    expected = compared(near, far)
    assert [float(together[end][0, 0, 1]) for end in ("low", "high")] == pytest.approx([expected.low, expected.high])
    values.attrs["documents"] = [0] * 8
    assert find_distance_by_length(read, M).equals(alone)


def scores_with(distances):
    """Scores by length of a run, with these distances."""
    scores = evaluation()
    read = (
        distances["state_distance"]
        .drop_vars("window")
        .reindex({"method": scores["method"], "length": scores["length"]})
    )
    return scores.assign(state_distance=read)


def test_a_run_says_by_length_what_states_do(tmp_path):
    distances = by_length()
    distances["state_distance"].values[1, 2:, :, 0] *= 0.95  # clearly below 1, and within the limit
    run = probe.open_run(write_run(tmp_path, hidden_states(layers=1, dims=8), scores_with(distances)))
    result = run.distance()
    lines = {tuple(line.split()[:2]): " ".join(line.split()[2:]) for line in result.text.splitlines()}
    assert lines["origin", "9"].endswith(f"collapse from {2 * M} tokens on")
    assert lines["rerope", "0"].endswith("collapse within the limit")
    assert lines["rerope", "9"].endswith("level")
    assert result.names == ["state-distance-by-length-resid_post"]
    assert run.distance(layers=[9]).data.equals(result.data)
    csv = dict(run.distance(layers=[9]).export.files("csv"))["state-distance-by-length-resid_post.csv"].decode()
    assert {row.split(",")[1] for row in csv.splitlines()[1:]} == {"9"}
    with pytest.raises(ValueError, match="layer 7"):
        run.distance(layers=[7])
    with pytest.raises(Refused, match="resid_pre"):
        run.distance(hook="resid_pre")


def test_layers_and_methods_of_an_export_are_those_of_the_distances(tmp_path, capsys):
    distances = by_length()
    distances["state_distance"].values[1, 1:] = np.nan  # of rerope
    folder = str(write_run(tmp_path / "run", hidden_states(layers=1, dims=8), scores_with(distances)))
    command = ["export", "distance", folder, "--format", "csv", "--out", str(tmp_path / "out")]
    assert main([*command, "--layers", "9"]) == 0
    assert (tmp_path / "out/state-distance-by-length-resid_post.csv").exists()
    assert main([*command, "--methods", "rerope"]) == 2
    assert "no distance of rerope is measured yet" in capsys.readouterr().err


@pytest.mark.parametrize("lengths", [[48, M], [2 * M, 3 * M], []])
def test_by_length_needs_m_and_longer_prompts(lengths):
    with pytest.raises(Refused, match="at M and beyond"):
        find_distance_by_length(by_length().sel(length=lengths) if lengths else xr.Dataset(), M)
