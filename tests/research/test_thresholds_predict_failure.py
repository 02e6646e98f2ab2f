"""A whole study of a tiny model, its scores, and the published tables."""

import re
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from probe.eval_tasks import sources
from research.thresholds_predict_failure import onsets
from research.thresholds_predict_failure.results import read_results
from research.thresholds_predict_failure.run import main, parser
from research.thresholds_predict_failure.tables import scored, settings, tables

ROOT = Path(__file__).parents[2]
OPTIONS = "--configs rerope,nope,dynamic-ntk --lengths 160,200,240,320 --seeds 2 --windows 2 --samples 1 --tops 1,3"


def study(model, out, options=OPTIONS, *more):
    main(parser().parse_args(["--model", str(model), "--out", str(out), *options.split(), *more]))


@pytest.fixture(scope="module", autouse=True)
def little():
    """The shortest of the held-out texts alone, few places for the control; random weights count as above chance."""
    text = min(sources.heldout(), key=len)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onsets, "negative_control", partial(onsets.negative_control, count=3))
        patch.setattr(sources, "heldout", lambda: [text])
        patch.setattr("research.thresholds_predict_failure.results.is_chance", lambda *_: False)
        patch.setattr("research.thresholds_predict_failure.results.MIN_ACCURACY", 0)
        yield


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "here"
    study(model, out)
    return out


@pytest.mark.slow
def test_results_are_labelled_and_whole(finished):
    results = read_results(finished / "study.json")
    assert results["config"].values.tolist() == ["origin", "rerope", "nope", "dynamic-ntk"]
    assert results["prompt"].values.tolist() == ["repeated", "text", "text-mean", "passkey", "passkey-mean"]
    assert results["onset"].dims == ("prompt", "rule", "top", "config", "seed")
    assert results["onset"].shape == (5, 3, 2, 4, 2)
    assert results["arithmetic"].values[:2].tolist() == [[160, 161, 160, 160], [321] * 4]
    called = results["onset"].values[~np.isnan(results["onset"].values)]
    assert ((called >= 160) & (called <= 321)).all()
    either, nll, passkey = results["measured"].transpose("criterion", ...).values
    assert (either == np.minimum(nll, passkey)).all()
    assert set(nll.ravel()) <= {160, 200, 240, 320, 321}
    assert (finished / "study.md").read_text().count("**") == 16
    assert {"lengths.png", "dims.png"} <= {path.name for path in finished.iterdir()}


@cache
def published():
    return read_results(ROOT / "research/thresholds_predict_failure/results/default.json")


def test_published_tables_are_those_of_the_published_results():
    text = (ROOT / "research/thresholds_predict_failure/results.md").read_text()
    assert text.split("<!-- study -->\n")[1].split("\n<!-- /study -->")[0] == tables(published())


def test_readme_and_findings_state_the_published_numbers():
    either, nll = (
        scored(published(), criterion, prompt="repeated", rule="standard") for criterion in ("either", "nll")
    )
    value = either.correlation
    findings = (ROOT / "research/thresholds_predict_failure/results.md").read_text()
    assert re.search(rf"^\| chosen beforehand \|.*\| {re.escape(str(value))} \|", findings, re.MULTILINE)
    assert f"rank correlation {nll.correlation}" in findings
    assert f"agreement is {value}" in findings
    at = 4 * settings(published())["trained_length"]
    assert f"accuracy is {either.right[at].value:.0%}" in findings
