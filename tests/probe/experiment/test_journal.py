"""Rows of journals that are sealed and yet malformed are named as damaged, by file and line, and are not done."""

import json
import math
import zlib

import pytest

from probe.evaluation.plan import TASKS
from probe.evaluation.run import checked_journal
from probe.experiment.journal import Journal, read_journal, row_problem

SETTINGS = {"model": "m", "samples": 2}
CONFIG = {"name": "origin"}


def score(sample, **changed):
    return {"length": 64, "sample": sample, "metric": "nll", "value": 1.5, "seconds": 0.1, **changed}


ROW = {"config": CONFIG, "peak_mib": 1.0, "scores": [score(0), score(1)]}
ROWS = {  # a good row of every command
    ("nll", "origin", 64): ROW,
    ("task", "origin", 64): {"config": CONFIG, "results": {"part": {"acc": 1.0}}},
    ("nll", 64, "origin", 0, "run"): {"config": CONFIG, "nll": [1.0, 2.0]},
    ("nll", 64, "rerope", 0, "attribution"): {"config": CONFIG, "falls": [["z", 0, 1, 0.5]]},
    ("nll", 64, "rerope", -1, "chosen", "1a2b3c4d", 1): {
        "config": CONFIG,
        "heads": [[0, 1]],
        "candidates": [[0, 1], [1, 0]],
    },
    ("dims", 64, "rerope"): {"config": CONFIG, "rules": {"drift": [[0, [1], [2]]]}},
    ("heads", "origin", 64, 0): {"config": CONFIG, "spans": ["inside"], "entropy": [[[1.0]]]},
    ("lens", "origin", 64, 0): {"config": CONFIG, "ends": [32, 64], "nll": [[1.0]]},
    ("retrieval", "origin", 64, 0): {"config": CONFIG, "score": [[0.5]]},
    ("find", 0): {"attention": [[0.1]], "output": [[0.2]], "apart": [[0.3]]},
    ("hold", 64, 1): {"nll": {"origin": [1.0]}},
    ("crossed", 64): {"crossing": {"attn_out": {"origin": 3}}},
    ("predicted", "repeated", "pi", 0): {"lengths": {"repeated": {"standard": {"lengths": [None, 90]}}}},
    ("nll", "pi", 0, 64): {"scores": [1.0, 2.0]},
}


def sealed(row):
    return {**row, "crc32": f"{zlib.crc32(json.dumps(row).encode()):08x}"}


def written(path, *rows, header=None):
    first = {"settings": SETTINGS, "crc32": True} if header is None else header
    path.write_text("".join(json.dumps(each) + "\n" for each in (first, *map(sealed, rows))))
    return path


@pytest.mark.parametrize("cell", ROWS)
def test_a_good_row_of_each_command_is_kept_and_read_again(tmp_path, cell):
    journal = Journal(tmp_path / "cells.jsonl", SETTINGS)
    journal.add(cell, ROWS[cell])
    assert Journal(tmp_path / "cells.jsonl", SETTINGS).rows == {cell: ROWS[cell]}


@pytest.mark.parametrize("wrong", [None, [], "x", {}, [None], [math.nan], "absent"], ids=str)
@pytest.mark.parametrize("cell", ROWS)
def test_a_sealed_row_without_what_it_needs_is_damaged(tmp_path, cell, wrong):
    checked = {"config", "scores", "nll", "attention", "score", "ends", "crossing", "heads", "candidates"} & {
        *ROWS[cell]
    }
    for key in checked:
        row = {name: value for name, value in ROWS[cell].items() if name != key}
        row |= {} if wrong == "absent" else {key: wrong}
        path = written(tmp_path / "cells.jsonl", {"cell": cell, **row})
        with pytest.raises(ValueError, match=rf"cells.jsonl, line 2 is damaged: .*'{key}'"):
            Journal(path, SETTINGS)
        assert read_journal(path).rows == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": None},
        {"value": "1"},
        {"value": math.inf},
        {"metric": 3},
        {"sample": "0"},
        {"length": None},
        {"seconds": "x"},
    ],
    ids=str,
)
def test_a_score_that_is_none_is_damaged(tmp_path, wrong):
    path = written(tmp_path / "cells.jsonl", {"cell": ["nll", "origin", 64], **ROW, "scores": [{**score(0), **wrong}]})
    with pytest.raises(ValueError, match="line 2 is damaged: its 'scores' holds what cannot be"):
        Journal(path, SETTINGS)


@pytest.mark.parametrize(
    "cell", [None, 5, "x", [], [None], [["nll"]], ["nll"], [1, 2], ["nll", "origin", 64.5]], ids=str
)
def test_a_cell_of_no_command_is_damaged(tmp_path, cell):
    with pytest.raises(ValueError, match="line 2 is damaged: its cell"):
        Journal(written(tmp_path / "cells.jsonl", {"cell": cell, **ROW}), SETTINGS)


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ([score(0)], "1 of 2 samples of nll at 64"),
        ([score(0), score(0)], "2 of 2 samples"),
        ([score(0), score(1), score(2)], "3 of 2 samples"),
        ([score(0, metric="nonsense"), score(1, metric="nonsense")], "'nonsense' is no metric of nll"),
    ],
)
def test_scores_of_other_samples_or_metrics_are_refused(tmp_path, scores, complaint):
    assert "nll" in TASKS
    path = written(tmp_path / "cells.jsonl", {"cell": ["nll", "origin", 64], **ROW, "scores": scores})
    with pytest.raises(ValueError, match=complaint):
        checked_journal(path, SETTINGS, {})


@pytest.mark.parametrize("header", [{"settings": SETTINGS}, {"settings": SETTINGS, "crc32": False}])
def test_a_journal_without_seals_is_refused(tmp_path, header):
    path = written(tmp_path / "cells.jsonl", {"cell": ["nll", "origin", 64], **ROW}, header=header)
    with pytest.raises(ValueError, match="line 1 is damaged: it lacks 'crc32'"):
        Journal(path, SETTINGS)


def test_what_could_not_be_read_again_is_not_kept(tmp_path):
    journal = Journal(tmp_path / "cells.jsonl", SETTINGS)
    with pytest.raises(RuntimeError, match="nll origin 64 gave is not kept"):
        journal.add(("nll", "origin", 64), {**ROW, "scores": [score(0, value=math.nan)]})
    assert not (tmp_path / "cells.jsonl").exists()
    assert row_problem(("nll", "origin", 64), ROW) == ""
