"""An evaluation is checked before it runs, is the same for every method, and goes on where it was interrupted."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from elsewhere import table

from mesa.models import tokenizer_of
from probe.commands.eval.run import run_evaluation
from probe.eval_tasks import tasks
from probe.eval_tasks.base import EvalKey, EvalTask, Metric, Score
from probe.eval_tasks.tasks import RETRIEVAL, Likelihood
from probe.evaluation import TASKS, EvalRequest, Evaluation, check_scores, plan_evaluation
from probe.experiment import run as source
from probe.experiment.estimate import work_of, work_text
from probe.options import parse_lengths


@pytest.fixture(scope="module")
def tokenizer(eval_request):
    return tokenizer_of(eval_request.model)


@pytest.fixture(scope="module")
def setting(eval_request):
    return plan_evaluation(eval_request).setting


def rows(out):
    return table(out / "samples.csv")


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("256,512", (256, 512)),
        (" 512, 256,512", (256, 512)),
        ("1k", (1024,)),
        ("1K:4k:1k,100", (100, 1024, 2048, 3072, 4096)),
        ("10:25:10", (10, 20)),
    ],
)
def test_lengths_are_read(text, lengths):
    assert parse_lengths(text) == lengths


def test_lengths_that_are_passed_twice_are_one_in_order(eval_request):
    twice = replace(eval_request, tasks=("nll-position",), lengths=(200, 96, 200))
    assert plan_evaluation(twice).setting.lengths == (96, 200)


def test_buckets_of_other_lengths_are_never_mixed_and_finer_ones_are_kept(eval_request, tmp_path):
    """A second command names fewer lengths and another method; then the first one is called again."""

    def by_position(folder, methods, lengths):
        request = replace(eval_request, tasks=("nll-position",), methods=methods, samples=2, lengths=lengths)
        evaluation = Evaluation(plan_evaluation(request))
        left = {task.key[1] for task in evaluation.tasks(evaluation.open_journal(folder).rows)}
        run_evaluation(evaluation.plan, folder)
        scores = {(row["method"], row["length"], row["sample"]): float(row["score"]) for row in rows(folder)}
        return left, scores

    fine, coarse = (96, 150, 200), (96, 200)
    measured, first = by_position(tmp_path / "one", "origin,rerope", fine)
    assert measured == {"origin", "rerope"}
    measured, second = by_position(tmp_path / "one", "origin,mesa", coarse)
    assert measured == {"mesa"}
    expected = {}
    for methods in ("origin,mesa", "rerope"):
        expected |= by_position(tmp_path / methods, methods, coarse)[1]
    assert second == pytest.approx(expected, abs=1e-6)
    measured, third = by_position(tmp_path / "one", "origin,rerope", fine)
    assert (measured, third) == (set(), first)  # mesa's buckets are too wide


def test_an_estimate_counts_the_runs_that_the_text_holds(eval_request):
    planned = plan_evaluation(
        replace(eval_request, tasks=("nll",), methods="origin", samples=10_000, lengths=(96, 200))
    )
    tasks = {task.length: task for task in Evaluation(planned).tasks({})}
    held = len(TASKS["nll"].prepare(tokenizer_of(eval_request.model), 96, planned.setting, 10_000))
    assert held < 10_000
    assert {length: task.weight for length, task in tasks.items()} == {96: 96 * held, 200: 200 * held}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "--batch 0 is below 1"),
        ({"depth": 1.5}, r"--depth 1\.5 is above 1"),
        ({"lengths": (200, 50)}, "length=50 is below the task's fixed text of 66 tokens; ask for at least 66"),
        ({"tasks": ("lines",)}, "length=96 is below the task's fixed text of 1.. tokens; ask for at least"),
        ({"tasks": ("nll",), "lengths": (50, 90)}, "nll: length=50 is below 80 tokens; ask for at least 80"),
        ({"tasks": ("nll-position",), "lengths": (1, 90)}, "nll-position: length=1 is below 8 tokens"),
        ({"tasks": ("nll",), "lengths": (10**6,)}, "the text has .* tokens, 1000000 are needed"),
        ({"load": {"dtype": "fp16"}}, "unknown dtype 'fp16'; known: float32, float16, bfloat16, float64"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(eval_request, changes, message):
    with pytest.raises(ValueError, match=message):
        plan_evaluation(replace(eval_request, **changes))


@pytest.mark.parametrize("task", RETRIEVAL, ids=lambda task: task.name)
@pytest.mark.parametrize("length", [160, 333])
def test_prompts_are_seeded_exactly_long_and_hold_their_answer(tokenizer, setting, task, length):
    prompts = task.prepare(tokenizer, length, setting, 5)
    assert [len(prompt.ids) for prompt in prompts] == [length] * 5
    assert prompts == task.prepare(tokenizer, length, setting, 5)
    assert len({prompt.answer for prompt in prompts}) == 5
    others = task.prepare(tokenizer, length, replace(setting, seed=1), 5)
    assert not {prompt.ids for prompt in prompts} & {prompt.ids for prompt in others}
    for prompt in prompts:
        assert prompt.answer in tokenizer.decode(prompt.ids[prompt.key_position :])
        assert prompt.answer not in tokenizer.decode(prompt.ids[: prompt.key_position])


def test_depth_places_the_key(tokenizer, setting):
    start, uniform, end = (
        [prompt.key_position for prompt in TASKS["passkey"].prepare(tokenizer, 400, replace(setting, depth=depth), 8)]
        for depth in (0.0, None, 1.0)
    )
    assert len({*start}) == 1
    assert len({*uniform}) > 4
    assert max(start) < 60  # after the header
    assert min(end) > 340  # before the question


def test_every_method_is_given_the_same_prompts(eval_request, tmp_path, monkeypatch):
    given = {}

    def watched(self, loaded, length, prepared, setting):
        given.setdefault((self.name, length), []).append([tuple(prompt.ids) for prompt in prepared])
        return original(self, loaded, length, prepared, setting)

    original = tasks.RetrievalTask.measure
    monkeypatch.setattr(tasks.RetrievalTask, "measure", watched)
    run_evaluation(plan_evaluation(replace(eval_request, tasks=("passkey", "niah-noise"))), tmp_path / "out")
    assert len(given) == 4
    assert all(first == second for first, second in given.values())


@pytest.fixture(scope="module")
def finished(eval_request, tmp_path_factory):
    """A folder with the whole evaluation, for tests that change nothing in it."""
    out = tmp_path_factory.mktemp("finished")
    run_evaluation(plan_evaluation(eval_request), out)
    return out


def test_an_interrupted_run_goes_on_to_the_same_table(eval_request, finished, tmp_path, monkeypatch):
    calls, original = [], Likelihood.measure

    def interrupted(self, *arguments):
        calls.append(self.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(Likelihood, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(plan_evaluation(eval_request), tmp_path)
    assert len(rows(tmp_path)) == 12  # all of passkey, two cells of nll
    assert not (tmp_path / "summary.json").exists()
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text()[:-40])  # and its last line is cut
    run_evaluation(plan_evaluation(eval_request), tmp_path)
    assert len(calls) == 5
    assert rows(tmp_path) == rows(finished)
    assert (tmp_path / "summary.json").read_bytes() == (finished / "summary.json").read_bytes()


def test_a_finished_run_loads_no_model(eval_request, finished, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    assert run_evaluation(plan_evaluation(eval_request), finished).tasks_left == 0


def test_another_evaluation_in_the_folder_is_refused_naming_what_differs(eval_request, finished):
    for message, changes in {
        r"seed \(0 there, 1 now\)": {"seed": 1},
        r"samples \(2 there, 3 now\)": {"samples": 3},
        r"longest length \(200 there, 300 now\)": {"lengths": (96, 300)},
        r"dtype \(float32 there, bfloat16 now\)": {"load": {"dtype": "bfloat16"}},
        r"trained_length \(160 there, 150 now\)": {"trained_length": 150},
    }.items():
        with pytest.raises(FileExistsError, match=rf"another {message}; use --overwrite"):
            run_evaluation(plan_evaluation(replace(eval_request, **changes)), finished)
    for settings in ("mesa.width=7", "mesa.heads=0:1,3;2:0-2"):
        with pytest.raises(FileExistsError, match="holds mesa with other parameters"):
            run_evaluation(plan_evaluation(replace(eval_request, method_settings=(settings,))), finished)


def test_tasks_methods_and_shorter_lengths_can_be_added(eval_request, tmp_path):
    run_evaluation(plan_evaluation(replace(eval_request, tasks=("nll",), methods="origin", lengths=(200,))), tmp_path)
    before = rows(tmp_path)
    summary = run_evaluation(plan_evaluation(eval_request), tmp_path)
    assert rows(tmp_path)[: len(before)] == before
    cells = {(cell.task, cell.method, cell.length) for cell in summary.cells}
    assert cells == set(plan_evaluation(eval_request).cells)
    run_evaluation(plan_evaluation(replace(eval_request, methods="origin")), tmp_path)  # nothing is lost
    assert {row["method"] for row in rows(tmp_path)} == {"origin", "mesa"}


def test_overwriting_removes_what_an_evaluation_writes_and_nothing_else(eval_request, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    (out / "lines.png").touch()
    run_evaluation(plan_evaluation(replace(eval_request, seed=1, tasks=("nll",))), out, overwrite=True)
    assert {row["seed"] for row in rows(out)} == {"1"}
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "lines.png").exists()


def test_a_run_does_not_go_on_with_other_texts_or_weights(eval_request, tmp_path):
    folder, text, out = tmp_path / "model", tmp_path / "text.txt", tmp_path / "out"
    shutil.copytree(eval_request.model, folder)
    text.write_text(former := Path(eval_request.text).read_text())
    here = replace(eval_request, model=str(folder), text=str(text), tasks=("passkey",), methods="origin")
    run_evaluation(plan_evaluation(here), out)
    text.write_text(former.replace("says", "said"))
    with pytest.raises(FileExistsError, match=r"another documents \(the texts that prompts are drawn from\); use"):
        run_evaluation(plan_evaluation(here), out)
    text.write_text(former)
    run_evaluation(plan_evaluation(here), out)
    changed = tiny.model(seed=1, vocabulary=tokenizer_of(eval_request.model).vocab_size, trained=160)
    changed.save_pretrained(folder)
    with pytest.raises(FileExistsError, match=r"with other weights .*; use --overwrite or another --out"):
        run_evaluation(plan_evaluation(here), out)


@pytest.mark.slow
def test_batches_are_halved_where_memory_runs_out(tmp_path, monkeypatch):
    on_cpu, sizes = RuntimeError("DefaultCPUAllocator: can't allocate memory"), []
    eval_request = EvalRequest(tasks=("passkey",), methods="origin", lengths=(608,), samples=6, batch=8)
    run_evaluation(plan_evaluation(eval_request), tmp_path / "whole")
    original = tasks.retrieval_hits
    for name, error in {"gpu": torch.OutOfMemoryError("CUDA"), "cpu": on_cpu}.items():

        def small(model, tokenizer, prompts, error=error):
            sizes.append(len(prompts))
            if len(prompts) > 2:
                raise error
            return original(model, tokenizer, prompts)

        monkeypatch.setattr(tasks, "retrieval_hits", small)
        run_evaluation(plan_evaluation(eval_request), tmp_path / name)
        assert rows(tmp_path / name) == rows(tmp_path / "whole")
    assert sizes == [6, 3, *[1] * 6] * 2
    assert {float(row["score"]) for row in rows(tmp_path / "whole")} == {0, 1}


def test_cells_that_do_not_fit_are_left_out_and_named(eval_request, tmp_path, monkeypatch, capsys):
    tried, three = [], replace(eval_request, lengths=(96, 150, 200))

    def small(self, loaded, length, *rest):
        tried.append((self.name, length))
        if self.name == "nll" and length > 96:
            raise torch.OutOfMemoryError
        return original(self, loaded, length, *rest)

    original = Likelihood.measure
    monkeypatch.setattr(Likelihood, "measure", small)
    summary = run_evaluation(plan_evaluation(three), tmp_path)
    left_out = [("nll", method, length) for length in (150, 200) for method in ("origin", "mesa")]
    assert summary.out_of_memory == left_out
    assert tried == [("nll", 96)] * 2 + [("nll", 150)] * 2  # one at a time is tried once, longer ones not at all
    measured = {(cell.task, cell.length) for cell in summary.cells}
    assert measured == {("nll", 96), *(("passkey", length) for length in (96, 150, 200))}
    assert "left out: nll under mesa does not fit in memory at 200 tokens" in capsys.readouterr().err
    monkeypatch.setattr(Likelihood, "measure", original)
    assert run_evaluation(plan_evaluation(three), tmp_path).out_of_memory == []


def test_the_estimate_counts_tasks_tokens_and_bytes(eval_request, tokenizer):
    def text(request):
        return work_text(work := work_of(every := Evaluation(plan_evaluation(request)), every.tasks({})), work)

    said = text(replace(eval_request, tasks=("passkey", "nll-position")))
    assert f"6 tasks: 12 passes, {2 * 2 * (96 + 200 + 200):,} tokens, at most 200 in one" in said
    states = 200 * 4 * (2 * 3 * 2 * 8 + 12 * 32)  # tokens, bytes; keys and values of 2 heads, hidden states
    logits = 200 * len(tokenizer) * (4 + 2 * 4)
    assert f"weights: about {(states + logits) / 2**20:,.0f} MiB" in said
    latency = replace(eval_request, tasks=("latency",), methods="origin", samples=100)
    assert f"{4 * (96 + 200):,} tokens" in text(latency)


class Parity(EvalTask):
    """A task that says nothing of how many samples it has: they are drawn."""

    name, about, metrics = "parity", "whether a number is even", (Metric("accuracy", "share", binary=True),)

    def prepare(self, tokenizer, length, setting, samples):
        return range(samples)

    def measure(self, loaded, length, prepared, setting):
        yield from (Score(length, sample, "accuracy", 1.0) for sample in prepared)


@pytest.mark.parametrize("name", [*TASKS, "parity"])
def test_rows_with_fewer_samples_than_a_task_has_are_refused(eval_request, monkeypatch, name):
    monkeypatch.setitem(TASKS, "parity", Parity())
    metric = TASKS[name].metrics[0].name
    rows = {
        EvalKey(name, "origin", 96): {"peak_mib": 1.0, "scores": [asdict(Score(96, n, metric, 1.0)) for n in range(2)]}
    }
    planned = plan_evaluation(replace(eval_request, tasks=("nll",), samples=3, methods="origin", lengths=(96,)))
    journal = SimpleNamespace(path=Path("journal.jsonl"), rows=rows)
    if name in ("nll", "nll-position"):  # of texts there may be fewer
        check_scores(journal, planned)
    else:
        with pytest.raises(ValueError, match="holds 2 of 3 samples"):
            check_scores(journal, planned)
