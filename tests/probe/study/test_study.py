"""A whole study of a tiny model; its journal; the published tables."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny

from mesa_lens.cli import main
from probe.evaluation.journal import Journal
from probe.study import cells as study_cells
from probe.study import run as study
from probe.study.report import dims_figure, lengths_figure
from probe.study.results import read_results
from probe.study.table import scored, settings, tables

ROOT = Path(__file__).parents[3]
OPTIONS = "--methods rerope --length 320 --seeds 2 --windows 2 --samples 1 --tops 1,3"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "here"
    assert main(["study", "--model", model, *OPTIONS.split(), "--out", str(out)]) == 0
    return out


def test_results_are_labelled_and_whole(finished):
    results = read_results(finished / "study.json")
    assert results["config"].values.tolist() == ["origin", "rerope", "rerope window=80"]
    assert results["prompt"].values.tolist() == ["repeated", "text", "text-mean", "passkey", "passkey-mean"]
    assert results["predicted"].dims == ("prompt", "rule", "top", "config", "seed")
    assert results["predicted"].shape == (5, 2, 2, 3, 2)
    assert results["arithmetic"].values.tolist() == [[160, 161], [321, 321], [321, 321]]
    called = results["predicted"].values[~np.isnan(results["predicted"].values)]
    assert ((called >= 160) & (called <= 321)).all()
    nothing = results["qualified"].values == 0
    assert np.isnan(results["predicted"].transpose("prompt", "rule", "seed", ...).values[nothing]).all()
    either, nll, passkey = results["measured"].transpose("criterion", ...).values
    assert (either == np.minimum(nll, passkey)).all()
    assert set(nll.ravel()) <= {160, 200, 240, 280, 320, 321}
    assert (finished / "study.md").read_text().count("**") == 12
    assert {"lengths.png", "dims.png"} <= {path.name for path in finished.iterdir()}


def test_an_interrupted_study_goes_on_and_ends_the_same(finished, model, tmp_path, capsys, monkeypatch):
    out = tmp_path / "again"
    shutil.copytree(finished, out)
    lines = (out / "cells.jsonl").read_text().splitlines(keepends=True)
    cut = [*lines[:4], *lines[7:20], lines[20][:30]]
    (out / "cells.jsonl").write_text("".join(cut))
    ran = []
    real = study_cells.Trial.failures
    monkeypatch.setattr(
        study_cells.Trial, "failures", lambda self, method: ran.append(method.name) or real(self, method)
    )
    assert main(["study", "--model", model, *OPTIONS.split(), "--out", str(out)]) == 0
    assert len(ran) == 3
    assert (out / "study.json").read_text() == (finished / "study.json").read_text()
    assert capsys.readouterr().out.strip() == (finished / "study.md").read_text().strip()


def test_another_study_is_not_mixed_in(finished, model, capsys):
    options = OPTIONS.replace("--samples 1", "--samples 2").split()
    assert main(["study", "--model", model, *options, "--out", str(finished)]) == 2
    assert "holds a run with another samples; use --overwrite or another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "repeated,story"], "unknown prompt 'story'; known: repeated, text, passkey"),
        (["--prompts", "text,text"], "--prompts 'text,text' is empty or repeats one"),
        (["--tops", "1,x"], "--tops '1,x' is no list of numbers"),
        (["--tops", "0,3"], "--seeds, --windows, --samples and --tops must be at least 1, not 0"),
        (["--length", "200"], "--length 200 is below twice the trained length 160; take e.g. 1280"),
        (["--methods", "origin"], "--methods origin gives 1 configs, too few to correlate"),
        (["--methods", "rope"], "unknown method 'rope'"),
    ],
)
def test_bad_input_is_said_before_the_weights_are_loaded(model, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(study, "load", None)
    assert main(["study", "--model", model, "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_journal_keeps_what_was_added(tmp_path):
    path = tmp_path / "cells.jsonl"
    Journal(path, {"seeds": 2}).add(("measured", "", "mesa", 1), {"by_nll": None})
    assert Journal(path, {"seeds": 2}).rows == {("measured", "", "mesa", 1): {"by_nll": None}}
    with pytest.raises(FileExistsError, match="another seeds"):
        Journal(path, {"seeds": 3})


def test_too_little_text_and_too_few_words_are_named():
    with pytest.raises(ValueError, match="the text holds 6 runs of 5 tokens, 4 seeds with 2 each are asked for"):
        study_cells.seeded_windows([np.arange(10)], 5, 4, 2)
    windows = study_cells.seeded_windows([np.arange(100)], 5, 4, 2)
    starts = [int(run[0]) for mine in windows for run in mine]
    assert len(set(starts)) == 8


def published():
    return read_results(ROOT / "benchmarks" / "results" / "study.json")


def test_published_tables_are_those_of_the_published_results():
    text = (ROOT / "docs" / "findings.md").read_text()
    block = text.split("<!-- study -->\n")[1].split("\n<!-- /study -->")[0]
    assert block == tables(published())


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


def test_figures_and_tables_of_a_study_that_calls_nothing():
    results = published()
    silent = results.assign(predicted=results["predicted"] * np.nan)
    assert dims_figure(silent).axes[0].get_legend() is None
    assert not lengths_figure(silent).axes[0].containers
    assert "| repeated | standard | 2 M |" not in tables(silent)
