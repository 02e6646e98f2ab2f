"""The list of failures can only shrink, and names tests that there are."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("compare", Path(__file__).with_name("compare.py"))
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)
STOCK = {"a": "passed", "b": "wrong", "c": "passed", "d": "skipped"}


@pytest.mark.parametrize(
    ("changes", "listed", "lines"),
    [
        ({}, {}, []),
        ({"a": "no"}, {"a": "by design"}, []),
        ({"a": "no"}, {}, ["fails, and is not listed: a: no"]),
        ({}, {"a": "by design"}, ["listed, but does not fail beyond stock; remove it: a"]),
        ({}, {"b": "as stock"}, ["listed, but does not fail beyond stock; remove it: b"]),
        ({"c": None}, {}, ["is not there any more: c"]),
    ],
)
def test_what_is_wrong(changes, listed, lines):
    ours = {test: word for test, word in {**STOCK, **changes}.items() if word is not None}
    assert compare.verdict(STOCK, ours, listed) == lines


def test_every_failure_has_a_reason_and_a_kind():
    for kind in compare.KINDS:
        assert all(len(reason) > 20 for reason in compare.listed(kind).values())
    assert not compare.listed("none")
