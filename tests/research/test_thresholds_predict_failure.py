"""A whole study of a tiny model, its scores, and the published tables."""

import shutil
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import tiny
from transformers import BloomConfig, LlamaConfig

from mesa.models import load
from mesa.plan import follows_length, reach
from mesa.settings import fitting_methods
from probe.statistics import correlations
from probe.tasks import sources
from research.thresholds_predict_failure import measure, predict
from research.thresholds_predict_failure.figures import lengths_figure
from research.thresholds_predict_failure.inputs import seeded_windows, study_prompts
from research.thresholds_predict_failure.predict import length_by_prompt
from research.thresholds_predict_failure.results import gather, read_results
from research.thresholds_predict_failure.run import main, parser
from research.thresholds_predict_failure.score import advantage, resamples, score
from research.thresholds_predict_failure.study import named_configs, plan, variants
from research.thresholds_predict_failure.tables import scored, settings, tables

ROOT = Path(__file__).parents[2]
OPTIONS = "--configs rerope,nope,dynamic-ntk --lengths 160,200,240,320 --seeds 2 --windows 2 --samples 1 --tops 1,3"
NONE = 2049


def study(model, out, options=OPTIONS, *more):
    main(parser().parse_args(["--model", str(model), "--out", str(out), *options.split(), *more]))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module", autouse=True)
def little():
    """The shortest of the held-out texts alone, few places for the control; random weights count as above chance."""
    text = min(sources.heldout(), key=len)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "negative_control", partial(predict.negative_control, count=3))
        patch.setattr(sources, "heldout", lambda: [text])
        patch.setattr("research.thresholds_predict_failure.results.is_chance", lambda *_: False)
        patch.setattr("research.thresholds_predict_failure.results.LEAST_ACCURACY", 0)
        yield


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "here"
    study(model, out)
    return out


def test_results_are_labelled_and_whole(finished):
    results = read_results(finished / "study.json")
    assert results["config"].values.tolist() == ["origin", "rerope", "nope", "dynamic-ntk"]
    assert results["prompt"].values.tolist() == ["repeated", "text", "text-mean", "passkey", "passkey-mean"]
    assert results["predicted"].dims == ("prompt", "rule", "top", "config", "seed")
    assert results["predicted"].shape == (5, 3, 2, 4, 2)
    assert results["arithmetic"].values[:2].tolist() == [[160, 161, 160, 160], [321] * 4]
    called = results["predicted"].values[~np.isnan(results["predicted"].values)]
    assert ((called >= 160) & (called <= 321)).all()
    either, nll, passkey = results["measured"].transpose("criterion", ...).values
    assert (either == np.minimum(nll, passkey)).all()
    assert set(nll.ravel()) <= {160, 200, 240, 320, 321}
    assert (finished / "study.md").read_text().count("**") == 16
    assert {"lengths.png", "dims.png"} <= {path.name for path in finished.iterdir()}


def test_an_interrupted_study_continues_and_ends_the_same(finished, model, tmp_path, capsys, monkeypatch):
    out, measured, real = tmp_path / "again", [], measure.scores
    shutil.copytree(finished, out)
    lines = (out / "journal.jsonl").read_text().splitlines(keepends=True)
    (out / "journal.jsonl").write_text("".join([*lines[:4], *lines[7:-2], lines[-1][:30]]))
    monkeypatch.setattr(measure, "scores", lambda *given: measured.append(given[1]) or real(*given))
    study(model, out, OPTIONS, "--minutes", "0")
    assert "3 predictions and 2 scores are left; the same command continues" in capsys.readouterr().out
    study(model, out)
    assert len(measured) == 2
    assert (out / "study.json").read_text() == (finished / "study.json").read_text()
    with pytest.raises(ValueError, match="holds a run with another samples"):
        study(model, finished, OPTIONS, "--samples", "2")


def test_dynamic_ntk_is_predicted_by_prompt_length(model):
    study_plan = plan(model, configs="dynamic-ntk,rerope,nope", lengths=(160, 200, 240, 320))
    assert {name: study_plan.passes(name) for name in ("dynamic-ntk", "rerope")} == {
        "dynamic-ntk": (200, 240, 320),
        "rerope": (320,),
    }
    assert length_by_prompt({320: 321, 512: 400, 1024: 300}, 1025) == 512
    assert length_by_prompt({320: 300, 512: 513, 1024: 300}, 1025) == 1024  # the failure at 320 does not persist
    assert length_by_prompt({320: 300, 512: None, 1024: 1025}, 1025) == 1025
    assert length_by_prompt({320: None, 512: None}, 1025) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": ("story",)}, "unknown --prompts 'story'; known: repeated, text, passkey"),
        ({"length": 200}, "--length 200 is below twice the trained length 160"),
        ({"configs": "rerope"}, "1 configs beside origin are too few to correlate"),
        ({"configs": "rerope wide=2,mesa,stair"}, "rerope: unknown parameter 'wide'"),
        ({"lengths": (200, 320)}, "--lengths leaves out the trained length 160"),
        ({"lengths": (160, 640), "length": 320}, "--lengths 640 is beyond --length 320"),
        ({"first_seed": 998}, "seeds end below 1000"),
    ],
)
def test_bad_input_is_named_before_the_weights_are_loaded(model, options, message):
    with pytest.raises(ValueError, match=message):
        plan(model, **options)


