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


def by_method(rows, tasks=("vt", "cwe")):
    entries = json.loads(json.dumps(effective_lengths(rows, tasks, M)))
    return {(entry["task"], entry["method"]): entry for entry in entries}


def test_the_longest_length_with_085_of_the_references_score_at_the_shortest():
    entries = by_method(rows(origin=(0.8, 0.67, 0.1, 0), mesa=(0.7, 0.7, 0.68, 0.69), late=(0.5, 0.5, 0.9, 0.5)))
    assert {entry["base"] for entry in entries.values()} == {0.8}
    assert [entries["vt", name]["length"] for name in ("origin", "mesa", "late")] == [256, 2048, 1024]  # 0.85 * 0.8
    entries = by_method(rows(origin=(0.8, 0.68, 0.679, 0)))
    assert entries["vt", "origin"]["length"] == 512
    assert ("mean", "origin") not in entries


def test_the_interval_is_of_differences_prompt_by_prompt():
    scores = rows(count=40, origin=(1, 1, 0, 0), mesa=(1, 1, 1, 0))
    hard = [row["sample"] % 2 for row in scores]  # half of the prompts are lost everywhere
    for row, lost in zip(scores, hard, strict=True):
        row["score"] *= 1 - lost
    entry = by_method(scores)["vt", "mesa"]
    assert (entry["length"], entry["low"], entry["high"]) == (1024, 1024, 1024)
    for row in scores:  # at 1024 others are lost than at 256
        if row["length"] == 1024 and row["method"] == "mesa":
            row["score"] = float(row["sample"] % 2)
    entry = by_method(scores)["vt", "mesa"]
    assert (entry["length"], entry["low"], entry["high"]) == (1024, 512, 1024)


def test_one_prompt_has_no_interval():
    (entry,) = effective_lengths(rows(count=1, origin=(0.8, 0.8)), ("vt",), M)
    assert (entry["length"], entry["low"], entry["has_interval"]) == (512, None, False)
    assert effective_table([entry]).rows[1] == ("origin", "at least 512")


def test_few_answers_that_agree_are_no_certainty():
    few, many = (by_method(rows(count=count, origin=(1, 1), mesa=(1, 1)))["vt", "mesa"] for count in (10, 40))
    assert (few["length"], few["low"], few["high"]) == (512, None, 512)  # 10 of 10 leave 0.72 open, by Wilson
    assert (many["low"], many["high"]) == (512, 512)
    origin = by_method(rows(count=10, origin=(1, 1), mesa=(1, 1)))["vt", "origin"]
    assert origin["low"] == 256  # of its own score at 256 it has 0.85 whatever that is
    assert effective_table([few]).rows[1] == ("mesa", "at least 512 [none, 512]")


@pytest.mark.parametrize("tasks", [("vt",), ("vt", "cwe")])
@pytest.mark.parametrize("count", [3, 5, 8])
def test_the_interval_holds_the_length_that_was_planted(count, tasks):
    """Found by 0.9 of all at 256, by 0.7 of all under mesa up to 1024: less than 0.85 of it everywhere."""
    random, covered = np.random.default_rng(0), []
    for _ in range(60):
        scores = [row for task in tasks for row in rows(task, count, origin=(0.9, 0.9, 0.1), mesa=(0.7, 0.7, 0.5))]
        for row in scores:
            row["score"] = float(random.random() < row["score"])
        entry = by_method(scores, tasks)[tasks[-1] if len(tasks) == 1 else "mean", "mesa"]
        if not entry["unjudged"]:
            covered.append(entry["low"] is None)
    assert len(covered) > 20
    assert np.mean(covered) > 0.9


def test_at_chance_nothing_is_judged():
    random = np.random.default_rng(0)
    scores = rows(origin=(0, 0, 0), mesa=(0.9, 0.9, 0.9))
    for row in scores:
        if row["method"] == "origin":
            row["score"] = float(random.random() < 0.08)
    entries = by_method(scores)
    assert entries["vt", "mesa"]["base"] > 0.1
    assert entries["vt", "mesa"]["unjudged"] == "not told from chance"
    assert entries["vt", "mesa"]["length"] is None
    table = effective_table([*entries.values()])
    assert {row[1] for row in table.rows[1:]} == {"not judged: not told from chance"}
    assert table.rows[0][1].endswith("; copying 0.10")
    assert {entry["unjudged"] for entry in by_method(rows(origin=(0, 0), mesa=(0.9, 0.9))).values()} == {"at chance"}


def test_what_copying_the_prompt_gives_is_chance():
    scores = rows(origin=(0.6, 0.6, 0.6, 0.6), mesa=(1, 1, 1, 1))
    copies = [{**row, "metric": "copied", "score": 0.65} for row in scores]
    entries = by_method([*scores, *copies])
    assert {(entry["unjudged"], entry["length"], entry["chance"]) for entry in entries.values()} == {
        ("at chance", None, 0.65)
    }
    for row in copies:
        row["score"] = {256: 0.3, 512: 0.7}.get(row["length"], 0.55)
    entries = by_method([*scores, *copies])
    assert [entries["vt", method]["length"] for method in ("origin", "mesa")] == [2048, 2048]
    entries = by_method([*(row for row in scores if row["length"] <= 512), *copies])
    assert [entries["vt", method]["length"] for method in ("origin", "mesa")] == [256, 512]  # at 512 copying has 0.7


def test_the_mean_is_over_tasks_that_a_method_has_all_of():
    scores = [*rows(origin=(1, 1, 0.5, 0)), *rows("cwe", origin=(0.9, 0.8, 0.8, 0), mesa=(0.9, 0.9, 0.9, 0.9))]
    entries = by_method(scores)
    assert entries["mean", "origin"]["base"] == pytest.approx(0.95)
    assert entries["mean", "origin"]["length"] == 512  # (1 + 0.8) / 2 = 0.9 >= 0.8075 > 0.65
    assert ("mean", "mesa") not in entries
    assert effective_lengths(rows("passkey", origin=(1, 1)), ("vt",), M) == []
