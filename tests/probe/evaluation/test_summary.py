"""Means, intervals, tables and curves of an evaluation."""

import numpy as np
import pytest

from probe.evaluation.plan import TASKS
from probe.evaluation.summary import bootstrap, interval, summarize, tables, wilson
from probe.figures.evaluation_chart import evaluation_charts, write_curves
from probe.tasks.base import Metric


def row(method, length, score, task="passkey", metric="accuracy"):
    return {"task": task, "metric": metric, "method": method, "length": length, "score": score}


@pytest.fixture
def cells():
    rows = [row("origin", 256, 1.0), row("origin", 256, 0.0), row("mesa", 256, 1.0), row("mesa", 256, 1.0)]
    rows = [*rows, row("mesa", 128, 1.0), row("origin", 128, 0.0, "nll", "nll"), row("origin", 128, 3.0, "nll", "nll")]
    return summarize(rows, TASKS)


@pytest.mark.parametrize(
    ("hits", "count", "expected"),
    [(0, 10, (0, 0.2775)), (10, 10, (0.7225, 1)), (50, 100, (0.4038, 0.5962)), (81, 263, (0.2553, 0.3662))],
)
def test_wilsons_interval_has_its_published_values(hits, count, expected):
    assert wilson(hits, count) == pytest.approx(expected, abs=1e-4)  # 81 of 263: Newcombe 1998, table I


def test_the_bootstrap_is_seeded_and_near_the_normal_interval():
    values = np.random.default_rng(3).normal(2, 0.5, 400)
    low, high = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    assert bootstrap(values) == (low, high)
    assert bootstrap([4.0]) == (4.0, 4.0)


def test_binary_metrics_get_wilsons_interval_and_others_the_bootstrap():
    assert interval([1.0, 1.0], Metric("accuracy", "share", binary=True)) == wilson(2, 2)
    assert interval([1.0, 1.0], Metric("nll", "nats")) == (1.0, 1.0)


def test_cells_are_summed_up_by_task_metric_method_and_length(cells):
    assert [(cell["task"], cell["method"], cell["length"], cell["mean"], cell["n"]) for cell in cells] == [
        ("passkey", "mesa", 128, 1.0, 1),
        ("nll", "origin", 128, 1.5, 2),
        ("passkey", "origin", 256, 0.5, 2),
        ("passkey", "mesa", 256, 1.0, 2),
    ]
    assert cells[1]["unit"] == "nats/token"
    assert (cells[2]["low"], cells[2]["high"]) == wilson(1, 2)
    assert (cells[1]["low"], cells[1]["high"]) == (0.0, 3.0)


def test_tables_have_methods_down_and_lengths_across(cells):
    assert tables(cells).splitlines() == [
        "passkey, accuracy (share found); mean of 1 to 2 [95% interval]",
        "        128           256",
        "mesa    1 [0.207, 1]  1 [0.342, 1]",
        "origin  -             0.5 [0.0945, 0.905]",
        "",
        "nll, nll (nats/token); mean of 2 [95% interval]",
        "        128",
        "origin  1.5 [0, 3]",
    ]


def test_labels_of_many_lengths_do_not_touch():
    rows = [row("origin", 1024 * number, 1.0) for number in range(1, 17)]
    summary = {"cells": summarize(rows, TASKS), "trained_length": 1024, "model": "default"}
    (panel,) = evaluation_charts(summary)["passkey"].panels
    assert [tick // 1024 for tick in panel.x_ticks] == [1, 2, 3, 4, 6, 8, 10, 13, 16]


def test_curves_show_means_intervals_and_the_trained_length(cells, tmp_path):
    summary = {"cells": cells, "trained_length": 200, "model": "some/model"}
    charts = evaluation_charts(summary)
    assert list(charts) == ["passkey", "nll"]
    (panel,) = charts["passkey"].panels
    assert panel.y_title == "accuracy (share found)"
    lines = {line.label: line for line in panel.lines}
    assert lines["mesa"].x.tolist() == [128, 256]
    assert lines["origin"].y.tolist() == [0.5]
    assert [end.tolist() for end in lines["origin"].interval] == [[wilson(1, 2)[0]], [wilson(1, 2)[1]]]
    assert [rule.at for rule in panel.rules] == [200]
    assert panel.x_ticks == (128, 256)
    low, high = panel.y_range
    assert low < wilson(1, 2)[0]
    assert high > 1
    written = write_curves(summary, tmp_path)
    assert [path.name for path in written] == ["passkey.png", "passkey.html", "nll.png", "nll.html"]
    assert (tmp_path / "nll.png").read_bytes().startswith(b"\x89PNG")
    assert "some/model" in (tmp_path / "nll.html").read_text()
