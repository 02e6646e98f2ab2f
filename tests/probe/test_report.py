"""The report of a stored run: numbers, words, files; opens offline and escapes what it is given."""

import json
import re

import numpy as np
import pytest
from synthetic import evaluation, hidden_states, write_run

from probe.figures.curves import curves_chart
from probe.report import render, whole_summary, write_report
from probe.store.reader import open_run
from probe.thresholds.analysis import analyse, summarize
from probe.thresholds.failure import measured_failure
from probe.thresholds.findings import findings, table

M = 64
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), hidden_states(), evaluation(), model=HOSTILE)


@pytest.fixture(scope="module")
def summary(folder):
    return write_report(folder)


def test_methods_that_follow_the_prompts_length_are_marked(tmp_path, monkeypatch):
    """Dynamic-NTK's states are those of prompts as long as the pass, wherever a prediction of it is read."""
    configs = {name: {"name": name, "trained_length": M} for name in ("origin", "rerope", "dynamic-ntk", "mesa")}
    attrs = {"method_configs": json.dumps(configs), "length": 5 * M}
    run = write_run(tmp_path, hidden_states(), evaluation(), **attrs)
    monkeypatch.setattr("probe.report.write_figures", lambda *_: None)
    summary = write_report(run)
    assert (summary["follows_length"], summary["pass_length"]) == (["dynamic-ntk"], 320)
    rows = table(summary).splitlines()
    (text,) = [row for row in rows if row.startswith("dynamic-ntk") and "(in prompts of 320)" in row]
    assert not any("in prompts of" in row for row in rows if row != text)
    note = "The positions or frequencies of dynamic-ntk follow the prompt's length: "
    assert summary["verdict"]["notes"][-1].startswith(note)
    html = (run / "report.html").read_text()
    assert "(in prompts of 320)" in html
    assert "not of shorter ones; what is measured by length" in html


def test_the_rules_are_strict():
    scores = evaluation()
    scores["tail_nll"][:] = 3.0
    scores["tail_nll"][0, 3:] = 3.5
    scores["passkey"][:] = 1
    scores["passkey"][1, 4:, :10] = 0
    assert all(failure.length is None for failure in measured_failure(scores, M).failures)
    scores["tail_nll"][0, 3:] = 3.51
    scores["passkey"][1, 4:, 10] = 0
    assert [failure.length for failure in measured_failure(scores, M).failures] == [192, 256, None, None]


def test_summary(summary, folder):
    assert json.loads((folder / "summary.json").read_text()) == summary
    rows = {row["method"]: row for row in summary["methods"]}
    assert 71 <= rows["origin"]["predicted_by_thresholds"]["length"] <= 80
    assert summary["predicted_by"] == "drift"
    assert 70 <= rows["origin"]["predicted"]["length"] <= 80
    assert rows["origin"]["predicted"]["layer"] in (1, 2)
    assert [row["predicted"]["text"].endswith("(descriptive)") for row in rows.values()] == [True, *[False] * 3]
    assert rows["rerope"]["predicted"]["text"] == "none up to 320"
    assert 192 <= rows["dynamic-ntk"]["predicted"]["length"] <= 202
    drifts = summary["drift"]["prompts"]
    assert list(drifts) == ["repeated", "text-0"]
    assert {dim["dim"] for dim in drifts["repeated"]["dims"]} <= set(range(10))
    assert all(row["false_alarms"] == 0 for row in drifts["repeated"]["methods"])
    assert rows["origin"]["measured"]["length"] == 128
    assert rows["mesa"]["predicted"]["text"] == rows["mesa"]["measured"]["text"] == "none up to 320"
    assert rows["origin"]["scores"]["64"]["tail_nll"] == pytest.approx(3, abs=0.05)
    at = rows["origin"]["scores"]["128"]
    assert at["tail_nll"] == pytest.approx(3.8, abs=0.05)
    assert at["tail_nll_interval"][0] < at["tail_nll"] < at["tail_nll_interval"][1]
    assert (at["passkey"], at["passkey_interval"][1]) == (1, 1)
    assert rows["origin"]["scores"]["256"]["passkey"] == 0
    assert "tail_nll_difference" not in at
    less = rows["mesa"]["scores"]["128"]["tail_nll_difference"]
    assert less["mean"] == pytest.approx(-0.8, abs=0.05)
    assert less["low"] < less["mean"] < less["high"] < -0.7
    assert summary["searched"] == 3 * 32
    control = summary["control"]
    assert len(control["place"]) == len(control["prompts"]["repeated"]["qualified"]) == 16
    assert max(control["prompts"]["repeated"]["qualified"]) <= 1 < min(control["prompts"]["repeated"]["matched"][:8])
    assert set(control["prompts"]["repeated"]["false_predictions"].values()) == {0}
    assert summary["rule"]["smoothing"] == 1


