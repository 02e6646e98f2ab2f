"""Bisection measures where a method begins to fail, and that method alone."""

from types import SimpleNamespace

import numpy as np
import pytest

from probe.evaluation.by_length import TASKS, scores
from probe.experiment.journal import Journal
from probe.plan import ProbeRequest, plan
from probe.stages import FailureByLength, further_lengths
from probe.thresholds.failure import measured_failure

M, LENGTHS, FAILS_FROM = 256, (128, 256, 384, 512, 768), {"origin": 450, "mesa": 10**9}


@pytest.fixture
def planned():
    setting = SimpleNamespace(lengths=LENGTHS, trained_length=M, seed=0)
    return SimpleNamespace(
        methods=dict.fromkeys(FAILS_FROM), setting=setting, config=SimpleNamespace(vocab_size=4096, model_type="llama")
    )


def fill(journal, cells):
    """Puts cells of a model in which each method fails from its length on."""
    for task, method, length in cells:
        failing = length >= FAILS_FROM[method]
        value = (2.5 + failing) if task == TASKS[0] else float(not failing)
        score = {"length": length, "metric": task, "value": value, "seconds": length}
        scores = [{**score, "sample": sample} for sample in range(4)]
        journal.add((task, method, length), {"config": {"name": method}, "peak_mib": 1.0, "scores": scores})


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "measured.jsonl", {})
    fill(journal, [(task, method, length) for task in TASKS for method in FAILS_FROM for length in LENGTHS])
    return journal


@pytest.fixture
def measured(planned, journal, monkeypatch):
    """The scores after so many rounds, and what was measured for them."""
    for module in ("stages", "evaluation.run"):
        monkeypatch.setattr(f"probe.{module}.eval_tasks", lambda plan, keys: list(keys))
    planned.cells = []

    def measure(rounds):
        experiment, keys = FailureByLength(planned, rounds), []
        while tasks := experiment.tasks(journal.rows):
            keys += tasks
            fill(journal, tasks)
        return scores(planned, journal.rows, further_lengths(planned, journal.rows, rounds)), keys

    return measure


def test_lengths_are_halved_for_the_method_that_fails(measured):
    refined, keys = measured(10)
    assert keys == [(task, "origin", length) for length in (448, 480, 464) for task in TASKS]  # then M/16 apart
    assert refined["length"].values.tolist() == [128, 256, 384, 448, 464, 480, 512, 768]
    assert np.isnan(refined["tail_nll"].sel({"method": "mesa", "length": [448, 464, 480]})).all()
    origin, mesa = measured_failure(refined, M).failures
    assert (str(origin), origin.before, str(mesa)) == ("(448, 464]", 448, "none up to 768")
    again, keys = measured(10)
    assert again.identical(refined)
    assert keys == []
    assert measured(1)[0]["length"].values.tolist() == [128, 256, 384, 448, 512, 768]
    assert measured(0)[0]["length"].values.tolist() == list(LENGTHS)


@pytest.mark.parametrize(
    ("options", "rounds"),
    [({}, 1), ({"lengths": (256, 8192)}, 0), ({"samples": 0}, 0), ({"refine": 3}, 3), ({"refine": 0}, 0)],
)
def test_one_further_length_is_measured_by_default_where_a_pass_is_cheap(options, rounds):
    assert plan(ProbeRequest(length=2048, **options)).refine == rounds
