"""The effective length is read from planted scores, and not from scores at chance."""

import json

import numpy as np
import pytest

from probe.evaluation.effective import effective_lengths, effective_table

LENGTHS = (256, 512, 1024, 2048)
M = 256


def rows(task="vt", count=20, **methods):
    """Scores by method, one a length, of every prompt the same."""
    return [
        {"task": task, "method": method, "length": length, "sample": sample, "metric": "recall", "score": score}
        for method, scores in methods.items()
        for length, score in zip(LENGTHS, scores, strict=False)
        for sample in range(count)
    ]


def found(rows, tasks=("vt", "cwe")):
    entries = json.loads(json.dumps(effective_lengths(rows, tasks, M)))
    return {(entry["task"], entry["method"]): entry for entry in entries}


def test_the_longest_length_with_085_of_the_references_score_at_the_shortest():
    entries = found(rows(origin=(0.8, 0.67, 0.1, 0), mesa=(0.7, 0.7, 0.68, 0.69), late=(0.5, 0.5, 0.9, 0.5)))
    assert {entry["base"] for entry in entries.values()} == {0.8}
    assert [(entries["vt", name]["length"], entries["vt", name]["dips"]) for name in ("origin", "mesa", "late")] == [
        (256, []),  # 0.85 * 0.8 = 0.68
        (2048, []),
        (1024, [256, 512]),
    ]
    entries = found(rows(origin=(0.8, 0.68, 0.679, 0)))
    assert entries["vt", "origin"]["length"] == 512
    assert ("mean", "origin") not in entries


def test_the_interval_is_over_prompts_that_are_the_same_for_all_methods_and_lengths():
    made = rows(origin=(1, 1, 0, 0), mesa=(1, 1, 1, 0))
    hard = [row["sample"] % 2 for row in made]  # half of the prompts are lost everywhere
    for row, lost in zip(made, hard, strict=True):
        row["score"] *= 1 - lost
    entry = found(made)["vt", "mesa"]
    assert (entry["length"], entry["low"], entry["high"]) == (1024, 1024, 1024)
    for row in made:  # at 1024 others are lost than at 256: which half is drawn decides
        if row["length"] == 1024 and row["method"] == "mesa":
            row["score"] = float(row["sample"] % 2)
    entry = found(made)["vt", "mesa"]
    assert (entry["length"], entry["low"], entry["high"]) == (1024, 512, 1024)


@pytest.mark.parametrize("count", [1, 4])
def test_few_prompts_have_no_interval(count):
    (entry,) = effective_lengths(rows(count=count, origin=(0.8, 0.8)), ("vt",), M)
    assert (entry["length"], entry["low"], entry["has_interval"]) == (512, None, False)
    assert effective_table([entry]).rows[1] == ("origin", "at least 512")


def test_at_chance_nothing_is_judged():
    random = np.random.default_rng(0)
    made = rows(origin=(0, 0, 0), mesa=(0.9, 0.9, 0.9))
    for row in made:
        if row["method"] == "origin":
            row["score"] = float(random.random() < 0.08)
    entries = found(made)
    assert entries["vt", "mesa"]["unjudged"] == "at chance"
    assert entries["vt", "mesa"]["length"] is None
    table = effective_table([*entries.values()])
    assert {row[1] for row in table.rows[1:]} == {"not judged: at chance"}
    assert table.rows[0][1].endswith("; copying 0.10")


def test_what_copying_the_prompt_gives_is_chance():
    made = rows(origin=(0.6, 0.6, 0.6, 0.6), mesa=(1, 1, 1, 1))
    copies = [{**row, "metric": "copied", "score": 0.65} for row in made]
    entries = found([*made, *copies])
    assert {(entry["unjudged"], entry["length"], entry["chance"]) for entry in entries.values()} == {
        ("at chance", None, 0.65)
    }
    for row in copies:
        row["score"] = {256: 0.3, 512: 0.7}.get(row["length"], 0.55)
    entries = found([*made, *copies])
    assert (entries["vt", "origin"]["length"], entries["vt", "origin"]["dips"]) == (2048, [512])
    assert (entries["vt", "mesa"]["length"], entries["vt", "mesa"]["dips"]) == (2048, [])


def test_a_base_beyond_the_window_judges_nothing():
    made = [row for row in rows(mesa=(1, 0.9, 0.9, 0.9)) if row["length"] > M]
    entries = found(made)
    assert entries["vt", "mesa"]["length"] is None
    assert effective_table([*entries.values()]).rows[1] == ("mesa", "not judged: no length within M = 256")


def test_the_mean_is_over_tasks_and_rulers_threshold_needs_all_of_them():
    made = [*rows(origin=(1, 1, 0.5, 0)), *rows("cwe", origin=(0.9, 0.8, 0.8, 0), mesa=(0.9, 0.9, 0.9, 0.9))]
    entries = found(made)
    assert entries["mean", "origin"]["base"] == pytest.approx(0.95)
    assert entries["mean", "origin"]["length"] == 512  # (1 + 0.8) / 2 = 0.9 >= 0.8075 > 0.65
    assert ("mean", "mesa") not in entries
    rulers = effective_lengths(made, ("vt", "cwe"), M, are_rulers=True)
    assert [entry["ruler"]["length"] for entry in rulers if entry["task"] == "mean"] == [512]
    assert effective_table(rulers).head[-1] == "mean of 0.856 (RULER's)"
    other = effective_lengths(made, ("vt", "cwe", "fwe"), M, are_rulers=True), effective_lengths(made, ("vt", "cwe"), M)
    assert [entry["ruler"] for each in other for entry in each if entry["task"] == "mean"] == [None, None]


def test_without_rulers_tasks_there_is_nothing_to_show():
    assert effective_lengths(rows("passkey", origin=(1, 1)), ("vt",), M) == []
    assert effective_table([]) is None
