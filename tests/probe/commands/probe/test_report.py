"""The report of a stored run: numbers, words, files; opens offline and escapes what it is given."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import evaluation, hidden_states, write_run

from probe.commands.probe.report import full_summary, remove_report, update_report, write_report
from probe.commands.probe.verdict import SUMMARY, difference_table, drift_table, score_table, threshold_doubt
from probe.files import read_result
from probe.store.reader import open_run
from probe.store.result_file import as_json, result_text
from probe.thresholds.analysis import analyse

M = 64
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), hidden_states(), evaluation(), model=HOSTILE)


@pytest.fixture(scope="module")
def summary(folder):
    return write_report(folder)


def test_methods_that_follow_the_prompts_length_are_marked(tmp_path, monkeypatch):
    """Dynamic-NTK's states are those of prompts as long as the pass, wherever an onset of it is read."""
    configs = {name: {"name": name, "trained_length": M} for name in ("origin", "rerope", "dynamic-ntk", "mesa")}
    attrs = {"method_configs": json.dumps(configs), "length": 5 * M}
    run = write_run(tmp_path, hidden_states(layers=1, dims=8, prompts=("repeated",)), evaluation(), **attrs)
    monkeypatch.setattr("probe.commands.probe.report.write_figures", lambda *_: None)
    summary = as_json(write_report(run))
    assert (summary["follows_length"], summary["pass_length"]) == (["dynamic-ntk", "mesa"], 320)
    note = "Under dynamic-ntk and mesa, positions or frequencies depend on prompt length. "
    assert any(each.startswith(note) for each in summary["verdict"]["notes"])
    assert "not of shorter ones; losses and" in (run / "report.html").read_text()


@pytest.mark.parametrize("config", [{"name": "gone"}, {"name": "mesa", "gone": 1}])
def test_a_method_that_is_not_installed_is_reported_without_its_plan(config, tmp_path):
    """Nor is one of another version of its package."""
    configs = {"dynamic-ntk": {"name": "dynamic-ntk"}, "mesa": config}
    attrs = {"method_configs": json.dumps({name: {"trained_length": M} | of for name, of in configs.items()})}
    run = write_run(tmp_path, hidden_states(layers=1, dims=8, prompts=("repeated",)), evaluation(), **attrs)
    summary = as_json(full_summary(analyse(open_run(run))))
    assert summary["follows_length"] == ["dynamic-ntk"]
    assert {row["method"]: row["drift_onset"]["text"] for row in summary["methods"]}["mesa"] == "none up to 320"
    assert "mesa: not installed here, or with other parameters. Drift is" in json.dumps(summary)


def test_an_earlier_summary_is_read(summary, folder):
    former = {"false_positive_rate": "false_alarms", "false_positives": "alarms", "detected": "called"}
    former |= {"any_false_positive_rate": "any_false_alarm", "evaluated": "judged"}
    former |= {"evaluated_by": "judged_by", "unevaluated": "unjudged"}
    earlier = result_text(summary)
    for name, before in former.items():
        assert f'"{name}"' in earlier
        earlier = earlier.replace(f'"{name}"', f'"{before}"')
    assert SUMMARY.parse(json.loads(earlier), folder) == summary


def test_after_another_command_only_the_curves_are_drawn_again(summary, folder, tmp_path, monkeypatch):
    """Figures of hidden states, and what was searched in them, follow from the store and the code alone."""
    run, calls = Path(shutil.copytree(folder, tmp_path / "run")), []
    monkeypatch.setattr("probe.figures.section.html_embed", lambda _: "<figure >")
    monkeypatch.setattr("probe.commands.probe.report.write_figures", lambda *given: calls.append(given[2:]))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "report.html"}
    assert result_text(update_report(run)) == result_text(summary)
    assert {path: path.read_bytes() for path in before} == before
    SUMMARY.write(run, replace(summary, onset_by="paper"))
    assert update_report(run).onset_by == "paper"
    next(run.glob("derived/*-thresholds.npz")).unlink()  # as after a change of the code
    update_report(run)
    assert [(maps is None, [bool(part) for part in drawn]) for maps, drawn in calls] == [
        *[(True, [False, True, False, False, False])] * 2,
        (False, [True, True, True, True, False]),
    ]


def test_summary(summary, folder):
    summary = as_json(summary)
    assert read_result(folder / "summary.json") == summary
    rows = {row["method"]: row for row in summary["methods"]}
    assert 71 <= rows["origin"]["threshold_onset"]["length"] <= 80
    assert summary["onset_by"] == "drift"
    assert 70 <= rows["origin"]["drift_onset"]["length"] <= 80
    assert rows["origin"]["drift_onset"]["layer"] in (1, 2)
    assert [row["drift_onset"]["text"].endswith("(descriptive)") for row in rows.values()] == [True, *[False] * 3]
    assert rows["rerope"]["drift_onset"]["text"] == "none up to 320"
    assert 192 <= rows["dynamic-ntk"]["drift_onset"]["length"] <= 202
    drifts = summary["drift"]["prompts"]
    assert list(drifts) == ["repeated", "text-0"]
    assert {dim["dim"] for dim in drifts["repeated"]["dims"]} <= set(range(10))
    assert all(row["false_positive_rate"] == 0 for row in drifts["repeated"]["methods"])
    assert rows["origin"]["measured"]["length"] == 128
    assert rows["mesa"]["drift_onset"]["text"] == rows["mesa"]["measured"]["text"] == "none up to 320"
    assert rows["origin"]["scores"]["64"]["tail_nll"] == pytest.approx(3, abs=0.05)
    at = rows["origin"]["scores"]["128"]
    assert at["tail_nll"] == pytest.approx(3.8, abs=0.05)
    assert at["tail_nll_interval"][0] < at["tail_nll"] < at["tail_nll_interval"][1]
    assert (at["passkey"], at["passkey_interval"][1]) == (1, 1)
    assert rows["origin"]["scores"]["256"]["passkey"] == 0
    assert at["tail_nll_difference"] is None
    less = rows["mesa"]["scores"]["128"]["tail_nll_difference"]
    assert less["mean"] == pytest.approx(-0.8, abs=0.05)
    assert less["low"] < less["mean"] < less["high"] < -0.7
    assert summary["searched"] == 3 * 32
    control = summary["control"]
    assert len(control["place"]) == len(control["prompts"]["repeated"]["qualified"]) == 16
    assert max(control["prompts"]["repeated"]["qualified"]) <= 1 < min(control["prompts"]["repeated"]["matched"][:8])
    assert set(control["prompts"]["repeated"]["false_onsets"].values()) == {0}
    assert summary["rule"]["smoothing"] == 1


