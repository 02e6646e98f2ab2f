"""Means, intervals, tables and curves of an evaluation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from results import COMMON, evaluation
from scipy.stats import multinomial

from probe.commands.eval.page import (
    Cell,
    Evaluated,
    PairedDifference,
    Sample,
    evaluation_charts,
    score_tables,
    sections,
    summarize,
    title,
    write_curves,
)
from probe.eval_tasks.base import Metric, interval, paired
from probe.evaluation import TASKS
from probe.figures.section import Section, as_text, page
from probe.glossary import explained, help_of
from probe.statistics import bonett_price, shown, student, wilson

FOUND, LOSS = Metric("accuracy", "share", binary=True), Metric("nll", "nats")


def plain(cells):
    return as_text([Section(tables=list(score_tables(cells)))])


def row(method, length, score, task="passkey", metric="accuracy", sample=0):
    return Sample(task, method, length, sample, metric, score)


@pytest.fixture
def cells():
    rows = [row("origin", 256, 1.0), row("origin", 256, 0.0, sample=1)]
    rows += [row("mesa", 256, 1.0), row("mesa", 256, 1.0, sample=1), row("mesa", 128, 1.0)]
    rows += [row("origin", 128, score, "nll", "nll", sample) for sample, score in enumerate((1.0, 2.0))]
    rows += [row("mesa", 128, score, "nll", "nll", sample) for sample, score in enumerate((1.5, 2.6))]
    return summarize(rows, TASKS)


@pytest.mark.parametrize(
    ("hits", "count", "expected"),
    [(0, 10, (0, 0.2775)), (10, 10, (0.7225, 1)), (50, 100, (0.4038, 0.5962)), (81, 263, (0.2553, 0.3662))],
)
def test_wilsons_interval_has_its_published_values(hits, count, expected):
    assert wilson(hits, count) == pytest.approx(expected, abs=1e-4)  # 81 of 263: Newcombe 1998, table I


def test_means_have_students_interval_and_none_of_one_value():
    assert student([5.1, 4.9, 5.6, 5.8, 6.0]) == pytest.approx((4.9016, 6.0584), abs=1e-4)  # 2.7764 sqrt(0.217 / 5)
    assert student([4.0]) == (None, None)
    assert (shown(2.5178, *student([2.5178])), shown(5.48, 4.9016, 6.0584)) == ("2.52", "5.48 [4.9, 6.06]")


def test_the_interval_of_paired_shares_has_its_published_form():
    share, lost = (59 + 1) / (160 + 2), (6 + 1) / (160 + 2)
    half = 1.959964 * math.sqrt((share + lost - (share - lost) ** 2) / (160 + 2))
    assert bonett_price(59, 6, 160) == pytest.approx((share - lost - half, share - lost + half))
    assert bonett_price(0, 0, 20)[0] < 0 < bonett_price(0, 0, 20)[1]  # none by the plain formula


@pytest.mark.parametrize("count", [2, 3, 5, 12, 20])
def test_the_interval_of_paired_shares_covers_however_few_they_are(count):
    """Exactly, over all tables that `count` prompts can give; with half a prompt in place of one: 0.73 at the least."""
    tables = [(gained, lost) for gained in range(count + 1) for lost in range(count + 1 - gained)]
    ends = [bonett_price(*table, count) for table in tables]
    for shares in ((0.45, 0.45), (0.9, 0.02), (0.6, 0.3), (0.3, 0.05), (0.05, 0.01), (0.25, 0.7)):
        difference = shares[0] - shares[1]
        covered = sum(
            multinomial.pmf([*table, count - sum(table)], count, [*shares, 1 - sum(shares)])
            for table, (low, high) in zip(tables, ends, strict=True)
            if low <= difference <= high
        )
        assert covered > 0.9, shares


def test_shares_get_wilsons_interval_means_students_and_scores_that_are_all_the_same_no_certainty():
    recall, points, one = Metric("recall", "share", most=1), Metric("bleu", "0 to 100", most=100), (None, None)
    for scores, metric, expected in (
        ([1.0, 1.0], FOUND, wilson(2, 2)),
        ([1.0, 3.0], LOSS, student([1, 3])),
        ([1.0], FOUND, one),
        ([1.0, 1.0, 1.0], recall, wilson(3, 3)),
        ([50.0, 50.0], points, pytest.approx([100 * end for end in wilson(1, 2)])),
        ([0.5, 0.75, 0.6], recall, student([0.5, 0.75, 0.6])),
        ([2.5, 2.5], LOSS, (2.5, 2.5)),
    ):
        assert interval(scores, metric) == expected
    for first, second, metric, expected in (
        ([1.0], [0.0], FOUND, one),
        ([1.0, 0.5], [1.0, 0.5], recall, bonett_price(0, 0, 2)),
        ([0.0, 0.5], [0.5, 1.0], recall, bonett_price(0, 1, 2)),
        ([2.5, 2.5], [2.5, 2.5], LOSS, (0, 0)),
    ):
        assert paired(first, second, metric) == expected
    assert np.isnan([*interval([np.nan, 1, 0.9], recall), *paired([np.nan, 1, 0.3], [0.2, 0, 0.4], recall)]).all()


def test_intervals_of_limited_scores_end_at_their_limits():
    recall = Metric("recall", "share", most=1)
    assert interval([1, 1, 0.9], recall) == (pytest.approx(0.823, abs=1e-3), 1)
    assert interval([0, 0, 0.1], recall) == (0, pytest.approx(0.177, abs=1e-3))
    assert paired([1, 1, 1], [0, 0, 0.2], recall) == (pytest.approx(0.646, abs=1e-3), 1)
    assert paired([0, 0, 0.2], [1, 1, 1], recall) == (-1, pytest.approx(-0.646, abs=1e-3))
    assert interval([1, 1, 0.9], Metric("nll", "nats"))[1] > 1


def test_tables_have_methods_down_and_lengths_across(cells):
    assert plain(cells).splitlines() == [
        "passkey, accuracy (share found); mean of 1 to 2 [95% interval]",
        "method  128   256",
        "mesa    1.00  1.00 [0.34, 1.00]",
        "origin  -     0.50 [0.09, 0.91]",
        "",
        "passkey, accuracy (share found); minus origin on the same 2 [95% interval, paired]",
        "method  256",
        "mesa    +0.500 [-0.563, +1.000]",
        "",
        "nll (nats/token); mean of 2 [95% interval]",
        "method  128",
        "origin  1.50 [-4.85, 7.85]",
        "mesa    2.05 [-4.94, 9.04]",
        "",
        "nll (nats/token); minus origin on the same 2 [95% interval, paired]",
        "method  128",
        "mesa    +0.550 [-0.085, +1.185]",
    ]


def test_curves_show_means_intervals_and_the_trained_length(cells, tmp_path):
    result = Evaluated(**COMMON, cells=cells, trained_length=200, model="some/model", tasks_left=0)
    charts = evaluation_charts(result)
    assert list(charts) == ["passkey", "nll"]
    assert charts["passkey"].title == "The paper's passkey prompt: some/model; mean, 95% interval"
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
    written = write_curves(result, tmp_path)
    assert [path.name for path in written] == ["passkey.html", "passkey.png", "nll.html", "nll.png"]
    assert (tmp_path / "nll.png").read_bytes().startswith(b"\x89PNG")
    assert "some/model" in (tmp_path / "nll.html").read_text()


def test_the_report_of_an_evaluation_folds_time_and_explains_its_words():
    common = {"metric": "nll", "unit": "nats/token", "low": 1.0, "high": 3.0, "n": 2, "length": 64}
    cells = [
        Cell(**common, task=task, method=name, mean=mean)
        for task, mean in (("nll", 2.0), ("latency", 1.5))
        for name in ("origin", "<b>")
    ]
    evaluated = Evaluated(
        **{**COMMON, "methods": {"origin": {}, "<b>": {}}}, model="<i>", trained_length=32, tasks_left=0, cells=cells
    )
    html = page(title(evaluated), sections(evaluated))
    assert "<i>" not in html.partition("<body>")[2].replace("plotly", "")[:400]
    assert html.index("Nll: &lt;i&gt;; mean") < html.index("Time and memory") < html.index("Latency: &lt;i&gt;; mean")
    assert '<abbr title="The unmodified model.' in html
    assert "At 64 tokens the mean nll is 2.00 under &lt;b&gt;, 2.00 under origin." in html


def test_terms_are_explained_once_a_text_and_escaped():
    html = explained("NLL <b> of tail NLL, NLL; `crop`")
    assert html.count("<abbr") == 3
    assert "<b>" not in html
    assert "<code><abbr" in html
    assert "Lower is better" in help_of("NLL at 2048")
    assert help_of("seed") is None


def test_explanations_hold_no_tags():
    assert "<code>" not in explained("predicted failure").partition('title="')[2].partition('"')[0]


def test_the_page_names_the_reference_of_its_tables():
    result = evaluation()
    cells = [replace(cell, difference=PairedDifference("rerope", 0.5, 0.25, 0.75, 20)) for cell in result.cells]
    said = [sections(replace(result, cells=rows))[0].sentences[0] for rows in (result.cells, cells)]
    assert ["origin is the unmodified" in text for text in said] == [True, False]
