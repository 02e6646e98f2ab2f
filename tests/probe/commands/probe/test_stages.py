"""What a run in stages measures next, and how often it decides wrongly, on drawn losses of the shipped model."""

from dataclasses import replace

import numpy as np
import pytest

from mesa.methods import make
from probe.commands.probe.stages import Stages, candidates, in_order
from probe.eval_tasks.base import EvalKey
from probe.statistics import ONE_LOOK, Confidence, confidence_of, looks_of, student
from probe.thresholds.failure import decided, measured_failure
from research.sequential.run import TAILS, Simulated, at_threshold, on_curves


@pytest.fixture(scope="module")
def simulated():
    return Simulated()


def test_false_decisions_of_a_cell_are_at_most_5_percent():
    rng = np.random.default_rng(1)
    for row in at_threshold(1000, rng):
        assert row["false"] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000), row
    assert all(row["any false"] < 0.05 for row in on_curves(500, rng))


def test_one_look_in_place_of_several_would_decide_wrongly_more_often():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((20, 4000)) + 0.5
    several, one = (
        sum(decided(values[:look], confidence) != 0 for look in looks_of(20)) > 0
        for confidence in (confidence_of({"looks": looks_of(20)}), Confidence(0.95, 3))
    )
    assert several.mean() < 0.06 < 0.08 < one.mean()


def test_intervals_at_a_look_are_students_at_a_part_of_4_percent():
    values = [0.1, 0.4, 0.2, 0.7]
    confidence = confidence_of({"looks": [3, 6, 20]})
    assert confidence.student(values) == student(values, 1 - 0.04 / 3)
    assert confidence.student(values[:2]) == (None, None)
    assert confidence_of({}) == ONE_LOOK
    assert ONE_LOOK.student(values) == student(values)


def test_the_first_texts_lie_far_apart():
    assert in_order(20)[:4] == [0, 16, 8, 4]
    assert sorted(in_order(11)) == list(range(11))


def test_stated_lengths_are_the_only_ones():
    assert candidates((128, 256, 700), 256, is_stated=True) == [256, 700]
    assert candidates((64, 300), 256, is_stated=False) == [256, 272, 288, 300]


def measure(stages, rows, simulated, noise, tasks):
    for task in tasks:
        name, method, length = task.key
        if name == "nll-position":
            scores = [{"length": end, "sample": 0, "metric": "nll", "value": 2.0 + (end > 600)} for end in (256, 640)]
        elif name == "nll":
            values = [simulated._at(simulated.loss, method, length) + noise[text] for text in task.inputs]
            scores = [
                {"length": length, "sample": text, "metric": "nll", "value": value}
                for text, value in zip(task.inputs, values, strict=True)
            ]
        else:
            is_hit = simulated._at(simulated.passkeys, method, length) > 0.5
            scores = [
                {"length": length, "sample": prompt, "metric": "accuracy", "value": float(is_hit)}
                for prompt in task.inputs
            ]
        rows.setdefault(task.key, {"peak_mib": None, "scores": []})["scores"] += scores


def test_an_interrupted_run_measures_the_same_as_one_that_was_not(simulated):
    noise = np.random.default_rng(3).normal(0, 0.1, 20)
    counts = {}
    for cut in (None, 1):  # all tasks of a step, or one at a time, with stages begun again each time
        rows = {}
        stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20)
        while tasks := stages.tasks(rows):
            measure(stages, rows, simulated, noise, tasks[:cut])
            stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20) if cut else stages
        counts[cut] = rows
    assert {key: len(row["scores"]) for key, row in counts[None].items()} == {
        key: len(row["scores"]) for key, row in counts[1].items()
    }


def test_brackets_hold_what_the_means_say_at_every_stage(simulated):
    noise = np.random.default_rng(3).normal(0, 0.1, 20)
    rows, stages = {}, Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    truth = {method: simulated.failure(method) for method in simulated.methods}
    widths = []
    while tasks := stages.tasks(rows):
        measure(stages, rows, simulated, noise, tasks)
        if not stages.is_telling(rows):
            continue
        for failure in measured_failure(stages.scores(rows), 256).failures:
            expected = truth[failure.method]
            if failure.high is not None:
                assert expected is not None
                assert failure.after < expected <= failure.high
            elif expected is not None and failure.longest >= expected:
                assert failure.after is not None  # it is not said that it does not fail
                assert failure.after < expected
            if failure.method == "origin" and failure.high:
                widths.append(failure.high - failure.after)
    assert widths[-1] <= widths[0]
    assert widths[-1] <= 96


