"""An evaluation gives the same whoever runs its cells; what no worker can finish is told, left out, and tried again."""

import json
from dataclasses import replace

import pytest
from commands import main
from elsewhere import Elsewhere, same_evaluation

from probe.commands.eval import run as command
from probe.commands.eval.page import EVALUATED
from probe.commands.eval.run import run_evaluation
from probe.evaluation import EvalWorker, plan_evaluation


@pytest.fixture(scope="module")
def eval_request(eval_request):
    return replace(eval_request, tasks=("passkey", "nll", "nll-position"), lengths=(96, 150))


@pytest.fixture(scope="module")
def local(eval_request, tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    run_evaluation(plan_evaluation(eval_request), out)
    return out


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_in_which_cells_end_changes_nothing(eval_request, local, tmp_path, seed):
    run_evaluation(plan_evaluation(eval_request), tmp_path, runner=Elsewhere(seed=seed))
    same_evaluation(local, tmp_path)


def test_what_no_worker_can_finish_is_left_out_and_run_by_the_same_command(eval_request, local, tmp_path, capsys):
    summary = run_evaluation(plan_evaluation(eval_request), tmp_path, runner=Elsewhere(lost=(("nll", "mesa", 96),)))
    assert summary.failed == [("nll", "mesa", 96)]
    assert (summary.tasks_left, summary.out_of_memory) == (0, [])
    assert "failed: nll, mesa, 96: its process died" in capsys.readouterr().err
    measured = {(cell.task, cell.method, cell.length) for cell in summary.cells}
    assert {("nll", "mesa", 150), ("passkey", "mesa", 96)} <= measured
    whole = EVALUATED.read(local).cells
    assert sorted(map(str, run_evaluation(plan_evaluation(eval_request), tmp_path).cells)) == sorted(map(str, whole))


def test_a_command_with_failed_cells_prints_what_there_is_and_ends_in_1(eval_request, tmp_path, capsys, monkeypatch):
    real, runner = command.run_evaluation, Elsewhere(lost=(("nll", "mesa", 96),))
    monkeypatch.setattr(command, "run_evaluation", lambda *args, **options: real(*args, **options | {"runner": runner}))
    words = f"--model {eval_request.model} --text {eval_request.text} --task nll --methods origin,mesa --lengths 96"
    assert main(["eval", *words.split(), "--samples", "1", "--out", str(tmp_path / "out"), "--json"]) == 1
    printed = capsys.readouterr()
    assert [cell["method"] for cell in json.loads(printed.out)["cells"]] == ["origin"]
    assert "mesa-lens: 1 cells failed; the same command continues from" in printed.err


def test_a_worker_with_another_model_is_refused_naming_what_differs(eval_request):
    source = EvalWorker.of(plan_evaluation(eval_request)).source
    source.check()
    for what in ("weights", "tokenizer", "versions"):
        changed = replace(source, fingerprints={**source.fingerprints, what: "another"})
        with pytest.raises(ValueError, match=f"a worker has other {what} of .* than this machine"):
            changed.check()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 2", "--workers 2 is for --runner ray"),
        ("--gpus-per-worker 1", "--gpus-per-worker 1.0 is for --runner ray"),
        ("--runner spark", "--runner 'spark' is not a runner; take local, ray, or ray:ADDRESS"),
        ("--runner ray:", "--runner 'ray:' is not a runner"),
        ("--runner ray --gpus-per-worker 1", "--gpus-per-worker 1 with --device cpu; give --device cuda"),
        ("--runner ray --device cuda:1", "--device cuda:1 with --runner ray: a worker sees its own GPUs alone"),
    ],
)
def test_runners_that_cannot_be_are_refused(words, message, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ray")
    assert main(["eval", *words.split(), "--estimate"]) == 2
    assert message in capsys.readouterr().err


def test_without_ray_its_extra_is_named(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("eval", "probe", "locate", "anatomy"):
        assert main([name, "--runner", "ray"]) == 2
        assert capsys.readouterr().err.endswith("Ray, which is not installed; pip install 'ray<3,>=2.60'\n")
