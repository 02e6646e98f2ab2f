"""A whole study of a tiny model; its journal; the published tables."""

import json
import shutil
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import xarray as xr
from commands import overridden

import mesa
from mesa.models import load
from mesa_lens.cli import main
from probe.capture.bridge import bridge_to
from probe.capture.capture import capture_states
from probe.capture.spec import Kept
from probe.cells import source
from probe.evaluation.journal import Journal
from probe.figures.styles import STYLES
from probe.tasks import corpus
from probe.thresholds.analysis import drifts
from probe.thresholds.calls import drift_calls
from research.thresholds_predict_failure import cells as study_cells
from research.thresholds_predict_failure import states as study_states
from research.thresholds_predict_failure import study
from research.thresholds_predict_failure.cells import length_by_prompt
from research.thresholds_predict_failure.inputs import seeded_windows, study_prompts
from research.thresholds_predict_failure.report import dims_figure, lengths_figure
from research.thresholds_predict_failure.results import gather, progress, read_results
from research.thresholds_predict_failure.run import parser
from research.thresholds_predict_failure.table import all_rows, scored, settings, tables
from research.thresholds_predict_failure.variants import chosen

ROOT = Path(__file__).parents[2]
OPTIONS = "--methods rerope,nope --length 320 --seeds 2 --windows 2 --samples 1 --tops 1,3"


def study_main(words):
    return main(overridden(words), parser)


@pytest.fixture(scope="module", autouse=True)
def little():
    """Of the held-out texts the shortest alone, so that little is tokenized; few places for the negative control."""
    text = min(corpus.heldout(), key=len)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_cells, "negative_control", partial(study_cells.negative_control, count=3))
        patch.setattr(corpus, "heldout", lambda: [text])
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


def judge_all(patch):
    """Judges random weights as if they were above chance."""
    patch.setattr("research.thresholds_predict_failure.results.is_chance", lambda *_: False)
    patch.setattr("research.thresholds_predict_failure.results.LEAST_ACCURACY", 0)


@pytest.fixture
def judged(monkeypatch):
    judge_all(monkeypatch)


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "here"
    with pytest.MonkeyPatch.context() as patch:
        judge_all(patch)
        assert study_main(["--model", model, *OPTIONS.split(), "--out", str(out)]) == 0
    return out


def test_results_are_labelled_and_whole(finished):
    results = read_results(finished / "study.json")
    assert results["config"].values.tolist() == ["origin", "rerope", "rerope window=80", "nope"]
    assert results["prompt"].values.tolist() == ["repeated", "text", "text-mean", "passkey", "passkey-mean"]
    assert results["predicted"].dims == ("prompt", "rule", "top", "config", "seed")
    assert results["rule"].values.tolist() == ["standard", "wide", "drift"]
    assert results["predicted"].shape == (5, 3, 2, 4, 2)
    assert results["arithmetic"].values.tolist() == [[160, 161, 160, 160], *[[321] * 4] * 3]
    called = results["predicted"].values[~np.isnan(results["predicted"].values)]
    assert ((called >= 160) & (called <= 321)).all()
    nothing = results["qualified"].values == 0
    assert np.isnan(results["predicted"].transpose("prompt", "rule", "seed", ...).values[nothing]).all()
    either, nll, passkey = results["measured"].transpose("criterion", ...).values
    assert (either == np.minimum(nll, passkey)).all()
    assert set(nll.ravel()) <= {160, 200, 240, 280, 320, 321}
    assert (finished / "study.md").read_text().count("**") == 16
    assert {"lengths.png", "dims.png"} <= {path.name for path in finished.iterdir()}


def test_what_is_read_is_known_by_its_fingerprints(finished):
    asked = settings(read_results(finished / "study.json"))
    assert [asked[name].split()[0] for name in ("inputs", "weights")] == ["sha256", "sha256"]
    assert asked["inputs"] != asked["weights"]


