"""Runs that are cut short, and gone on with by other options: what is still to be run, and what is told of the rest."""

import pytest
import tiny

from probe.experiment.journal import Journal
from probe.mechanism.attribution import hooks_left
from probe.mechanism.cells import config_of
from probe.mechanism.held import clamps_of
from probe.mechanism.interventions import by_layer
from probe.mechanism.request import LocateRequest, needed_bytes, plan
from probe.mechanism.results import summarize
from probe.mechanism.smallest import Round, chosen_cell, random_sets, set_cell
from probe.mechanism.unfinished import left

GROUP = ("nll", 320)
HEADS = [(layer, head) for layer in range(3) for head in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model") / "model")


def asked(folder, *kinds, samples=4, **more):
    return plan(LocateRequest(model=str(folder), kinds=kinds, lengths=(320,), samples=samples, **more))


def filled(made, path, broken=(3.0,) * 4):
    """A journal with the plain runs, of which every block is alike."""
    journal = Journal(path / "cells.jsonl", made.settings)
    for name, losses in (("origin", broken), ("rerope", (2.0,) * 4)):
        for number, each in enumerate(losses):
            add(journal, made, (*GROUP, name, number, "run"), nll=[each] * 8)
    return journal


def add(journal, made, cell, **row):
    journal.add(cell, {"config": config_of(made.methods[cell[2]]), **row})


def tried(made, journal):
    return clamps_of(made, journal, GROUP) or []


def test_every_kind_that_is_not_done_is_left(folder, tmp_path):
    journal = filled(asked(folder, "weave"), tmp_path)
    for kind, least in {"clamp": 1, "attribution": 4, "smallest": 1}.items():
        assert left(asked(folder, kind), journal) == least, kind


def test_clamps_are_left_until_they_are_run(folder, tmp_path):
    made = asked(folder, "clamp")
    journal = filled(made, tmp_path)
    add(journal, made, ("dims", 320, "rerope"), rules={"drift": [[1, [3], [[4], [5], [6], [7], [8]]]], "paper": []})
    cells = [each.cell for each in tried(made, journal)] + [("run-inside",)]
    assert left(made, journal) == 4 * len(cells)
    for number in range(4):
        for cell in cells:
            add(journal, made, (*GROUP, "origin", number, *cell), nll=[3.0] * 8)
    assert left(made, journal) == 0


def test_clamps_of_one_name_hold_the_same_dims(folder, tmp_path):
    """Whatever was asked for when the folder was begun."""
    made = asked(folder, "clamp")
    journal = filled(made, tmp_path)
    sets = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    rules = {"drift": [[1, [30, 31], sets], [2, [20, 21], sets]], "paper": []}
    add(journal, made, ("dims", 320, "rerope"), rules=rules)
    every = {each.cell: each.dims for each in tried(made, journal)}
    other = asked(folder, "clamp", layers="2", methods="mesa")
    some = {each.cell: each.dims for each in tried(other, journal)}
    assert some.items() < every.items()
    assert {dims for (*_, layer), dims in some.items() if layer == -1} >= {((1, (30, 31)), (2, (20, 21)))}


def test_attributions_of_other_hooks_are_not_taken_for_these(folder, tmp_path):
    made = asked(folder, "attribution", hooks=("attn_out", "mlp_out"))
    journal = filled(made, tmp_path)

    def falls(hook, fall):
        return [["patch", "mend", hook, "all", layer, -1, fall] for layer in range(3)]

    add(journal, made, (*GROUP, "rerope", 0, "attribution"), falls=falls("attn_out", 0.5))
    add(journal, made, (*GROUP, "rerope", 1, "attribution"), falls=falls("mlp_out", 0.25))
    assert [hooks_left(made, journal, GROUP, "rerope", number) for number in range(3)] == [
        ["mlp_out"],
        ["attn_out"],
        ["attn_out", "mlp_out"],
    ]
    assert left(made, journal) == 4
    found = {(each["hook"], each["layer"]): each for each in summarize(made, journal)["attribution"]}
    for hook, share in (("attn_out", 0.5), ("mlp_out", 0.25)):
        assert [found[hook, layer]["share"] for layer in range(3)] == pytest.approx([share] * 3)
        assert found[hook, 0]["items"] == 1
        assert found[hook, 0]["low"] is None  # one number


def searched(made, journal, order, losses, last, told=3):
    """A search for the smallest set that chose `order` up to `last`; losses: by size, of the choosing and scoring.

    told: up to which size its choice is journalled.
    """
    for head in HEADS:
        for number in (0, 2):
            loss = losses[1][0] if head == order[0] else 3.0
            add(journal, made, set_cell(GROUP, "rerope", number, by_layer([head])), nll=[loss] * 8)
    for size in range(1, last + 1):
        for head in HEADS:
            if size > 1 and head not in order[: size - 1]:
                loss = losses[size][0] if head == order[size - 1] else 3.0
                for number in (0, 2):
                    cell = set_cell(GROUP, "rerope", number, by_layer([*order[: size - 1], head]))
                    add(journal, made, cell, nll=[loss] * 8)
        for each, loss in [
            *((each, 2.9) for each in random_sets(HEADS, size)),
            (by_layer(order[:size]), losses[size][1]),
        ]:
            for number in (1, 3):
                add(journal, made, set_cell(GROUP, "rerope", number, each), nll=[loss] * 8)
        if size <= told:
            cell = chosen_cell(GROUP, "rerope", Round((), (), HEADS, order[:size]))
            add(journal, made, cell, heads=order[:size], candidates=HEADS)


ORDER = [(1, 2), (0, 3), (2, 1)]


def test_the_size_of_the_smallest_set_is_not_chosen_where_it_is_scored(folder, tmp_path):
    """Two heads restore 90% of the scoring half by luck; by the choosing half it takes three, which do not."""
    made = asked(folder, "smallest")
    journal = filled(made, tmp_path)
    searched(made, journal, ORDER, {1: (2.5, 2.5), 2: (2.3, 2.05), 3: (2.05, 2.2)}, last=3)
    (found,) = summarize(made, journal)["smallest"]
    assert found["share"] == pytest.approx([0.5, 0.95, 0.8])
    assert found["finished"]
    assert found["enough"] is None
    assert left(made, journal) == 0


def test_a_search_that_was_cut_short_says_so(folder, tmp_path):
    made = asked(folder, "smallest")
    journal = filled(made, tmp_path)
    searched(made, journal, ORDER, {1: (2.5, 2.5), 2: (2.3, 2.05)}, last=2)
    summary = summarize(made, journal)
    (found,) = summary["smallest"]
    assert not found["finished"]
    assert found["enough"] is None
    assert summary["cells_left"] == 1


def test_a_search_whose_last_choice_is_not_kept_is_not_done(folder, tmp_path):
    made = asked(folder, "smallest")
    journal = filled(made, tmp_path)
    searched(made, journal, ORDER, {1: (2.5, 2.5), 2: (2.3, 2.05), 3: (2.05, 2.2)}, last=3, told=2)
    summary = summarize(made, journal)
    assert len(summary["smallest"][0]["heads"]) == 2
    assert summary["cells_left"] == 1


def test_no_set_is_searched_for_where_a_half_shows_no_loss(folder, tmp_path):
    made = asked(folder, "smallest")
    journal = filled(made, tmp_path, broken=[2.03, 2.009, 2.03, 2.009])
    summary = summarize(made, journal)
    assert summary["gaps"][0]["judged"]
    assert summary["smallest"][0]["heads"] == []
    assert left(made, journal) == 0


def test_one_text_has_a_summary(folder, tmp_path):
    made = asked(folder, "weave", samples=1)
    journal = filled(made, tmp_path)
    add(journal, made, (*GROUP, "rerope", 0, "weave", "only", "", "all", 1, -1), nll=[2.5] * 8)
    summary = summarize(made, journal)
    assert summary["gaps"][0]["judged"]
    assert [each["share"] for each in summary["effects"]] == [0.5]


def test_the_search_keeps_the_states_of_every_item(folder):
    assert needed_bytes(asked(folder, "smallest")) > needed_bytes(asked(folder, "weave"))