def test_table(summary):
    lines = table(summary).splitlines()
    assert (
        lines[0].split()
        == "method predicted NLL 64 NLL 128 NLL 256 NLL 320 passkey 64 passkey 128 passkey 256 passkey 320".split()
    )
    assert re.fullmatch(r"mesa +none up to 320 +(\d\.\d\d +){4}1\.00 +1\.00 +1\.00 +1\.00", lines[4])
    assert lines[6] == "difference to origin on the same prompts [95% interval, paired]"
    assert re.fullmatch(r"mesa .*-0\.8\d \[-0\.8\d, -0\.7\d\].* \+1\.00 \[\+0\.7[34], \+1\.00\]", lines[10])


def test_findings_agree_with_the_numbers(summary):
    text = dict(findings(summary))
    assert "On repeated, the states of origin leave their in-window range first at" in text["Drift, prompt by prompt"]
    assert "show an observable threshold" in text["Thresholds, dim by dim"]
    control = text["Negative control"]
    assert "put at 16 positions from 24 to 56, where the model works, calls 0.0% to" in control
    assert control.endswith("false prediction: origin 0%, rerope 0%, dynamic-ntk 0%, mesa 0%.")
    assert "say nothing about M" in controlled(summary, as_many=0.6)
    text = "At 25% of the positions no fewer are found than at M: M is not told from them."
    assert text in controlled(summary, as_many=0.25)
    none = dict(findings({**summary, "qualified": {"repeated": 0}}))["Negative control"]
    assert none.endswith("No threshold was found, so nothing is predicted.")


def controlled(summary, **changed):
    control = summary["control"]
    prompts = {name: {**counts, **changed} for name, counts in control["prompts"].items()}
    return dict(findings({**summary, "control": {**control, "prompts": prompts}}))["Negative control"]


def test_report_stands_alone_and_escapes(summary, folder):
    text = (folder / "report.html").read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)" in text
    assert text.count("plotly.js v") == 1
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert (
        text.count('class="plotly-graph-div"') == 2 + 2 + 4 + 4 + 2
    )  # curves, map, drift, dims, thresholds, both heatmaps
    assert (
        text.index("Measured by length</h2>") < text.index("Where inside drift shows</h2>") < text.index("Drift</h2>")
    )
    assert text.index("resid_post minus origin by dim") < text.index("<summary>Raw values of every method")


def test_every_figure_is_written(summary, folder):
    names = {path.name for path in (folder / "figures").iterdir()}
    for method in ("origin", "rerope", "dynamic-ntk", "mesa"):
        assert {f"heatmap-{method}.png", f"heatmap-{method}.html", f"heatmap-{method}.npz"} <= names
    best = summary["best"][0]
    assert {f"threshold-layer{best['layer']}-dim{best['dim']}.svg", "curves.png", "drift.png", "heatmaps.png"} <= names
    assert "plotly.min.js" in names


def test_a_run_without_scores_or_signal_still_reports(tmp_path):
    hidden = hidden_states(windows=3)
    still = hidden * 0 + hidden.isel({"method": 1})
    positions = [*range(50, 80), *range(150, 170)]
    run = open_run(write_run(tmp_path, still.rename("resid_post").sel(position=positions)))
    analysis = analyse(run)
    summary = whole_summary(analysis)
    text = render(analysis, summary)
    assert summary["methods"][0]["predicted"]["text"] == "no observable dim"
    assert "could not be made: position 24" in dict(findings(summary))["Negative control"]
    assert "Not measured in this run" in text
    assert table(summary).splitlines()[1].split()[1:] == ["no", "observable", "dim"]
    assert json.loads(json.dumps(summary, allow_nan=False))["best"] == []
    with pytest.raises(ValueError, match="hook 'attn_out' was not captured; captured: resid_post"):
        analyse(run, "attn_out")


def test_without_origin_the_first_method_is_the_reference(tmp_path):
    hidden = hidden_states(windows=3).isel({"method": [2, 3]})
    scores = evaluation(windows=3).isel({"method": [2, 3]})
    analysis = analyse(open_run(write_run(tmp_path, hidden, scores)))
    assert analysis.reference == "dynamic-ntk"
    assert np.isfinite(analysis.measured.level)


def test_a_length_that_a_method_lacks_is_left_out(tmp_path):
    hidden, scores = hidden_states(windows=3), evaluation(windows=3)
    scores["tail_nll"][3, 2] = scores["passkey"][3, 2] = np.nan  # mesa at 2 M
    run = open_run(write_run(tmp_path, hidden, scores))
    analysis = analyse(run)
    summary = json.loads(json.dumps(summarize(analysis), allow_nan=False))
    rows = {row["method"]: row["scores"]["128"] for row in summary["methods"]}
    assert rows["mesa"] == {"tail_nll": None, "passkey": None}
    assert rows["rerope"]["tail_nll_difference"]["mean"] == pytest.approx(-0.8, abs=0.05)
    nll, _ = curves_chart(scores, analysis.measured, M, analysis.headline).panels
    lines = {line.label: line.x.tolist() for line in nll.lines}
    assert (lines["mesa"], lines["origin"]) == ([32, 64, 192], [32, 64, 128, 192])
    assert nll.x_ticks == (32, 64, 192)
    assert all(np.isfinite(point.y) for point in nll.points)
