"""Rank correlations of what is measured with what interventions restore."""

import csv
import json

import pytest

from research.mechanism.rankings import rankings
from research.mechanism.run import add_rankings

HEADS = [(layer, head) for layer in range(3) for head in range(2)]


def effects(shares):
    places = [{"layer": layer, "head": head} for layer, head in [*HEADS, *((layer, None) for layer in range(6))]]
    return [
        {"kind": "weave", "way": "only", **place, "share": share} for place, share in zip(places, shares, strict=True)
    ]


def anatomy(values):
    """By head, `value` for its norms and -value for its retrieval score; all else alike."""
    flat = {name: [1.0, 0, 1] for name in ("attention", "mass_beyond", "mean_distance", "entropy", "sink", "previous")}
    cells = (("origin", "beyond M"), ("origin", "inside M"), ("rerope", "beyond M"))
    rows = [
        {"method": method, "length": 96, "span": span, "layer": layer, "head": head, "norms": [value, 0, 1], **flat}
        for (layer, head), value in zip(HEADS, values, strict=True)
        for method, span in cells
    ]
    retrieval = [
        {"method": "origin", "length": 24, "layer": layer, "head": head, "best": [-value, 0, 1]}
        for (layer, head), value in zip(HEADS, values, strict=True)
    ]
    return {"frequencies": rows, "heads": rows, "retrieval": retrieval, "trained_length": 24, "vectors": None}


def test_each_measure_is_held_against_its_own_places():
    methods = [{"method": "mesa", "layers": {"1": 9}}, {"method": "origin", "layers": {"4": 30, "3": 40}}]
    run = {"drift": {"prompts": {"repeated": {"methods": methods}}}}
    ranked = rankings(effects([1, 2, 3, 4, 5, 6, 0, 0, 0, 1, 2, 0]), 96, anatomy([10, 20, 30, 40, 50, 60]), run)
    by = {row["what"]: row for row in ranked}
    assert by["unmet phases, by norms"]["spearman"] == pytest.approx(1)
    assert by["retrieval score inside M"]["spearman"] == pytest.approx(-1)
    assert by["early drift"]["spearman"] == pytest.approx(1)
    assert by["entropy beyond M"]["spearman"] is None  # it does not vary
    assert by["early drift"]["places"] == 6
    assert rankings(effects(range(12)), 97, anatomy([1] * 6), None)[0]["what"] == "retrieval score inside M"
    assert rankings(effects(range(12)), 96, None, None) == []


def test_rankings_join_the_table_of_agreements(tmp_path):
    columns = ("method", "length", "measure", "what", "with", "hook", "spearman", "low", "high", "places")
    table, measured = tmp_path / "agreement.csv", tmp_path / "summary.json"
    table.write_text(",".join(columns) + "\n", encoding="utf-8")
    measured.write_text(json.dumps(anatomy([10, 20, 30, 40, 50, 60])), encoding="utf-8")
    labels = {"method": "rerope", "length": 96, "measure": "nll"}
    rows = [row | labels for row in effects([1, 2, 3, 4, 5, 6, 0, 0, 0, 1, 2, 0])]
    add_rankings({"gaps": [labels], "effects": rows}, measured, table)
    with table.open(encoding="utf-8") as file:
        by_what = {row["what"]: row for row in csv.DictReader(file)}
    assert by_what["unmet phases, by norms"]["method"] == "rerope"
    assert float(by_what["unmet phases, by norms"]["spearman"]) == pytest.approx(1)
