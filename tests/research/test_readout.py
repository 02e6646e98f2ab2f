"""The readout study: which layer its rows are of, and that its picture shows the stored numbers."""

import csv

import pytest
from matplotlib.figure import Figure

from research.readout import figure


def test_rows_are_of_the_layer_with_the_largest_selectivity_at_m():
    by_layer = figure.rows("default-map", method="origin", length=figure.M)
    for name in ("previous-1", "previous-2", "open-line"):
        scores = {
            row["layer"]: float(row["inside"]) - float(row["control"]) for row in by_layer if row["probe"] == name
        }
        assert {row["layer"] for row in figure.rows("default", probe=name)} == {max(scores, key=scores.get)}


def test_moved_and_lost_are_differences_of_the_scores():
    for name in ("default", "default-prose"):
        for row in figure.rows(name):
            inside, transfer, refit = (float(row[score]) for score in ("inside", "transfer", "refit"))
            assert float(row["moved"]) == pytest.approx(refit - transfer, abs=2e-4)
            assert float(row["lost"]) == pytest.approx(inside - refit, abs=2e-4)
            assert row["is_read"] == "True" or "True" not in (row["is_moved"], row["is_lost"], row["is_returned"])


def test_the_picture_shows_what_is_stored():
    drawn = [row for draw in (figure.parts, figure.by_length, figure.by_layer) for row in draw(Figure().subplots())]
    stored = [*csv.DictReader((figure.HERE / "picture.csv").read_text(encoding="utf-8").splitlines())]
    assert [f"{row['y']:.5g}" for row in drawn] == [row["y"] for row in stored]
