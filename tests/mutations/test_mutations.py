"""Every mutation still applies, and what is asked is there; `make mutants` runs them."""

import ast
from collections import Counter

import pytest
import run
from mutants import ROOT, Mutant, mutants
from run import BROKEN, KILLED, SURVIVED, TIMED_OUT, done, outcome

ALL = list(mutants())


def test_every_mutation_applies_once_and_changes_the_code():
    wrong = []
    texts = {each.file: (ROOT / each.file).read_text() for each in ALL}
    trees = {file: ast.dump(ast.parse(text)) for file, text in texts.items()}
    for each in ALL:
        try:
            changed = ast.dump(ast.parse(each.applied(texts[each.file]))) != trees[each.file]
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{each}: {error}")
        else:
            wrong += [] if changed else [f"changes nothing: {each}"]
    assert not wrong, "\n".join(wrong)


def test_a_mutation_that_does_not_apply_is_stale():
    one = Mutant("a", "b.py", "x < 1", "x <= 1", ())
    assert one.applied("if x < 1:") == "if x <= 1:"
    for text in ("if x < 2:", "x < 1 or x < 1"):
        with pytest.raises(ValueError, match=r"stale, found [02] times: b\.py: x < 1  ->  x <= 1"):
            one.applied(text)


@pytest.mark.parametrize(("unmutated", "expected"), [(SURVIVED, TIMED_OUT), (TIMED_OUT, BROKEN), (KILLED, BROKEN)])
def test_time_kills_only_what_passes_in_time_without_the_mutation(tmp_path, monkeypatch, unmutated, expected):
    file = tmp_path / "b.py"
    file.write_text("x < 1")
    results = {"x <= 1": TIMED_OUT, "x < 1": unmutated}
    monkeypatch.setattr(run, "ask", lambda asks, expected: (results[file.read_text()], 31.0))
    one = Mutant("a", "b.py", "x < 1", "x <= 1", ("test_b.py",))
    assert run.try_one(1, one, tmp_path, tmp_path / "output") == (expected, 31.0)
    assert file.read_text() == "x < 1"


def test_named_tests_exist():
    missing = set()
    for ask in {ask for each in ALL for ask in each.asks}:
        file, *names = ask.partition("[")[0].split("::")
        path = ROOT / file
        if not path.is_file() or (names and f"def {names[-1]}(" not in path.read_text()):
            missing.add(ask)
    assert not missing


def test_there_are_a_hundred_of_each_kind_and_no_two_alike():
    live = Counter(each.file.partition("/")[0] == "theory" for each in ALL if not each.equivalent)
    assert min(live[True], live[False]) >= 100
    assert len({(each.file, each.what, each.by) for each in ALL}) == len(ALL)
    assert all(each.asks for each in ALL)


@pytest.mark.parametrize(
    ("code", "in_time", "expected"),
    [(0, True, SURVIVED), (1, True, KILLED), (2, True, KILLED), (4, True, KILLED), (-11, True, KILLED),
     (3, True, BROKEN), (5, True, BROKEN), (-9, False, TIMED_OUT)],
)  # fmt: skip
def test_exit_codes_are_distinguished(code, in_time, expected):
    assert outcome(code, in_time) == expected


def test_a_run_goes_on_after_what_came_out_as_it_must():
    one = Mutant("a", "b.py", "x <  1", "", ())
    log = "1/2 {} (0.1 s) " + f"{one}  tests/test_b.py::test_b[a  b]\n2/2 SURVIVED (1.0 s) c.py: y  ->  z  \n"
    for outcome_, passed_over in (
        ("killed", {str(one)}), ("killed by time", {str(one)}), ("equivalent, SURVIVED", {str(one)}),
        ("SURVIVED", set()), ("equivalent, killed", set()), ("BROKEN", set()),
    ):  # fmt: skip
        assert done(log.format(outcome_)) == passed_over
