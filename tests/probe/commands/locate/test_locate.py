"""`mesa-lens locate` from the command line to its files: resumed, on another runner, and what it refuses."""

import json

import headed
import pytest
import tiny
from commands import main
from elsewhere import Elsewhere
from headed import HEAD

from probe.capture.memory import placed_bytes
from probe.commands.locate.interventions import CONTROLS
from probe.commands.locate.run import Locate, LocateRequest, estimate, locate, plan, summarize
from probe.experiment.estimate import passes_of, work_of
from probe.experiment.pool import LOCAL
from probe.files import read_result
from probe.run_folder import RUN
from probe.status import status_of


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a planted model whose window is 160 tokens."""
    return headed.folder(tmp_path_factory.mktemp("planted") / "model", [HEAD])


def planned(folder, *kinds, **options):
    chosen = {"kinds": kinds} if kinds else {}
    return plan(LocateRequest(**{"model": str(folder), "lengths": (320,), "samples": 4} | chosen | options))


def located(folder, out, *options):
    return main(["locate", "--model", str(folder), "--out", str(out), "--lengths", "320", "--samples", "4", *options])


def test_the_command_finds_the_planted_head(checkpoint, tmp_path, capsys):
    """Interrupted, resumed, and called again."""
    kinds = ("--try", "patch,clamp,smallest")
    assert located(checkpoint, tmp_path, *kinds, "--minutes", "0.0001") == 0
    assert "tasks are left; the same command continues" in capsys.readouterr().err
    assert located(checkpoint, tmp_path, *kinds, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    written = read_result(tmp_path / "locate" / "summary.json")
    assert summary | {RUN: written[RUN]} == written
    assert summary["tasks_left"] == 0
    assert sum(summary["text_source"]["documents"].values()) == 8
    patches = [row for row in summary["effects"] if (row["kind"], row["way"]) == ("patch", "only")]
    alone = {(row["layer"], row["head"]): row["share"] for row in patches}
    assert max(alone, key=alone.get) in (HEAD, (1, None))
    assert alone[HEAD] == pytest.approx(1, abs=1e-2)
    assert all(abs(share) < 1e-2 for place, share in alone.items() if place not in (HEAD, (1, None)))
    assert (summary["smallest"][0]["heads"], summary["smallest"][0]["enough"]) == ([list(HEAD)], 1)
    assert summary["smallest"][0]["rest"][0] == pytest.approx(0, abs=0.05)  # the planted head is necessary
    rows = (tmp_path / "locate" / "journal.jsonl").read_text()
    assert located(checkpoint, tmp_path, *kinds) == 0
    assert (tmp_path / "locate" / "journal.jsonl").read_text() == rows


@pytest.mark.slow
def test_other_runners_write_the_same_bytes(checkpoint, tmp_path):
    locate_plan = planned(checkpoint, "patch", "clamp", "smallest", layers="1", heads="1")
    for name, runner in {"local": LOCAL, "other": Elsewhere(seed=1)}.items():
        assert locate(locate_plan, tmp_path / name, runner=runner)[1] == []
    one, other = ((tmp_path / name / "locate" / "journal.jsonl").read_bytes() for name in ("local", "other"))
    assert one == other
    for kind in ("weave", "dims", "chosen"):  # weave: a patch, as in earlier journals
        assert f'"{kind}"'.encode() in one


def test_a_run_resumes_with_what_another_runner_lost(checkpoint, tmp_path):
    locate_plan = planned(checkpoint, "patch", heads="none")
    lost = ("nll", 320, "rerope", 1, "weave", "only", 0, -1)
    journal, failed = locate(locate_plan, tmp_path, runner=Elsewhere(seed=2, lost=(lost,)))
    assert [task.key for task in failed] == [lost]
    assert [intervention.layer for intervention in failed[0].inputs] == [0, 1, 2, 0, 1, 2]  # alone, and left out
    assert (*lost[:3], 2, *lost[4:]) in journal.rows
    assert summarize(locate_plan, journal).tasks_left == 6
    assert status_of(tmp_path).parts[0].left == 6
    journal, failed = locate(locate_plan, tmp_path)
    assert failed == []
    assert status_of(tmp_path).parts[0].left == 0
    assert summarize(locate_plan, journal).tasks_left == 0
    of_one_layer = planned(checkpoint, "patch", heads="none", layers="2", ways=("only",))
    assert summarize(of_one_layer, journal).layers == [0, 1, 2]  # of all rows there, which page and charts show


def test_a_model_without_an_excess_loss_has_nothing_to_recover(tmp_path, capsys):
    """Its run is finished, and says so wherever one looks: there is nothing left that could change it."""
    run, model, reason = tmp_path / "run", headed.folder(tmp_path / "model", []), "no method is significantly better"
    assert located(model, run) == 1
    assert reason in capsys.readouterr().err
    status = status_of(run)
    assert (status.state, status.parts[0].left, status.lacking) == ("finished", 0, "")
    assert f"locate ended without a result: {reason}" in status.text()
    assert status.as_dict()["parts"][0]["refusal"].startswith(reason)
    assert "nothing is located" in (run / "locate" / "report.html").read_text()
    (run / "locate" / "summary.json").write_text("{}")
    for again in ((), ("--overwrite",)):
        assert located(model, run, *again) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mesa-lens: ")]
        assert reason in line
        assert read_result(run / "locate" / "summary.json")["refusal"].startswith(reason)


@pytest.fixture(scope="module")
def weightless(tmp_path_factory):
    """A folder of the same sizes whose weights cannot be read."""
    folder = tiny.folder(tmp_path_factory.mktemp("weightless") / "model")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (160,)}, "--lengths 160 is not beyond the trained length 160"),
        ({"methods": "origin"}, "names nothing to compare with Origin"),
        ({"method_settings": ("rerope.layers=(0,)",)}, "gives rerope its layers or heads, which are varied here"),
        ({"layers": "0-3"}, "layer 0-3 is out of range"),
        ({"heads": "L0H1,L9H0"}, "--heads L9H0 is not there: the model has 3 layers of 4 heads"),
        ({"kinds": ("smallest",), "samples": 1}, "--samples 1: the smallest set"),
        ({"measures": ("passkey",), "samples": 1}, "--samples 1: one answer has no interval, give at least 2"),
        ({"kinds": ("smallest",), "heads": "none"}, "--try smallest has no heads to choose from"),
        ({"dims": 17}, "--dims 17 leaves too few of the 32 dims to draw as many controls from; give at most 16"),
    ],
)
def test_bad_requests_are_refused_before_any_weights(weightless, options, message):
    with pytest.raises(ValueError, match=message):
        planned(weightless, **options)


def test_what_does_not_fit_names_the_kinds_that_need_more_than_patches(weightless, monkeypatch):
    patching, *more = (Locate(planned(weightless, *kinds)) for kinds in (["patch"], ["clamp"], ["gradients"]))
    enough = max(task.memory_bytes for task in patching.all_tasks({}))
    enough += placed_bytes(patching.plan.config, patching.plan.request.load)
    monkeypatch.setattr("probe.capture.memory.free_bytes", lambda device: enough)
    patching.check_memory()
    for experiment in more:
        with pytest.raises(MemoryError, match="shorten --lengths or leave clamp and gradients out of --try"):
            experiment.check_memory()


def test_the_estimate_counts_passes_from_the_changed_layer_on(weightless):
    located = Locate(planned(weightless, "patch"))
    passes = 2 + 2 * (3 + 2 + 1) / 3 * 5  # both runs; alone and without, each layer and its 4 heads from there on
    assert sum(passes_of(work_of(located, located.all_tasks({}))).values()) == pytest.approx(4 * passes, rel=1e-3)


def test_the_estimate_counts_the_clamps_that_there_may_be_and_says_what_it_leaves_out(weightless, tmp_path):
    plan = planned(weightless, "clamp", "smallest")
    located = Locate(plan)
    sets = 2 * 2 * (1 + CONTROLS)  # rules, ways; in all 3 layers, in each from there on, and inside M
    passes = 4 * (2 + 1 + sets * (1 + (3 + 2 + 1) / 3 + 1)) + 2  # both runs and Origin's inside; the dims once
    tried = [task for task in located.all_tasks({}) if task.kind != "smallest"]
    assert sum(passes_of(work_of(located, tried)).values()) == pytest.approx(passes, rel=1e-3)
    text, _ = estimate(plan, tmp_path, overwrite=False)
    assert text.endswith("not counted: the later rounds of the search for the smallest set")