@pytest.mark.usefixtures("judged")
def test_an_interrupted_study_goes_on_and_ends_the_same(finished, model, tmp_path, capsys, monkeypatch):
    out = tmp_path / "again"
    shutil.copytree(finished, out)
    lines = (out / "cells.jsonl").read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"predicted"' not in line and number)
    cut = [*lines[:4], *lines[7 : first + 2], *lines[first + 4 :][:-1], lines[-1][:30]]
    (out / "cells.jsonl").write_text("".join(cut))
    ran = []
    real = study_cells.Trial.scores
    monkeypatch.setattr(study_cells.Trial, "scores", lambda *given: ran.append(given[1:]) or real(*given))
    assert study_main(["--model", model, *OPTIONS.split(), "--out", str(out)]) == 0
    assert len(ran) == 3
    assert (out / "study.json").read_text() == (finished / "study.json").read_text()
    assert capsys.readouterr().out.strip() == (finished / "study.md").read_text().strip()


def test_another_study_is_not_mixed_in(finished, model, capsys):
    options = OPTIONS.replace("--samples 1", "--samples 2").split()
    assert study_main(["--model", model, *options, "--out", str(finished)]) == 2
    assert "another samples (1 there, 2 now); use --overwrite or another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "repeated,story"], "unknown --prompts 'story'; known: repeated, text, passkey"),
        (["--measure", "nll,needle"], "unknown --measure 'needle'; known: nll, passkey"),
        (["--prompts", "text,text"], "--prompts 'text,text' is empty or repeats one"),
        (["--tops", "1,x"], "--tops '1,x' is no list of numbers"),
        (["--tops", "0,3"], "--seeds, --windows, --samples and --tops must be at least 1, not 0"),
        (["--length", "200"], "--length 200 is below twice the trained length 160; take e.g. 1280"),
        (["--methods", "origin"], "--methods origin gives 0 configs beside origin, too few to correlate"),
        (["--methods", "rope"], "unknown method 'rope'"),
        (["--length", "long"], "--length 'long': 'long' is no number of tokens"),
        (["--lengths", "200,320"], "--lengths leaves out the trained length 160, the in-window level; include it"),
        (["--lengths", "160,640", "--length", "320"], "--lengths 640 is beyond --length 320"),
        (["--configs", "rerope"], "--configs 'rerope' gives 1 configs beside origin, too few to correlate"),
        (["--configs", "rerope", "--methods", "stair"], "--configs 'rerope' stands in place of --methods stair"),
        (["--configs", "rerope window"], "--configs 'rerope window': 'window' is no PARAMETER=VALUE"),
        (["--configs", "rerope,stair,rerope"], "--configs 'rerope,stair,rerope' names 'rerope' more than once"),
        (["--configs", "rerope wide=2"], "rerope: unknown parameter 'wide'"),
        (["--configs", "rerope,,stair"], "--configs 'rerope,,stair' names an empty config"),
        (["--minutes", "0"], "--minutes 0 is not above 0"),
        (["--first-seed", "998"], "--first-seed 998 with --seeds 5 leaves 0 to 999"),
        (["--first-seed", "1000"], "--first-seed 1000 is above 999"),
    ],
)
def test_bad_input_is_said_before_the_weights_are_loaded(model, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(source, "load", None)
    assert study_main(["--model", model, "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


FEW = ["--prompts", "repeated", "--seeds", "1", "--samples", "1", "--measure", "nll", "--lengths", "160,240,320"]
CONFIGS = ["--configs", "leaky-rerope  k=1.25 window=80,self-extend group=2,nope"]


@pytest.mark.usefixtures("judged")
def test_few_configs_lengths_and_likelihood_alone(model, tmp_path, capsys):
    out = tmp_path / "few"
    assert study_main(["--model", model, *FEW, *CONFIGS, "--estimate", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "predicted: 4 passes of up to 320 tokens, 1,280 in all" in said
    assert "measured: 12 prompts of 160, 240, 320 tokens, 2,880 in all" in said
    assert not out.exists()
    assert study_main(["--model", model, *FEW, *CONFIGS, "--out", str(out)]) == 0
    results = read_results(out / "study.json")
    assert results["config"].values.tolist() == [
        "origin",
        "leaky-rerope k=1.25 window=80",
        "self-extend group=2",
        "nope",
    ]
    assert results["criterion"].values.tolist() == ["either", "nll"]
    assert results["arithmetic"].values[1].tolist() == [180, 181, 180, 179]
    assert settings(results)["lengths"] == [160, 240, 320]
    assert '"passkey"' not in (out / "cells.jsonl").read_text().split("\n", 1)[1]
    text = tables(results)
    assert "| config | measured by NLL | predicted (repeated, standard) | predicted (repeated, drift) |" in text
    assert "| repeated | drift | 1.25 M |" in text


@pytest.mark.parametrize(("vocabulary", "passkeys"), [(8, 1.0), (8, 0.0), (None, 0.0)])
def test_a_task_at_chance_inside_the_window_says_nothing(tmp_path, vocabulary, passkeys):
    journal = planted_journal(tmp_path, {"origin": ((), ()), "a": ((250,), ()), "b": ((), ()), "c": ((), (250,))})
    by_guess, at_chance = vocabulary is not None, passkeys == 0
    for cell in journal.rows:
        if cell[0] == "nll" and by_guess:
            journal.rows[cell] = {"scores": [2.0 + (cell[-1] == 250 and cell[1] == "a")]}
        if cell[0] == "passkey":
            journal.rows[cell]["scores"][0] *= passkeys
    configs = ("origin", "a", "b", "c")
    row = {"lengths": [200], "qualified": 7, "control": None}
    for config in configs:
        journal.rows["predicted", "text", config, 0] = {"lengths": {"text": {"standard": row}}}
    asked = {
        "trained_length": 100,
        "lengths": [100, 150, 200, 250],
        "length": 250,
        "seeds": 1,
        "vocabulary": vocabulary,
    }
    asked |= {"measure": ["nll", "passkey"], "rules": ["standard"], "tops": [10], "prompts": ["text"]}
    found = gather(journal, asked, {name: {"M or more": 100} for name in configs})
    either, nll, passkey = np.isnan(found["measured"].isel(seed=0).values)
    assert nll.all() == nll.any() == by_guess
    assert passkey.all() == passkey.any() == at_chance
    assert either.all() == either.any() == (by_guess and at_chance)
    text = tables(found)
    assert text.count("not judged: at chance inside M") == 4 * (by_guess + at_chance)
    assert "| b | none | none |" not in text
    lengths_figure(found)


@pytest.mark.slow
def test_a_study_on_other_seeds_is_another_study(model, tmp_path, capsys):
    again = ["--model", model, *FEW, *CONFIGS, "--out", str(tmp_path / "out")]
    assert study_main([*again, "--first-seed", "1"]) == 0
    found = read_results(tmp_path / "out" / "study.json")
    assert found["seed"].values.tolist() == [1]
    assert np.isnan(found["measured"].values).all()  # of random weights nothing is said
    assert study_main(again) == 2
    assert "holds a run with another first_seed (1 there, None now), inputs (the texts" in capsys.readouterr().err
    rows = (tmp_path / "out" / "cells.jsonl").read_text()
    assert study_main([*again, "--first-seed", "1"]) == 0
    assert (tmp_path / "out" / "cells.jsonl").read_text() == rows


@pytest.mark.slow
@pytest.mark.usefixtures("judged")
def test_slices_of_minutes_end_as_one_run_does(model, tmp_path, capsys, monkeypatch):
    run = ["--model", model, *FEW, *CONFIGS, "--out"]
    assert study_main([*run, str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    passed = iter(range(100))
    monkeypatch.setattr(study, "is_over", lambda until: until is not None and next(passed) % 7 == 6)
    for _ in range(12):
        assert study_main([*run, str(tmp_path / "slices"), "--minutes", "1"]) == 0
        printed = capsys.readouterr()
        if printed.out:
            break
        assert "1 minutes are over" in printed.err
        assert "the same command goes on" in printed.err
    assert next(passed) > 10
    assert (tmp_path / "slices" / "study.json").read_text() == (tmp_path / "whole" / "study.json").read_text()


def test_overwrite_removes_nothing_before_the_weights_are_loaded(finished, model, tmp_path, monkeypatch):
    out = tmp_path / "kept"
    shutil.copytree(finished, out)

    def unreadable(*given, **options):
        raise OSError("no weights")

    monkeypatch.setattr(source, "load", unreadable)
    assert study_main(["--model", model, *FEW, *CONFIGS, "--overwrite", "--out", str(out)]) == 1
    assert (out / "cells.jsonl").read_text() == (finished / "cells.jsonl").read_text()


@pytest.mark.slow
def test_drift_predicts_as_a_probe_run_does(tmp_path):
    """The shipped model and one prompt by way of the probe's analysis; Mesa begins positions anew."""
    only = ["--lengths", "256", "--prompts", "repeated", "--seeds", "1", "--samples", "1", "--measure", "nll"]
    configs = "rerope,leaky-rerope k=1.5,mesa width=4"
    assert study_main(["--length", "640", *only, "--configs", configs, "--out", str(tmp_path)]) == 0
    results = read_results(tmp_path / "study.json").isel(prompt=0, top=0, seed=0)
    loaded = load()
    ((ids,),) = study_prompts(loaded.tokenizer, "repeated", [], 640, range(1), 1).values()
    methods = chosen(configs, 256, loaded.model.config)
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    hidden = [capture_states(bridge, ids, method)["resid_post"] for method in methods.values()]
    attrs = {"length": 640, "method_configs": json.dumps({each.name: each.describe() for each in methods.values()})}
    run = SimpleNamespace(trained_length=256, hidden=SimpleNamespace(attrs=attrs))
    prompts = xr.concat(hidden, "method").expand_dims(prompt=["repeated"])
    calls = drift_calls(drifts(run, prompts, "origin")["repeated"])
    by_probe = [np.nan if call.reason else call.length or 641 for call in calls]
    assert len({*by_probe}) > 2
    np.testing.assert_array_equal(results["predicted"].sel(rule="drift").values, by_probe)


def test_every_length_is_measured_and_a_failure_persists(tmp_path):
    journal = Journal(tmp_path / "none", {})
    origin = {"nll": [1.0, 2.0], "passkey": [0.0]}
    journal.rows = {(task, "origin", 0, 100): {"scores": scores} for task, scores in origin.items()}
    asked = {"trained_length": 100, "lengths": (50, 100, 150, 200)}
    nowhere = (False,) * 4
    assert progress(journal, asked, "nll", "stair", 1) == (nowhere, 100)
    assert progress(journal, asked, "nll", "stair", 0) == (nowhere, 50)
    assert progress(journal, asked, "passkey", "stair", 0) == (nowhere, None)
    journal.rows |= {("nll", "stair", 0, length): {"scores": [value]} for length, value in ((50, 2.0), (100, 1.9))}
    assert progress(journal, asked, "nll", "stair", 0) == (nowhere, 150)
    journal.rows["nll", "stair", 0, 150] = {"scores": [2.1, 1.95]}
    assert progress(journal, asked, "nll", "stair", 0) == ((False, False, True, False), 200)
    journal.rows["nll", "stair", 0, 200] = {"scores": [1.9]}
    assert progress(journal, asked, "nll", "stair", 0) == ((False, False, True, False), None)


def planted_journal(tmp_path, fails):
    """One seed of two tasks at four lengths; `fails`: by config, at which lengths by NLL and by passkey."""
    journal = Journal(tmp_path / "none", {})
    for config, tasks in fails.items():
        for task, failing in zip(("nll", "passkey"), tasks, strict=True):
            for length in (100, 150, 200, 250):
                bad = {"nll": 2.0, "passkey": 0.0}[task] if length in failing else {"nll": 1.0, "passkey": 1.0}[task]
                journal.rows[task, config, 0, length] = {"scores": [bad]}
    return journal


def test_a_dip_is_no_failure_and_tasks_may_take_turns(tmp_path):
    lasts, dips, turns = ((200, 250), ()), ((150,), ()), ((150, 250), (200,))
    journal = planted_journal(tmp_path, {"origin": ((), ()), "lasts": lasts, "dips": dips, "turns": turns})
    control = {"place": [120], "qualified": [3], "matched": [6], "searched": 12, "false": 0.0}
    row = {"lengths": [251], "qualified": 7, "control": control}
    for config in ("origin", "lasts", "dips", "turns"):
        journal.rows["predicted", "text", config, 0] = {"lengths": {"text": {"standard": row}}}
    asked = {"trained_length": 100, "lengths": [100, 150, 200, 250], "length": 250, "seeds": 1}
    asked |= {"measure": ["nll", "passkey"], "rules": ["standard"], "tops": [10], "prompts": ["text"]}
    found = gather(journal, asked, {name: {"M or more": 100} for name in ("origin", "lasts", "dips", "turns")})
    assert found["measured"].isel(seed=0).values.tolist() == [
        [251, 200, 251, 150],  # either
        [251, 200, 251, 250],
        [251, 251, 251, 251],
    ]
    assert found["dips"].isel(seed=0).values.tolist() == [[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert found["inside"].values.ravel()[0] == 0.25
    assert found["matched"].values.ravel()[0] == 0.5
    assert np.isnan(found["inside"].values.ravel()[1:]).all()
    text = tables(found)
    assert (
        "| text | standard | 25.0% (25.0% to 25.0%) | 50.0% (50.0% to 50.0%) | 0.00 | 0.00 | 0.00 (0.00) | 0.00 |"
        in text
    )
    assert "| dips | none | none | none | 100 | 1 of 1 seeds |" in text


def test_a_length_for_every_prompt_length():
    assert length_by_prompt({320: 321, 512: 400, 1024: 300}, 1025) == 512
    assert length_by_prompt({320: 300, 512: 513, 1024: 300}, 1025) == 1024  # it does not persist from 320 on
    assert length_by_prompt({320: 300, 512: None, 1024: 1025}, 1025) == 1025
    assert length_by_prompt({320: None, 512: 400}, 1025) == 512
    assert length_by_prompt({320: None, 512: None}, 1025) is None


def test_dynamic_ntk_is_predicted_by_prompt_length(finished_ntk):
    cells = Journal(finished_ntk / "cells.jsonl", journal_settings(finished_ntk)).rows
    for key, row in cells.items():
        if key[0] == "predicted":
            rules = row["lengths"]["repeated"]
            asked = [list(rule.get("by_pass", [])) for rule in rules.values()]
            assert asked == [["200", "240", "320"] if key[2] == "dynamic-ntk" else []] * 3
            assert rules["standard"]["control"] is not None


def journal_settings(folder):
    return json.loads((folder / "cells.jsonl").read_text().split("\n", 1)[0])["settings"]


@pytest.fixture(scope="module")
def finished_ntk(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("ntk")
    configs = ["--configs", "dynamic-ntk,rerope,nope"]
    assert study_main(["--model", model, *FEW[:-1], "160,200,240,320", *configs, "--out", str(out)]) == 0
    return out


def test_a_shorter_pass_is_kept_beside_the_reference(monkeypatch, tmp_path):
    kept = Kept(range(1), range(5), range(2))
    passes = iter([np.ones((1, 5, 2), np.float32), 2 * np.ones((1, 3, 2), np.float32)])
    lengths = []
    monkeypatch.setattr(
        study_states, "capture", lambda *given: lengths.append(len(given[4].positions)) or {"resid_post": next(passes)}
    )
    states = study_states.States(kept, tmp_path, averaged=False)
    states.fill(None, [[0] * 5], None, 0)
    states.fill(None, [[0] * 3], None, 1)
    assert lengths == [5, 3]
    short = states.hidden(mean=False, both=True, length=3)
    assert short.sizes["position"] == 3
    assert short.values[:, 0, :, 0].tolist() == [[1, 1, 1], [2, 2, 2]]


def test_states_that_are_no_numbers_end_a_study_with_the_layers_name(model, monkeypatch, tmp_path):
    """Where failures are predicted, and where they are measured."""
    values = np.zeros((2, 5, 3), np.float32)
    values[1, 4, 2] = np.inf
    monkeypatch.setattr(study_states, "capture", lambda *given: {study_states.HOOK: values})
    states = study_states.States(Kept([3, 7], range(5), range(3)), tmp_path, averaged=False)
    with pytest.raises(ValueError, match="layer 7 has 1 values that are not finite"):
        states.fill(None, [[0] * 5], None, 0)
    loaded = load(model)
    loaded.model.model.layers[1].register_forward_hook(lambda module, given, out: out + torch.inf)
    trial = study_cells.Trial.of(loaded, [np.arange(200) % 50], 160, [200], 0)
    for task in ("nll", "passkey"):
        with pytest.raises(RuntimeError, match="the states of layer 1 are not finite"):
            trial.scores(task, mesa.ReRoPE(trained_length=160), 200)


@pytest.mark.slow
def test_origin_is_described_and_not_scored():
    results = published()
    wild = results.copy(deep=True)
    wild["predicted"].loc[{"config": "origin"}] = 256
    wild["measured"].loc[{"config": "origin"}] = 256
    assert scored(wild) == scored(results)
    assert scored(wild, "nll") == scored(results, "nll")
    described = "| origin (descriptive) |"
    assert described in published_tables()
    assert tables(wild).split(described)[0] == published_tables().split(described)[0]


def test_states_are_kept_exactly_and_their_mean_in_double(monkeypatch, tmp_path):
    kept = Kept(range(2), range(5), range(3))
    drawn = np.random.default_rng(0).normal(size=(4, 2, 5, 3)).astype(np.float32)
    passes = iter(drawn)
    monkeypatch.setattr(study_states, "capture", lambda *given: {study_states.HOOK: next(passes)})
    states = study_states.States(kept, tmp_path, averaged=True)
    states.fill(None, [[0] * 5], None, 0)
    states.fill(None, [[0] * 5, [1] * 5, [2] * 5], None, 1)
    both = states.hidden(mean=False, both=True)
    assert both["method"].values.tolist() == ["origin", "method"]
    np.testing.assert_array_equal(both.values, drawn[:2])
    np.testing.assert_array_equal(
        states.hidden(mean=True, both=True).values[1], (drawn[1] + drawn[2].astype(float) + drawn[3]) / 3
    )
    assert states.hidden(mean=False, both=False)["method"].values.tolist() == ["origin"]
    assert not list(tmp_path.iterdir())


def test_a_journal_keeps_what_was_added(tmp_path):
    path = tmp_path / "cells.jsonl"
    Journal(path, {"seeds": 2}).add(("nll", "mesa", 0, 64), {"scores": [1.5]})
    assert Journal(path, {"seeds": 2}).rows == {("nll", "mesa", 0, 64): {"scores": [1.5]}}
    with pytest.raises(FileExistsError, match="another seeds"):
        Journal(path, {"seeds": 3})


def test_too_little_text_and_too_few_words_are_named():
    with pytest.raises(ValueError, match="the text holds 6 runs of 5 tokens, 4 seeds with 2 each are asked for"):
        seeded_windows([np.arange(10)], 5, range(4), 2)
    with pytest.raises(ValueError, match="holds 1 runs of 5 tokens that no earlier seed reads, 2 seeds with 2 each"):
        seeded_windows([np.arange(27)], 5, range(2, 4), 2)


def test_later_seeds_read_nothing_that_earlier_ones_read():
    loaded = load()
    for documents in (
        [np.arange(100)],
        [np.arange(60), np.arange(60, 100)],
        [np.arange(3 * n, 3 * n + 3) for n in range(40)],
    ):
        first, later = (seeded_windows(documents, 5, seeds, 2) for seeds in (range(4), range(4, 8)))
        starts = [int(run[0]) for each in (first, later) for mine in each.values() for run in mine]
        assert len({start // 5 for start in starts}) == 16
        assert list(later) == [4, 5, 6, 7]
    documents = [np.arange(3, 2000)]
    for kind in ("repeated", "text", "passkey"):
        first, later = (
            study_prompts(loaded.tokenizer, kind, documents, 200, seeds, 1) for seeds in (range(3), range(3, 6))
        )
        every = [tuple(ids) for each in (first, later) for mine in each.values() for ids in mine]
        assert len(set(every)) == 6
    whole = study_prompts(loaded.tokenizer, "repeated", [], 200, range(6), 1)
    assert study_prompts(loaded.tokenizer, "repeated", [], 200, range(3, 6), 1) == {
        seed: whole[seed] for seed in (3, 4, 5)
    }


@cache
def published():
    return read_results(ROOT / "research/thresholds_predict_failure/results/default.json")


@cache
def published_tables():
    return tables(published())


def test_the_published_figure_has_every_method_of_it():
    shown = {text.get_text() for text in lengths_figure(published()).legends[0].get_texts()}
    assert {"nope", "stair", "mesa"} <= shown


def test_published_tables_are_those_of_the_published_results():
    text = (ROOT / "docs" / "findings.md").read_text()
    block = text.split("<!-- study -->\n")[1].split("\n<!-- /study -->")[0]
    assert block == published_tables()


def leading(results):
    title, (head, *rows) = all_rows(results)[0]
    assert title == "The comparison chosen beforehand, and the highest of all"
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_the_comparison_chosen_beforehand_leads_whatever_the_numbers_say():
    results = published()
    first, highest = leading(results)
    kind = {"prompt": "repeated", "rule": "standard", "dims asked": "10", "measured by": "either"}
    assert first == first | kind | {"kind": "chosen beforehand"}
    assert first["Spearman"] == str(scored(results).correlation)
    assert highest["kind"] == "highest of 99 defined"
    assert float(highest["Spearman"].split()[0]) > float(first["Spearman"].split()[0])
    assert "[" in highest["arithmetic there"]
    flipped = results.assign(predicted=-results["predicted"])
    first, highest = leading(flipped)
    assert first == first | kind
    assert first["Spearman"].startswith("-0.")
    uncalled = results.assign(predicted=results["predicted"] * np.nan)
    assert leading(uncalled) == [
        first | {"called": "0.00", "Spearman": "-", "arithmetic there": "-", "difference": "-"}
    ]


def test_readme_and_findings_state_the_published_numbers():
    results = published()
    either, nll = (scored(results, criterion, prompt="repeated", rule="standard") for criterion in ("either", "nll"))
    value = either.correlation
    readme, findings = ((ROOT / name).read_text() for name in ("README.md", "docs/findings.md"))
    assert f"{value.value:.2f} (95% interval {value.low:.2f} to {value.high:.2f})" in readme
    assert f"and {nll.correlation.value:.2f} where failure is measured" in readme
    assert f"rank correlation {nll.correlation}" in findings
    assert f"agreement is {value}" in findings
    at = 4 * settings(results)["trained_length"]
    assert f"called right in {either.right[at].value:.0%}" in findings


def test_points_of_the_figure_are_medians_over_seeds():
    results = published()
    figure = lengths_figure(results)
    origin = results.sel(config="origin").median("seed")
    (marker, *_), *_ = figure.axes[0].containers
    predicted = origin["predicted"].sel(prompt="repeated", rule="standard", top=10)
    assert marker.get_xdata()[0] == float(origin["measured"].sel(criterion="either"))
    assert marker.get_ydata()[0] == float(predicted)


def test_on_a_phone_panels_stand_below_each_other():
    wide, narrow = lengths_figure(published()), lengths_figure(published(), narrow=True)
    places = [[axes.get_subplotspec().colspan.start for axes in figure.axes] for figure in (wide, narrow)]
    assert [places[0], set(places[1])] == [[*range(len(wide.axes))], {0}]
    assert narrow.get_figwidth() < 5 < wide.get_figwidth()
    texts = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in (wide, narrow)]
    assert texts[0] == texts[1]
    assert dims_figure(published(), narrow=True).get_figwidth() < 5


def test_every_method_has_a_marker_in_the_figure():
    """Also one of another package, and where predictions of it are called."""
    results = published()
    count = results.sizes["config"]
    names = ["origin", "nope", "somebody's", *list(results["config"].values)[3:]]
    calling = results.assign(predicted=results["predicted"].fillna(300)).assign_coords(config=names)
    drawn = lengths_figure(calling).axes[0].containers
    assert len(drawn) == count


def test_prompts_and_rules_have_looks_that_no_method_has():
    lines = [container.lines[0] for container in dims_figure(published()).axes[0].containers]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) > 3
    assert not {colour for colour, *_ in looks} & {colour for colour, *_ in STYLES.values()}
    assert all(colour.startswith("#") and colour != "#1f77b4" for colour, *_ in looks)


def test_figures_and_tables_of_a_study_that_calls_nothing():
    results = published()
    silent = results.assign(predicted=results["predicted"] * np.nan)
    assert not dims_figure(silent).legends
    assert not lengths_figure(silent).axes[0].containers
    assert "| repeated | standard | 2 M |" not in tables(silent)
