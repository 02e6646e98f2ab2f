"""A journal's lines carry checksums; what is damaged is named by file and line, and never counts as done."""

import json
import math
from typing import NamedTuple

import pytest

from mesa.methods import Origin
from probe.experiment.journal import Journal

SETTINGS = {"model": "m", "seed": 1}
KEY, ROW = ("nll", "origin", 64), {"config": {"name": "origin"}, "nll": [0.5, 1.5], "entropy": [None]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.jsonl"


def test_rows_are_read_again_and_the_file_appears_with_the_first(path):
    journal = Journal(path, SETTINGS)
    assert not path.parent.exists()
    journal.add(KEY, ROW)
    assert Journal(path, SETTINGS).rows == {KEY: ROW}


@pytest.mark.parametrize("header", [{"settings": SETTINGS}, {"settings": SETTINGS, "crc32": "0123"}])
def test_a_first_line_without_its_checksum_is_refused(path, header):
    path.parent.mkdir()
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(ValueError, match="line 1 is damaged: it is not what was written"):
        Journal(path, SETTINGS)


@pytest.mark.parametrize("value", [math.nan, [1.0, math.inf], {"a": [math.nan]}])
def test_a_measured_value_that_is_not_finite_is_refused(path, value):
    with pytest.raises(RuntimeError, match=r"'nll' of nll origin 64 is not finite; try a wider --dtype"):
        Journal(path, SETTINGS).add(KEY, {**ROW, "nll": value})
    assert not path.exists()


def test_a_line_that_an_interrupt_cut_is_dropped(path):
    path.parent.mkdir()
    for cut in ('{"sett', '{"settings": {"seed"'):
        path.write_text(cut)
        journal = Journal(path, SETTINGS)
        assert journal.rows == {}
    journal.add(KEY, ROW)
    journal.add(("nll", "mesa", 64), ROW)
    path.write_text(path.read_text()[:-40])
    assert Journal(path, SETTINGS).rows == {KEY: ROW}


@pytest.mark.parametrize("text", ["not json\n", "[1]\n", '{"a": 1}\n', "cut"])
def test_a_file_that_is_no_journal_is_refused(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"journal\.jsonl is not a journal of a run; use --overwrite"):
        Journal(path, {})


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_is_named_by_its_line_wherever_it_is(path, bit):
    """Also where the line is no JSON or no UTF-8 any more."""
    for length in (96, 160):
        Journal(path, SETTINGS).add(("hold", length, 1), {"nll": 0.5})
    content = path.read_bytes()
    begin, end = content.index(b"\n") + 1, content.rindex(b"\n", 0, -1)
    for place in range(begin, end):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        with pytest.raises(ValueError, match=r"journal\.jsonl, line 2 is damaged: .*; remove it, use --overwrite"):
            Journal(path, SETTINGS)


def test_other_settings_and_other_parameters_of_a_method_are_refused(path):
    origin = Origin(trained_length=64)
    Journal(path, {"seed": 1, "model": "m"}).add(KEY, {**ROW, "config": origin.describe()})
    with pytest.raises(FileExistsError, match=r"another seed \(1 there, 2 now\); use --overwrite or another --out$"):
        Journal(path, {"seed": 2, "model": "m"})
    assert set(Journal(path, {"seed": 1, "model": "m"}, lambda key: origin).rows) == {KEY}
    text = {"seed": 1, "model": "m", "text": "a.txt", "documents": "sum"}
    Journal(path.with_name("other"), text).add(KEY, {**ROW, "config": origin.describe()})
    assert set(Journal(path.with_name("other"), text | {"text": "./a.txt"}).rows) == {KEY}
    with pytest.raises(FileExistsError, match=r"another documents .*, text \(a\.txt there, b\.txt now\)"):
        Journal(path.with_name("other"), text | {"text": "b.txt", "documents": "other"})
    with pytest.raises(FileExistsError, match="holds origin with other parameters; use --overwrite"):
        Journal(path, {"seed": 1, "model": "m"}, lambda key: Origin(trained_length=96))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"nll": [0.5]}, "has no 'config'"),
        ({"config": None, "nll": [0.5]}, "has no 'config'"),
        ({"config": {"name": "origin"}, "nll": None}, "holds no 'nll' or 'rules'"),
        ({"config": {"name": "origin"}, "nll": [None]}, "'nll' that is not a list of numbers"),
    ],
)
def test_a_row_without_what_is_needed_is_named_by_file_and_key(path, row, problem):
    Journal(path, SETTINGS).add(KEY, row)
    with pytest.raises(
        ValueError, match=rf"journal\.jsonl: the row of \['nll', 'origin', 64\] .*{problem}.*; remove its"
    ):
        Journal(path, SETTINGS, needed=("nll", "rules"))


class Place(NamedTuple):
    method: str
    length: int


def test_the_first_line_names_the_columns_of_the_keys_and_other_keys_are_refused(path):
    journal = Journal(path, SETTINGS, columns=Place)
    journal.add(("rerope", 64), ROW)
    assert json.loads(path.read_text().splitlines()[0])["columns"] == ["method", "length"]
    for rows in (journal.rows, Journal(path, SETTINGS, columns=Place).rows):
        assert [(key.method, key.length) for key in rows] == [("rerope", 64)]
    for other in (("rerope",), ("rerope", "64"), ("rerope", 64, 1)):
        path.unlink()
        Journal(path, SETTINGS).add(other, ROW)
        with pytest.raises(ValueError, match="is of no method, length; remove its line"):
            Journal(path, SETTINGS, columns=Place)
