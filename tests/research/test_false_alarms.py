"""The published counts of research/false_alarms are those that its studies give."""

import pandas as pd
import pytest

from research.false_alarms.run import RESULTS, STUDIES, noise


@pytest.mark.parametrize("study", ["changes", "stated"])
def test_the_published_counts_are_those_of_the_study(study):
    counts, column = pd.read_csv(RESULTS / f"{study}.csv"), {"changes": "called", "stated": "too_large"}[study]
    pd.testing.assert_frame_equal(counts, pd.DataFrame(STUDIES[study]()), atol=2)
    assert (counts[column].nunique() > 1) == (study == "changes")


def test_states_that_wander_are_called_and_white_noise_is_not(monkeypatch):
    monkeypatch.setattr("research.false_alarms.run.LAYERS", 20)
    called = {row["noise"]: row["called"] for row in noise()}
    assert called["white"] == 0 < called["random walk"]


def test_every_study_has_published_rows():
    assert {path.stem for path in RESULTS.glob("*.csv")} == set(STUDIES)