def test_configs_fail_early_late_and_never_by_arithmetic():
    configs = variants(fitting_methods("all", 256, config=LlamaConfig())[0], 256)
    first = {}
    for name in ("origin", "leaky-rerope k=2", "stair width=4", "rerope", "mesa"):
        beyond = np.flatnonzero(reach(configs[name].plan(2048)) >= 256)
        first[name] = int(beyond[0]) if len(beyond) else None
    assert list(first.values()) == [256, 32 + 2 * 224, 32 + 4 * 223 + 1, None, None]
    follow = {
        name.split()[0] for name, method in configs.items() if follows_length(method.plan(2048), method.plan(512))
    }
    assert follow == {"dynamic-ntk", "lampe"}


def test_named_configs_have_their_parameters():
    config = LlamaConfig(num_hidden_layers=4)
    result = named_configs("rerope layers=[0,1],  leaky-rerope  k=1.25", 256, config)
    assert list(result) == ["origin", "rerope layers=[0,1]", "leaky-rerope k=1.25"]
    assert (result["rerope layers=[0,1]"].layers, result["leaky-rerope k=1.25"].k) == ((0, 1), 1.25)
    with pytest.raises(ValueError, match="dynamic-ntk cannot be attached to model type 'bloom'"):
        named_configs("dynamic-ntk", 256, BloomConfig())


