"""Every mutation still applies, and what is asked is there; `make mutants` runs them."""

import ast
from collections import Counter

import pytest
from mutants import ROOT, Mutant, mutants

ALL = list(mutants())


def changes(mutant, text, tree):
    """Whether a mutation of this text changes its code; only the statements that it touches are parsed."""
    mutant.applied(text)  # which says where it is stale
    first = text[: text.find(mutant.what)].count("\n") + 1
    last, ends = first + mutant.what.count("\n"), [0, *(node.end_lineno for node in tree.body)]
    touched = [at for at in range(len(tree.body)) if ends[at] < last and ends[at + 1] >= first]
    part = "".join(text.splitlines(keepends=True)[ends[touched[0]] : ends[touched[-1] + 1]])
    return ast.dump(ast.parse(part)) != ast.dump(ast.parse(part.replace(mutant.what, mutant.by)))


def test_every_mutation_applies_once_and_changes_the_code():
    wrong = []
    texts = {each.file: (ROOT / each.file).read_text() for each in ALL}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    for each in ALL:
        try:
            changed = changes(each, texts[each.file], trees[each.file])
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{each}: {error}")
        else:
            wrong += [] if changed else [f"changes nothing: {each}"]
    assert not wrong, "\n".join(wrong)


def test_a_mutation_of_a_comment_changes_nothing():
    text = "x = 1\n\n\ndef f():\n    return 1  # one\n"
    tree = ast.parse(text)
    assert not changes(Mutant("a", "b.py", "# one", "# two", ()), text, tree)
    assert changes(Mutant("a", "b.py", "return 1", "return 2", ()), text, tree)
    assert changes(Mutant("a", "b.py", "x = 1\n", "x = 1\ny = 2\n", ()), text, tree)


def test_a_mutation_that_does_not_apply_is_stale():
    one = Mutant("a", "b.py", "x < 1", "x <= 1", ())
    assert one.applied("if x < 1:") == "if x <= 1:"
    for text in ("if x < 2:", "x < 1 or x < 1"):
        with pytest.raises(ValueError, match=r"stale, found [02] times: b\.py: x < 1  ->  x <= 1"):
            one.applied(text)


def test_named_tests_exist():
    missing = set()
    for ask in {ask for each in ALL for ask in each.asks}:
        file, *names = ask.partition("[")[0].split("::")
        path = ROOT / file
        if not path.is_file() or (names and f"def {names[-1]}(" not in path.read_text()):
            missing.add(ask)
    assert not missing


def test_there_are_a_hundred_of_each_kind_and_no_two_alike():
    live = Counter(each.part == "theory" for each in ALL if not each.equivalent)
    assert min(live[True], live[False]) >= 100
    assert len({(each.file, each.what, each.by) for each in ALL}) == len(ALL)
    assert all(each.asks for each in ALL)
