"""A journal's lines carry checksums; what is damaged is named by file and line, and never counts as done."""

import json
import math
import zlib
from pathlib import Path

import pytest

from probe.experiment.journal import Journal, read_journal

SETTINGS = {"model": "m", "seed": 1}
KEY, ROW = ("nll", "origin", 64), {"config": {"name": "origin"}, "nll": [0.5, 1.5], "entropy": [None]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "cells.jsonl"


def with_line(path: Path, content) -> Path:
    """A journal with a line whose checksum holds, whatever it says."""
    row = {**content, "crc32": f"{zlib.crc32(json.dumps(content).encode()):08x}"}
    path.parent.mkdir(parents=True)
    path.write_text(f"{json.dumps({'settings': SETTINGS, 'crc32': True})}\n{json.dumps(row)}\n")
    return path


def test_rows_are_read_again_and_the_file_appears_with_the_first(path):
    journal = Journal(path, SETTINGS)
    assert not path.parent.exists()
    journal.add(KEY, ROW)
    assert Journal(path, SETTINGS).rows == {KEY: ROW}


@pytest.mark.parametrize("cell", [None, 5, "x", [], [None], [["nll"]], ["nll", 64.5]], ids=str)
def test_a_line_without_a_key_is_damaged(path, cell):
    with pytest.raises(ValueError, match=r"cells\.jsonl, line 2 is damaged: its cell"):
        Journal(with_line(path, {"cell": cell, **ROW}), SETTINGS)
    assert read_journal(path).rows == {}


@pytest.mark.parametrize("header", [{"settings": SETTINGS}, {"settings": SETTINGS, "crc32": False}])
def test_a_journal_without_checksums_is_refused(path, header):
    path.parent.mkdir()
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(ValueError, match="line 1 is damaged: it lacks 'crc32'"):
        Journal(path, SETTINGS)


@pytest.mark.parametrize("value", [math.nan, [1.0, math.inf], {"a": [math.nan]}])
def test_a_measured_value_that_is_not_finite_is_refused(path, value):
    with pytest.raises(RuntimeError, match=r"'nll' of nll origin 64 is not finite; try a wider --dtype"):
        Journal(path, SETTINGS).add(KEY, {**ROW, "nll": value})
    assert not path.exists()
