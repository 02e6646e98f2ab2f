"""`mesa-lens probe --minutes`: stages that fit the time, each with a true report; the same command goes on."""

import contextlib
import io
import json
import shlex
import shutil
from unittest.mock import Mock

import pytest

from mesa_lens.cli import main
from probe.experiment.estimate import Speed
from probe.experiment.run import CommandResult
from probe.request import noted, say, say_once
from probe.run import open_run
from probe.status import status_of
from probe.store import store
from probe.store.reader import partial_path

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def speed():
    """Half a second a pass of whatever length, and the lengths that it was measured up to."""
    longest_of = []

    def measured(spec, longest, executor):
        longest_of.append(longest)
        return Speed(0.5, 0.0, 0.0, longest)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("probe.experiment.estimate", "probe.commands.probe.run"):
            patch.setattr(f"{module}.measure_speed", measured)
        yield longest_of


@pytest.fixture(scope="module")
def staged(model, tmp_path_factory, undrawn, speed):
    """The command of a run in stages that was begun, its folder, and what it said on stderr."""
    out = tmp_path_factory.mktemp("staged") / "run"
    command = ["probe", "--model", model, "--methods", "origin,rerope", "--samples", "5", "--out", str(out)]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*command, "--minutes", "0.3"]) == 0
    return command, out, said.getvalue()


@pytest.fixture(scope="module")
def full(model, tmp_path_factory, undrawn):
    """The command of a small run in full, without --samples and --out, and its folder."""
    out = tmp_path_factory.mktemp("full") / "run"
    small = ["probe", "--model", model, "--methods", "origin", "--texts", "0", "--refine", "0", "--length", "200"]
    assert main([*small, "--samples", "2", "--out", str(out)]) == 0
    return small, out


def attributes(out):
    return json.loads((out / "store.zarr" / "zarr.json").read_text(encoding="utf-8"))["attributes"]


def rows(out):
    return (out / "measured.jsonl").read_text(encoding="utf-8").splitlines()


