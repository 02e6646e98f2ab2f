"""The mechanism's tables: rank correlations with what interventions restore, and what is positional in the states."""

import csv
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

import mesa
from research.correlation import rank_correlation
from research.mechanism import positional_vectors
from research.mechanism.head_sets import pairs, sharpest
from research.mechanism.positional_vectors import Moments, measure
from research.mechanism.rankings import rankings
from research.mechanism.run import write_rankings

HEADS = [(layer, head) for layer in range(3) for head in range(2)]
LABELS = {"method": "rerope", "length": 96, "measure": "nll"}


def effects(shares):
    rows = zip(HEADS, shares, strict=True)
    return [{"kind": "weave", "way": "only", "layer": layer, "head": head, "share": x} for (layer, head), x in rows]


def anatomy(values):
    names = ("attention", "mass_beyond", "mean_distance", "entropy", "sink", "previous")
    spans = (("origin", "beyond M"), ("origin", "inside M"), ("rerope", "beyond M"))
    rows = [
        {"method": method, "length": 96, "span": span, "layer": layer, "head": head, "norms": [value, 0, 1]}
        | {name: [1.0, 0, 1] for name in names}
        for (layer, head), value in zip(HEADS, values, strict=True)
        for method, span in spans
    ]
    retrieval = [
        {"method": "origin", "length": 24, "layer": layer, "head": head, "best": [-value, 0, 1]}
        for (layer, head), value in zip(HEADS, values, strict=True)
    ]
    return {"unmet": rows, "heads": rows, "retrieval": retrieval, "trained_length": 24}


def test_what_was_measured_ranks_the_heads(tmp_path):
    measured, table = anatomy([10, 20, 30, 40, 50, 60]), tmp_path / "agreement.csv"
    rows = [row | LABELS for row in effects([1, 2, 3, 4, 5, 6])]
    write_rankings({"loss_gaps": [LABELS], "effects": rows}, measured, table)
    with table.open(encoding="utf-8") as file:
        by_what = {row["what"]: row for row in csv.DictReader(file)}
    assert by_what["unmet phases, by norms"]["method"] == "rerope"
    assert float(by_what["unmet phases, by norms"]["spearman"]) == pytest.approx(1)
    assert float(by_what["retrieval score inside M"]["spearman"]) == pytest.approx(-1)
    assert by_what["entropy beyond M"]["spearman"] == ""  # it does not vary
    assert rankings(effects(range(6)), 97, measured)[0]["what"] == "retrieval score inside M"
    assert {row["places"] for row in rankings(effects([None, *range(5)]), 96, measured)} == {5}


def test_the_correlation_is_of_mid_ranks():
    assert rank_correlation([1, 2, 2, 9], [0.1, 5, 5, 6])[0] == pytest.approx(1)
    value, low, high = rank_correlation(range(30), [x + (x % 3) * 4 for x in range(30)])
    assert low < value < high < 1
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == (None, None, None)


def test_a_planted_positional_share_is_recovered():
    """Variance 4^2 / 2 along one direction against 24 dims of 1; a layer of noise alone has none."""
    rng, position = np.random.default_rng(5), np.arange(384)
    axis = rng.normal(size=24)
    ramp = 4 * np.cos(2 * np.pi * position / 128)[:, None] * (axis / np.linalg.norm(axis))
    moments = Moments.of((np.stack([ramp, 0 * ramp]) + rng.normal(size=(2, 384, 24)) for _ in range(32)), 128)
    np.testing.assert_allclose(moments.shares(), [[0.25, 0.25], [0, 0]], atol=0.02)
    np.testing.assert_allclose(moments.reliabilities()[0], 32 / 35, atol=0.03)
    assert (moments.reliabilities()[1] < 0.5).all()


def test_a_tiny_models_table_adds_up():
    model, method = tiny.model(), mesa.Origin(trained_length=24)
    rows = measure(
        SimpleNamespace(model=model, tokenizer=mesa.load().tokenizer),
        method,
        np.random.default_rng(0).integers(2, 97, 400),
        4,
    )
    assert [row["layer"] for row in rows] == [0, 1, 2]
    for row, band in itertools.product(rows, positional_vectors.BANDS):
        assert row[f"share_{band}"] <= 1
        assert 0 <= row[f"reliability_{band}"] <= 1
        assert 0 <= row["by_chance"] <= 32


def test_the_sharpest_heads_are_local_and_of_least_entropy():
    table = [(0, 0, 0.79, 0.1), (0, 1, 0.8, 3.0), (1, 0, 0.9, 1.0), (1, 1, 0.9, 2.0)]
    names = ("layer", "head", "mass_near", "entropy")
    rows = [
        {"method": "origin", "span": "inside M", "length": "96"} | dict(zip(names, row, strict=True)) for row in table
    ]
    assert sharpest(rows, 96) == [(1, 0), (1, 1)]
    assert sharpest(rows, 97) == []
    drawn = pairs(HEADS, 4)
    assert drawn == pairs(HEADS, 4)
    assert [sum(map(len, heads.values())) for heads in drawn] == [2] * 4
    assert len(pairs(HEADS[:3], 99)) == 3