def test_tables(summary):
    scores, less = score_table(summary), difference_table(summary)
    lengths = ("64", "128", "256", "320")
    columns = tuple(f"{name} {length}" for name in ("NLL", "passkey") for length in lengths)
    assert scores.head == ("method", "drift onset", *columns)
    assert scores.rows[3][:2] == ("mesa", "none up to 320")
    assert scores.rows[3][6:] == ("1.00",) * 4
    assert less.title == "scores minus origin's on the same prompts [95% interval, paired]"
    assert re.fullmatch(r"-0\.8\d \[-0\.8\d, -0\.7\d\]", less.rows[2][2])
    assert re.fullmatch(r"\+1\.00 \[\+0\.7[34], \+1\.00\]", less.rows[2][-1])
    calls = summary.drift.prompts["repeated"].methods
    origin, *others = drift_table(calls, "repeated").rows
    assert (origin[0], origin[1].split()[0]) == ("origin", str(calls[0].length))
    assert origin[3:] == ("–", "–", "0.0%", "0%")
    assert [row[1].split()[0] for row in others] == [str(call).split()[0] for call in calls[1:]]


def test_report_stands_alone_and_escapes(summary, folder):
    text = (folder / "report.html").read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)" in text
    assert text.count("plotly.js v") == 1
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert text.count("<figure ") == 2 + 1 + 2 + 4 + 2  # curves, map, drift, thresholds, both heatmaps
    assert (
        text.count('class="plotly-graph-div"') == 2 + 1 + 2 * 2 + 4 + 2
    )  # the panels of drift apart, those of thresholds one above the other
    places = (
        "origin</abbr> is the unmodified model",
        "by prompt length",
        "What fails",
        "Where inside drift shows</h2>",
    )
    assert sorted(places, key=text.index) == list(places)
    assert text.count('<p style="margin: 0">') == text.count("<figure ")  # what is seen
    assert not re.search("warm_up|held_out|minimum_score", text.partition("How each number is made")[2])
    assert text.index("resid_post minus origin by dim") < text.index("<summary>Raw values of every method")


def test_of_a_report_that_is_removed_all_goes_and_nothing_else(summary, folder, tmp_path):
    run = Path(shutil.copytree(folder, tmp_path / "run"))
    mine = {run / name for name in ("figures/heatmap-mine.png", "figures/curves.pdf", "derived/mine.npz", "notes.md")}
    for path in mine:
        path.write_text("mine")
    remove_report(run)
    left = {path for path in run.rglob("*") if path.is_file() and "store.zarr" not in path.parts}
    assert left == mine | {run / "figures" / "plotly.min.js"}


@pytest.mark.parametrize(("fails", "error"), [("write_figures", KeyboardInterrupt), ("render", OSError)])
def test_what_ends_a_drawing_leaves_the_former_report_as_it_was(
    summary, folder, tmp_path, undrawn, monkeypatch, fails, error
):
    run = Path(shutil.copytree(folder, tmp_path / "run"))

    def ended(*_):
        raise error

    monkeypatch.setattr(f"probe.commands.probe.report.{fails}", ended)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(error):
        write_report(run, by="paper")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_a_report_leaves_no_figure_of_the_former_one(summary, folder, tmp_path, undrawn):
    run = Path(shutil.copytree(folder, tmp_path / "run"))
    left = run / "figures" / "threshold-layer9-dim9.png"
    left.write_bytes(b"of another analysis")
    write_report(run)
    assert not left.exists()
    assert {path.name for path in run.glob(".*")} == set()


def test_a_run_without_scores_or_signal_still_reports(tmp_path):
    hidden = hidden_states(windows=3)
    still = hidden * 0 + hidden.isel({"method": 1})
    positions = [*range(50, 80), *range(150, 170)]
    run = open_run(write_run(tmp_path, still.rename("resid_post").sel(position=positions)))

    summary = write_report(run.folder)
    text = (run.folder / "report.html").read_text()
    assert str(summary.methods[0].threshold_onset) == "no threshold dim"
    assert "no negative control (position 24" in threshold_doubt(summary)
    assert "Not measured in this run" in text
    assert score_table(summary).rows[0] == ("origin", "no threshold dim")
    assert json.loads(result_text(summary))["best"] == []
    with pytest.raises(ValueError, match="hook 'attn_out' was not captured; captured: resid_post"):
        analyse(run, "attn_out")
