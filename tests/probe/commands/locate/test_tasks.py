"""The tasks of a locate run follow from its journal's rows; the summary of runs that were cut short."""

import math
from typing import get_args

import pytest

from probe.commands.locate import TrialKind
from probe.commands.locate.interventions import by_layer
from probe.commands.locate.result import CLAMP, GRADIENTS, PATCH, SMALLEST
from probe.commands.locate.run import (
    LocateRequest,
    Round,
    complement,
    plan,
    random_sets,
    remaining,
    set_key,
    summarize,
    tasks,
)
from probe.experiment.journal import Journal

GROUP = ("nll", 320)
HEADS = [(layer, head) for layer in range(3) for head in range(4)]


def planned(model, *kinds, samples=4, **options):
    return plan(LocateRequest(model=model, kinds=kinds, lengths=(320,), samples=samples, **options))


def with_plain_runs(locate_plan, path, baseline=(3.0,) * 4):
    """A journal with the plain runs, whose blocks are all equal."""
    journal = Journal(path / "journal.jsonl", locate_plan.settings)
    for name, losses in (("origin", baseline), ("rerope", (2.0,) * 4)):
        for number, loss in enumerate(losses):
            add(journal, locate_plan, (*GROUP, name, number, "run"), nll=[loss] * 8)
    return journal


def add(journal, locate_plan, key, **row):
    journal.add(key, {"config": locate_plan.methods[key[2]].describe(), **row})


def test_the_kinds_are_those_of_the_option():
    assert {*get_args(TrialKind)} == {PATCH, GRADIENTS, CLAMP, SMALLEST}


def test_plain_runs_come_first_and_what_follows_is_foreseen(model, tmp_path):
    locate_plan = planned(model, "patch", "clamp", "smallest")
    assert [task.kind for task in tasks(locate_plan, {})] == ["run"] * 2 * 4
    patches, first_round = 2 * (3 + 12) * 4, 12 * 2
    clamped = (1 + 2 * 2 * 6 * (1 + 3 + 1)) * 4  # Origin inside M; by rule, way and set: all layers, each, inside M
    assert remaining(locate_plan, {}) == 2 * 4 + patches + 1 + clamped + first_round + 1  # 1: dims, and later rounds
    no_gap = with_plain_runs(locate_plan, tmp_path, baseline=[2.0] * 4)
    assert tasks(locate_plan, no_gap.rows) == []
    every = (tasks(planned(model, kind), {}, foresee=True) for kind in ("smallest", "patch"))
    smallest, patched = (max(each.memory_bytes for each in known) for known in every)
    assert smallest > patched  # states of every item


def test_an_estimate_on_one_text_has_no_interval(model, tmp_path):
    locate_plan = planned(model, GRADIENTS, samples=1)
    journal = with_plain_runs(locate_plan, tmp_path, baseline=(3.0,))
    add(journal, locate_plan, (*GROUP, "rerope", 0, GRADIENTS), recovered=[[0.1] * 4] * 3)
    effects = summarize(locate_plan, journal).effects
    assert [(row.layer, row.head) for row in effects] == HEADS
    assert all(math.isnan(row.low) for row in effects)


def searched(locate_plan, journal, losses, journaled=3):
    """A head search that chose `ORDER`; losses: by size, of the choosing and the scoring half.

    journaled: up to which size its choice is in the journal.
    """
    for size, (choosing, scoring) in enumerate(losses, 1):
        chosen = ORDER[: size - 1]
        for head in (head for head in HEADS if head not in chosen):
            for number in (0, 2):
                key = set_key(GROUP, "rerope", number, by_layer([*chosen, head]))
                add(journal, locate_plan, key, nll=[choosing if head == ORDER[size - 1] else 3.0] * 8)
        scored = [(heads, 2.9) for heads in random_sets(HEADS, size)] + [(by_layer(ORDER[:size]), scoring)]
        for heads, loss in scored:
            for number in (1, 3):
                add(journal, locate_plan, set_key(GROUP, "rerope", number, heads), nll=[loss] * 8)
        if size <= journaled:
            key = Round((), (), HEADS, ORDER[:size]).chosen_key(GROUP, "rerope")
            add(journal, locate_plan, key, heads=ORDER[:size], candidates=HEADS)


ORDER = [(1, 2), (0, 3), (2, 1)]


def test_the_size_of_the_smallest_set_is_not_chosen_on_the_scoring_half(model, tmp_path):
    """Two heads restore 90% of the scoring half by luck; by the choosing half it takes three, which do not."""
    locate_plan = planned(model, "smallest")
    journal = with_plain_runs(locate_plan, tmp_path)
    searched(locate_plan, journal, [(2.5, 2.5), (2.3, 2.05), (2.05, 2.2)])
    (row,) = summarize(locate_plan, journal).smallest
    assert row.share == pytest.approx([0.5, 0.95, 0.8])
    assert row.finished
    assert row.enough is None
    assert math.isnan(row.rest[0])
    assert len(tasks(locate_plan, journal.rows)) == 2  # all other heads, on the scoring half
    for number in (1, 3):
        key = set_key(GROUP, "rerope", number, complement(locate_plan, ORDER))
        add(journal, locate_plan, key, nll=[2.4] * 8)
    assert summarize(locate_plan, journal).smallest[0].rest[0] == pytest.approx(0.6)
    assert remaining(locate_plan, journal.rows) == 0


@pytest.mark.parametrize(
    ("losses", "kinds"),
    [([(2.5, 2.5), (2.3, 2.05)], {"smallest"}), ([(2.5, 2.5), (2.3, 2.05), (2.05, 2.2)], {"chosen"})],
)
def test_a_search_that_was_cut_short_is_unfinished(model, tmp_path, losses, kinds):
    locate_plan = planned(model, "smallest")
    journal = with_plain_runs(locate_plan, tmp_path)
    searched(locate_plan, journal, losses, journaled=2)
    summary = summarize(locate_plan, journal)
    (row,) = summary.smallest
    assert (len(row.heads), row.finished, row.enough) == (2, False, None)
    assert {task.kind for task in tasks(locate_plan, journal.rows)} == kinds
    assert summary.tasks_left > 0


def test_no_set_is_searched_for_where_a_half_has_no_gap(model, tmp_path):
    locate_plan = planned(model, "smallest")
    journal = with_plain_runs(locate_plan, tmp_path, baseline=[2.03, 2.009, 2.03, 2.009])
    summary = summarize(locate_plan, journal)
    assert summary.loss_gaps[0].significant
    assert summary.smallest[0].heads == []
    assert remaining(locate_plan, journal.rows) == 0