def test_later_seeds_read_nothing_that_earlier_ones_read():
    for documents in ([np.arange(100)], [np.arange(3 * n, 3 * n + 3) for n in range(40)]):
        first, later = (seeded_windows(documents, 5, seeds, 2) for seeds in (range(4), range(4, 8)))
        starts = [int(run[0]) for by_seed in (first, later) for runs in by_seed.values() for run in runs]
        assert len({start // 5 for start in starts}) == 16
    with pytest.raises(ValueError, match="the text holds 1 unread runs of 5 tokens, 4 are needed"):
        seeded_windows([np.arange(27)], 5, range(2, 4), 2)
    tokenizer = load().tokenizer
    for kind in ("repeated", "text", "passkey"):
        parts = [study_prompts(tokenizer, kind, [np.arange(3, 2000)], 200, range(at, at + 3), 1) for at in (0, 3)]
        assert len({tuple(ids) for part in parts for windows in part.values() for ids in windows}) == 6


def test_a_dip_is_no_failure_and_tasks_may_take_turns():
    """One seed of two tasks at four lengths; by config, the lengths that fail by NLL and by passkey."""
    fails = {"origin": ((), ()), "lasts": ((200, 250), ()), "dips": ((150,), ()), "turns": ((150, 250), (200,))}
    rows, scores = {}, {"nll": (1.0, 2.0), "passkey": (1.0, -1.0)}
    control = {"place": [120], "qualified": [3], "matched": [6], "searched": 12, "false": 0.0}
    row = {"lengths": [251], "qualified": 7, "control": control}
    for config, by_task in fails.items():
        rows["predicted", "text", config, 0] = {"lengths": {"text": {"standard": row, "drift": row}}}
        for task, failing in zip(scores, by_task, strict=True):
            for length in (100, 150, 200, 250):
                rows[task, config, 0, length] = {"scores": [scores[task][length in failing]]}
    design = {"trained_length": 100, "lengths": [100, 150, 200, 250], "length": 250, "seeds": 1}
    design |= {"measure": ["nll", "passkey"], "rules": ["standard", "drift"], "tops": [10], "prompts": ["text"]}
    result = gather(rows, design, {name: {"M or more": 100} for name in fails})
    assert result["measured"].isel(seed=0).values.tolist() == [
        [251, 200, 251, 150],  # either
        [251, 200, 251, 250],
        [251, 251, 251, 251],
    ]
    assert result["dips"].isel(seed=0).values.tolist() == [[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    text = tables(result)
    assert "| 25.0% (25.0% to 25.0%) | 50.0% (50.0% to 50.0%) | 0.00 | 0.00 | 0.00 (0.00) | 0.00 |" in text
    assert "| dips | none | none | none | none | 100 | 1 of 1 seeds |" in text


def test_a_task_at_chance_inside_the_window_is_not_judged(finished, monkeypatch):
    results = read_results(finished / "study.json")
    results["measured"].loc[{"criterion": "nll"}] = np.nan
    assert tables(results).count("not judged: at chance inside M") == 4
    lengths_figure(results)


@cache
def published():
    return read_results(ROOT / "research/thresholds_predict_failure/results/default.json")


def test_published_tables_are_those_of_the_published_results():
    text = (ROOT / "docs" / "findings.md").read_text()
    assert text.split("<!-- study -->\n")[1].split("\n<!-- /study -->")[0] == tables(published())


def test_readme_and_findings_state_the_published_numbers():
    either, nll = (
        scored(published(), criterion, prompt="repeated", rule="standard") for criterion in ("either", "nll")
    )
    value = either.correlation
    readme, findings = ((ROOT / name).read_text() for name in ("README.md", "docs/findings.md"))
    assert f"{value.value:.2f} (95% interval {value.low:.2f} to {value.high:.2f})" in readme
    assert f"and {nll.correlation.value:.2f} where failure is measured" in readme
    assert f"rank correlation {nll.correlation}" in findings
    assert f"agreement is {value}" in findings
    at = 4 * settings(published())["trained_length"]
    assert f"accuracy is {either.right[at].value:.0%}" in findings


def lengths(configs=24, seeds=5, noise=0.0, seed=0):
    """Measured lengths, a third of them none, and predictions that scatter about them (nats of log length)."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(np.log(256), np.log(4096), configs)[:, None] + rng.normal(0, 0.02, (configs, seeds))
    scattered = true + rng.normal(0, 1, true.shape) * noise
    return tuple(np.minimum(np.exp(logs).round(), NONE) for logs in (scattered, true))


def test_a_perfect_prediction_scores_one_and_an_unrelated_one_cannot_be_told_from_zero():
    _, measured = lengths()
    result = score(measured, measured, (512, 1024, 2048))
    assert (result.correlation.value, result.correlation.low, result.correlation.high) == pytest.approx((1, 1, 1))
    assert [right.value for right in result.right.values()] == [1, 1, 1]
    assert score(-measured, measured, ()).correlation.value == pytest.approx(-1)
    other, _ = lengths(seed=1)
    result = score(other, measured, (1024,))
    assert result.correlation.low < 0 < result.correlation.high
    assert result.gain[1024].low < 0


def loop_spearman(x, y):
    def rank(values):
        return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]

    return np.corrcoef(rank(x), rank(y))[0, 1]


def test_weighted_ranks_equal_ranks_of_the_repeated_sample():
    x, y = np.random.default_rng(0).integers(0, 6, (2, 15)).astype(float)
    drawn = resamples(15, 4)
    for row, value in zip(drawn, correlations(x, y, drawn), strict=True):
        times = row.astype(int)
        assert value == pytest.approx(loop_spearman(np.repeat(x, times), np.repeat(y, times)))


def test_intervals_resample_configs_with_all_their_seeds():
    """Each config's seeds agree; so 24 configs with 5 seeds hold the evidence of 24 pairs, not of 120."""
    covered, wrongly = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x, y = (np.repeat(rng.normal(size=(24, 1)), 5, 1) for _ in range(2))
        right = score(x, y, (), resamples(24, 300)).correlation
        wrong = score(x.reshape(-1, 1), y.reshape(-1, 1), (), resamples(120, 300)).correlation
        covered.append(right.low <= 0 <= right.high)
        wrongly.append(wrong.low <= 0 <= wrong.high)
    assert np.mean(covered) > 0.85
    assert np.mean(wrongly) < 0.75


def test_censored_lengths_are_ties_and_pairs_without_a_call_are_left_out():
    measured, parted = np.array([[256.0], [512], [NONE], [NONE]]), np.array([[300.0], [600], [900], [NONE]])
    assert score(parted, measured, ()).correlation.value == pytest.approx(loop_spearman([1, 2, 3, 4], [1, 2, 3, 3]))
    assert score(parted, measured, (512,)).right[512].value == 0.75  # 600 is late
    predicted, measured = lengths(noise=0.3)
    some = predicted.copy()
    some[::2] = np.nan
    result = score(some, measured, (1024,))
    assert result.called == 0.5
    assert result.correlation.value == pytest.approx(score(predicted[1::2], measured[1::2], ()).correlation.value)
    rival, _ = lengths(noise=2.0)
    rival[0] = np.nan
    assert advantage(predicted, rival, measured)[0].value == pytest.approx(score(rival, measured, ()).correlation.value)
