"""The published counts of research/false_alarms are those that its studies give."""

import pandas as pd
import pytest

from research.false_alarms.run import NOISE, RESULTS, STUDIES, noise


@pytest.mark.slow
@pytest.mark.parametrize("study", ["changes", "stated"])
def test_the_published_counts_are_those_of_the_study(study):
    pd.testing.assert_frame_equal(pd.read_csv(RESULTS / f"{study}.csv"), pd.DataFrame(STUDIES[study]()))


def test_some_changes_are_called_and_some_are_missed():
    counts = pd.read_csv(RESULTS / "changes.csv")
    assert (counts["detected"].min(), counts["detected"].max()) == (0, counts["layers"].max())


def test_neither_noise_nor_states_that_wander_are_called(monkeypatch):
    monkeypatch.setattr("research.false_alarms.run.LAYERS", 20)
    assert {row["noise"]: row["detected"] for row in noise()} == dict.fromkeys(NOISE, 0)


def test_every_study_has_published_rows():
    published = {path.stem for path in RESULTS.glob("*.csv")}
    assert published == {*STUDIES, "detectors", "detectors-shipped"}  # detectors.py
