"""A run in a notebook says what its report says, in labelled data that shows itself; nothing needs torch."""

import json

import numpy as np
import pytest
from synthetic import evaluation, hidden_states, write_run

import probe
from mesa_lens.cli import main
from probe.commands.predict.result import PREDICTION, FailureEstimate, MethodPrediction, Prediction
from probe.commands.probe.report import write_report
from probe.commands.probe.verdict import run_summary
from probe.run import PLOTLY
from probe.store.result_file import as_json
from probe.thresholds.onset import drift_onsets


@pytest.fixture(scope="module")
def folder(tmp_path_factory, undrawn):
    folder = write_run(tmp_path_factory.mktemp("run"), hidden_states(), evaluation())
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return probe.open_run(folder)


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A run in which nothing breaks: every method has the last one's states, and no scores."""
    hidden = hidden_states(layers=2, dims=16)
    hidden[:] = hidden.sel({"method": "mesa"}).values[None]
    return probe.open_run(write_run(tmp_path_factory.mktemp("still"), hidden))


def test_the_verdict_is_that_of_the_summary(run, folder):
    written = json.loads((folder / "summary.json").read_text())["verdict"]
    assert as_json(run.verdict()) == written
    assert repr(run.verdict()) == repr(run_summary(folder).verdict)
    shown = run.verdict()._repr_html_()
    assert "origin</abbr> is the unmodified model" in shown


def test_drift_is_that_of_the_analysis(run):
    view = run.drift()
    assert view.data.identical(run.analysis().drifts["repeated"])
    call = drift_onsets(view.data)[0]
    lines = {line.split()[0]: line for line in repr(view).splitlines() if line}
    assert lines["origin"].split()[1] == str(call.length)
    assert lines["mesa"].split()[1:5] == ["none", "up", "to", "320"]
    assert view.names == ["drift-resid_post-repeated", "drift-resid_post-repeated-map"]
    assert run.drift("text-0", layers=[2]).names[0] == "drift-resid_post-text-0"


def test_a_heatmap_less_the_reference(run):
    view = run.heatmap(minus="origin", layers=[1], positions=[(60, 80)], dims=range(4))
    hidden = run.hidden["resid_post"].sel(prompt="repeated", layer=[1], position=slice(60, 79), dim=slice(0, 3))
    expected = hidden.sel({"method": "mesa"}) - hidden.sel({"method": "origin"})
    assert dict(view.data.sizes) == {"method": 3, "layer": 1, "position": 20, "dim": 4}
    np.testing.assert_array_equal(view.data.sel({"method": "mesa"}), expected)
    assert abs(expected).max() > 1  # else any panel would do
    assert repr(view).startswith("resid_post minus origin, repeated, layers 1-1, dims 0-3, positions 60-79; methods")
    assert run.heatmap().data.sizes["method"] == 4


@pytest.mark.parametrize("part", ["drift", "thresholds", "heatmap", "curves"])
def test_every_view_has_a_png_a_text_and_a_plotly_figure(run, part):
    view = getattr(run, part)()
    bundle = view._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert bundle["text/plain"] == repr(view)
    assert json.loads(json.dumps(bundle[PLOTLY]))["data"]
    assert len(view.figure().data) == len(bundle[PLOTLY]["data"])


@pytest.mark.parametrize("part", ["located", "anatomy"])
def test_what_was_not_run_names_its_command(run, part, folder):
    command = {"located": "locate", "anatomy": "anatomy"}[part]
    with pytest.raises(FileNotFoundError, match=f"`mesa-lens {command} --out {folder}`"):
        getattr(run, part)()


def test_where_nothing_breaks_no_break_is_reported(still):
    assert "no threshold dim among 32 on prompt repeated" in repr(still.thresholds())
    assert set(still.thresholds()._repr_mimebundle_()) == {"text/plain"}
    with pytest.raises(ValueError, match="there is no figure"):
        still.thresholds().figure()
    assert {call.length for call in drift_onsets(still.drift().data)} == {None}
    with pytest.raises(ValueError, match="holds no scores by length; probe with --samples above 0"):
        still.curves()


def test_scores_are_exported_where_the_states_tell_no_onset(folder, tmp_path):
    away = hidden_states(prompts=("repeated",)).sel(position=slice(80, 200))  # neither M nor what lies before it
    write_run(tmp_path / "away", away, evaluation())
    mesa = MethodPrediction({"window": 8}, "", failure=FailureEstimate(300, (290, 310)))
    (tmp_path / "away" / "predict").mkdir()
    PREDICTION.write(tmp_path / "away", Prediction("tiny", 64, [320], 8, "", None, {"mesa": mesa}))
    run, whole = probe.open_run(tmp_path / "away"), probe.open_run(folder)
    curves, expected = run.curves(), whole.curves()
    assert curves.data.identical(expected.data)
    there, then = (view.export.numbers["failures"] for view in (curves, expected))
    assert there["measured"].identical(then["measured"])
    assert set(there["drift_onset_text"].values) == {"not evaluated"}
    assert there["predicted_failure"].sel({"method": "mesa"}) == 300
    assert main(["export", "curves", str(run.folder), "--format", "svg,csv"]) == 0
    with pytest.raises(ValueError, match=r"position 64 .* was not captured, only 80-200"):
        run.thresholds()