def test_methods_that_do_the_same_at_a_length_are_measured_once(simulated, tmp_path):
    methods = {**simulated.evaluation.methods, "mesa:heads=1:0": make("mesa", 256, heads="1:0")}
    evaluation = replace(simulated.evaluation, methods=methods)

    def begun():
        stages = Stages(evaluation, "origin", simulated.lengths, 20)
        journal = stages.open_journal(tmp_path)
        stages.share(journal)
        return stages, journal

    stages, journal = begun()
    measured = set()
    while tasks := stages.tasks(journal.rows):
        task, new = tasks[0], {}
        simulate = task.key if task.key[1] in simulated.methods else (task.key[0], "mesa", task.key[2])
        measure(stages, new, simulated, np.zeros(20), [replace(task, key=simulate)])
        if task.key[0] == "nll":
            measured.add(task.key)
        stages.record(
            journal, task, {**new[simulate], "scores": [{**each, "seconds": 0.0} for each in new[simulate]["scores"]]}
        )
        if len(measured) in (3, 9):  # ended and begun again
            stages, journal = begun()
    at_trained = {name for _, name, length in measured if length == 256}
    assert at_trained == {"origin", "rerope", "mesa:heads=1:0"}  # dynamic-ntk and mesa change nothing up to M
    for name in methods:
        samples = [score["sample"] for score in journal.rows["nll", name, 256]["scores"]]
        assert len(samples) == len({*samples}) >= 3
    assert journal.rows["nll", "mesa", 256]["config"]["name"] == "mesa"
    assert {name for _, name, length in measured if length > 256} == {*methods}
    left, journal = begun()
    assert left.tasks(journal.rows) == []


def test_a_prompt_too_long_for_memory_names_options_that_the_run_takes(simulated, tmp_path):
    stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    (task, *_), journal = stages.tasks({}), stages.open_journal(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"not fit in memory at 2048 tokens; give --overwrite and shorter --lengths$"
    ):
        stages.record(journal, task, None)


def test_cells_of_a_run_that_ended_between_two_rows_are_shared(simulated, tmp_path):
    stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    journal, key = stages.open_journal(tmp_path), EvalKey("nll", "origin", 256)
    scores = [{"length": 256, "sample": text, "metric": "nll", "value": 2.0, "seconds": 0.0} for text in (0, 16, 8)]
    journal.add(key, {"peak_mib": None, "scores": scores})
    stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    journal = stages.open_journal(tmp_path)
    rows = journal.rows
    assert ("nll", "mesa", 256) not in rows  # whoever only reads writes nothing
    stages.share(journal)
    assert rows["nll", "mesa", 256]["scores"] == rows["nll", "dynamic-ntk", 256]["scores"] == scores
    assert ("nll", "rerope", 256) not in rows


def test_loss_by_position_is_high_from_where_its_first_high_bucket_begins(simulated):
    rows, stages = {}, Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    measure(stages, rows, simulated, np.zeros(20), stages.tasks(rows))
    assert "from about position 256 on it is mostly more than" in stages.position_text(rows)
    for row in rows.values():
        row["scores"] = [{**score, "value": 2.0} for score in row["scores"]]
    assert "it never stays more than" in stages.position_text(rows)


def test_passkeys_count_once_every_method_has_them(simulated):
    rows, stages = {}, Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    stages.stage = "the methods at the longest length"
    while tasks := stages.tasks(rows):
        measure(stages, rows, simulated, np.zeros(20), tasks)
    stages.stage = "passkeys"
    while not {key.method for key in rows if key.task == "passkey" and key.length > 256} >= {*simulated.methods}:
        assert "passkey" not in stages.scores(rows)
        measure(stages, rows, simulated, np.zeros(20), stages.tasks(rows)[:1])
    while tasks := stages.tasks(rows):
        measure(stages, rows, simulated, np.zeros(20), tasks)
    assert stages.scores(rows)["passkey"].sel(length=2048).notnull().any("sample").all()


def test_passkeys_missed_within_m_are_reported_and_not_measured_beyond(simulated):
    rows, stages = {}, Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    while tasks := stages.tasks(rows):
        measure(stages, rows, simulated, np.zeros(20), tasks)
        for row in (row for key, row in rows.items() if key[0] == "passkey"):
            row["scores"] = [{**score, "value": 0.0} for score in row["scores"]]
    assert {key[1:] for key in rows if key[0] == "passkey"} == {("origin", 256)}
    scores = stages.scores(rows)
    assert 0.0 in scores["passkey"].sel({"method": "origin", "length": 256})
    assert measured_failure(scores, 256).evaluated_by == ("tail NLL",)


def test_unmeasured_methods_have_no_failure_and_few_texts_no_interval(simulated):
    rows = {}
    stages = Stages(simulated.evaluation, "origin", simulated.lengths, 20)
    while not stages.is_telling(rows):
        measure(stages, rows, simulated, np.zeros(20), stages.tasks(rows))
    measured = measured_failure(stages.scores(rows), 256)
    assert [failure.method for failure in measured.failures] == ["origin"]
    assert measured.failures[0].high is None


@pytest.mark.slow
@pytest.mark.parametrize("tails", TAILS)
def test_whole_runs_seldom_leave_out_the_truth(simulated, tails):
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(10):
        brackets, _ = simulated.run(tails, rng)
        after, high = brackets["origin"]
        wrong += not (after is not None and after < simulated.failure("origin") <= (high or 4096))
    assert wrong <= 3