def test_random_weights_give_no_verdict_that_a_method_helps(model, tmp_path, speed, capsys):
    out = tmp_path / "run"
    methods = ["--methods", "origin,mesa"]
    assert main(["probe", "--model", model, *methods, "--minutes", "0.5", "--samples", "5", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Cannot tell: the unmodified model is at chance inside M" in text
    assert "Use " not in text


def test_a_run_without_hidden_states_is_read_by_all_commands(model, tmp_path, speed, monkeypatch, capsys):
    out = tmp_path / "run"
    monkeypatch.setattr("probe.commands.probe.run._Run.captured", lambda self, tokens: None)
    assert main(["probe", "--model", model, "--methods", "origin,mesa", "--minutes", "0.3", "--out", str(out)]) == 0
    run = open_run(out)
    assert "hidden states are not captured yet" in " ".join(repr(run.verdict()).split())
    assert set(run.curves().export.numbers) >= {"curves-tail_nll", "failures"}
    assert main(["report", str(out)]) == 0
    assert main(["export", "curves", str(out), "--out", str(tmp_path / "files")]) == 0
    capsys.readouterr()
    assert main(["export", "heatmap", str(out), "--out", str(tmp_path / "files")]) == 2
    assert "holds no hidden states yet" in capsys.readouterr().err
    assert status_of(out).state == "unfinished"


def test_stages_are_refused_where_a_full_run_is_before_the_model_is_loaded(full, speed, capsys):
    small, out = full
    measured = len(speed)
    capsys.readouterr()
    assert main([*small, "--samples", "2", "--minutes", "0.3", "--out", str(out)]) == 2
    assert "holds a full run, not one in stages" in capsys.readouterr().err
    assert len(speed) == measured


def test_an_estimate_offers_half_an_hour_only_where_that_is_not_refused(full, tmp_path, speed, monkeypatch, capsys):
    monkeypatch.setattr("probe.experiment.estimate.HALF_HOUR", 1e-3)
    small, full = full
    offered = {}
    for name, more in {
        "there": ["--samples", "2", "--out", full],
        "overwrite": ["--samples", "2", "--out", full, "--overwrite", "--threads", "1"],
        "no samples": ["--samples", "0", "--out", tmp_path / "new"],
        "new": ["--samples", "2", "--out", tmp_path / "new"],
    }.items():
        capsys.readouterr()
        assert main([*small, *map(str, more), "--estimate"]) == 0
        offered[name] = [line for line in capsys.readouterr().out.splitlines() if "--minutes" in line]
    assert offered["there"] == offered["no samples"] == []
    assert offered["new"][0].endswith(f"--out={tmp_path / 'new'} --minutes=30")
    (line,) = offered["overwrite"]
    assert line.endswith(f"--overwrite --threads=1 --out={full} --minutes=30")
    assert main([*shlex.split(line.split(": ", 1)[1])[1:], "--estimate"]) == 0


def test_other_options_are_refused_before_the_model_is_loaded(staged, speed, capsys):
    command = staged[0]
    measured = len(speed)
    refused = {
        ("4",): "samples (5 there, 4 now)",
        ("0", "--minutes", "1"): "--minutes 1 with --samples 0",
        ("5", "--minutes", "1", "--refine", "3"): "--refine 3 with --minutes 1",
        ("5", "--lengths", "160,3000"): "--lengths up to 3000: the run in ",
        ("5", "--lengths", "160,200"): "--lengths up to 200: the run in ",
    }
    for (samples, *more), text in refused.items():
        capsys.readouterr()
        assert main([*(samples if word == "5" else word for word in command), *more]) == 2
        assert text in capsys.readouterr().err
    assert len(speed) == measured
    assert main([*command, "--overwrite", "--lengths", "160,200", "--minutes", "1", "--estimate"]) == 0


def test_stages_are_measured_reported_and_gone_on_with(staged, tmp_path, monkeypatch, capsys):
    command, begun, said = staged
    assert "up to 320 tokens" in said  # 2 M, of which one pass takes less than an eighth of 18 s
    assert "the same command continues" in said
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    command = [*command[:-1], str(out)]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["level"]["looks"] == [5]
    assert attributes(out)["longest"] == 320
    first = rows(out)
    capsys.readouterr()
    assert main([*command, "--length", "3000"]) == 0  # a run in stages stays one, without --minutes too
    assert "measures up to 320 tokens, as the run in" in capsys.readouterr().err
    assert rows(out)[: len(first) - 1] == first[: len(first) - 1]
    assert attributes(out)["longest"] == 320
    assert open_run(out).hidden.data_vars  # nothing else was left: hidden states are captured
    assert status_of(out).state == "finished"
    capsys.readouterr()
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "finished already" in printed.err
    assert f"report: {out / 'report.html'}" in printed.out
    with monkeypatch.context() as patch:
        patch.setattr("probe.commands.probe.run.write_report", Mock(side_effect=KeyboardInterrupt))
        assert main([*command, "--rule", "paper"]) == 1
    assert not (out / "summary.json").exists()  # of a report that is not finished nothing stays
    assert main([*command, "--rule", "paper"]) == 0
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["onset_by"] == "paper"
    capsys.readouterr()
    journal = rows(out)
    for methods in ("origin,rerope,mesa", "origin"):  # its hidden states are of two
        for more in ([], ["--estimate"]):
            assert main([*(methods if word == "origin,rerope" else word for word in command), *more]) == 2
            error = capsys.readouterr().err
            assert "method_configs differs" in error
            assert "continues" not in error
    assert rows(out) == journal


def test_a_run_without_states_goes_on_with_fewer_methods(staged, tmp_path, speed, monkeypatch):
    monkeypatch.setattr("probe.commands.probe.run._Run.captured", lambda self, tokens: None)
    command, out = [*staged[0][:-1], str(tmp_path / "run")], tmp_path / "run"
    assert main([*command, "--minutes", "0.3"]) == 0
    assert main(["origin" if word == "origin,rerope" else word for word in command]) == 0
    assert [row["method"] for row in json.loads((out / "summary.json").read_text())["methods"]] == ["origin"]


def test_a_report_of_a_run_that_ended_before_its_first_store_says_how_to_go_on(staged, tmp_path, capsys):
    shutil.copy(staged[1] / "measured.jsonl", tmp_path)
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 2
    assert "no store yet; the same `mesa-lens probe` continues" in capsys.readouterr().err
    (line,) = status_of(tmp_path).resume.values()
    assert line.startswith("mesa-lens probe --model=")
    assert "--methods=origin,rerope" in line


def test_hidden_states_that_a_killed_run_captured_come_into_the_report(model, tmp_path, speed, monkeypatch):
    out = tmp_path / "run"
    command = ["probe", "--model", model, "--methods", "origin", "--samples", "3", "--minutes", "1", "--out", str(out)]
    finish = store.finish

    def killed(path):
        if (partial_path(path) / "resid_post").exists():
            raise KeyboardInterrupt
        finish(path)

    with monkeypatch.context() as patch:
        patch.setattr("probe.store.store.finish", killed)
        assert main(command) == 1
    assert not open_run(out).hidden.data_vars
    monkeypatch.setattr("probe.commands.probe.plan.HiddenStates.record", None)  # nothing is captured again
    assert main(command) == 0
    assert open_run(out).hidden.data_vars
    assert status_of(out).state == "finished"


def test_where_not_even_the_first_passes_fit_nothing_is_begun(model, tmp_path, speed, capsys):
    out = tmp_path / "run"
    assert main(["probe", "--model", model, "--minutes", "0.01", "--out", str(out)]) == 2
    assert "do not fit 0.01 minutes; take --minutes 1" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "cheap", "is_fitted"),
    [([], 0, True), (["--texts", "0", "--samples", "2", "--refine", "0"], 0, False), ([], None, False)],
)
def test_without_numbers_a_run_takes_half_an_hour_at_most(model, tmp_path, monkeypatch, speed, more, cheap, is_fitted):
    """The speed is measured unless numbers are stated, or the run is cheap; nothing is measured here."""
    planned = []
    if cheap is not None:
        monkeypatch.setattr("probe.commands.probe.run.CHEAP_RUN", cheap)

    def run_and_report(plan, *_, **__):
        planned.append(plan)
        return CommandResult({}, "", 0, "")

    monkeypatch.setattr("probe.commands.probe.run.run_and_report", run_and_report)
    speed.clear()
    assert main(["probe", "--model", model, "--methods", "origin", *more, "--out", str(tmp_path / "run")]) == 0
    assert bool(speed) == is_fitted
    assert [plan.longest for plan in planned] == [None]  # all of it takes less


def test_a_plan_that_is_only_tried_says_nothing(capsys):
    with noted() as notes:
        say("some layers are stored")
        say_once("M is taken from the config")
    assert notes == ["some layers are stored", "M is taken from the config"]
    assert capsys.readouterr().err == ""
    for _ in range(2):
        say_once("M is taken from the config")
    assert capsys.readouterr().err == "M is taken from the config\n"
