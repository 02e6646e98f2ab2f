"""Identifiers and sentences have the field's words: none of the private ones that this project once had."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("mesa", "probe", "theory", "mesa_lens", "research", "benchmarks", "tests")
PRIVATE = "made found told asked heard crew seams surely perhaps".split()
"""Words that no identifier holds."""
PREFIXES = ("own_", "each_", "tell_")
PRODUCT = ("mesa", "probe", "theory", "mesa_lens")
OLD = re.compile(
    r"whole number|\bis no (?:number|text|integer|list)\b|[Ff]alse alarm|\btimes M\b|\bmend(?:s|ed)?\b|layer\.head"
    r"|[Ss]tated window|\bless (?:origin|crop)'s|\bloss gap\b|\brestores? (?:the loss|\d|\{)|[Hh]olds up to \{"
    r"|\bthe weave\b|[Ww]eaving|\bwoven (?!middle'|')"
)
"""Words of a sentence, label or help text that have given way: an integer, false detections, 8x, fixes, L0H7, ..."""
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))] + [ROOT / "app.py"]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that a module defines, reads, imports or passes by keyword."""
    for node in map(vars, ast.walk(tree)):
        for field in ("id", "attr", "arg", "name", "asname"):
            if isinstance(name := node.get(field), str):
                yield from name.split(".")


def private(name: str) -> bool:
    """Whether an identifier holds a private word."""
    name = re.sub("(File|Module)?NotFound(Error)?", "", name)  # Python's own
    words = re.findall(r"[a-z0-9]+", re.sub(r"([A-Z])", r"_\1", name).lower())
    return not {*words}.isdisjoint(PRIVATE) or name.lower().startswith(PREFIXES)


def test_a_private_word_is_recognised_and_a_plain_one_passes():
    words = "made _found Told is_found Crew own_summary CellsMade each_one".split()
    plain = "plan FileNotFoundError ModuleNotFoundError maker owner reaches_end".split()
    assert [name for name in words + plain if private(name)] == words


def test_identifiers_are_plain():
    """Only modules that hold such a word anywhere, be it in a docstring, are parsed."""
    words = {path: {*re.findall(r"[^\W\d]\w*", path.read_text(encoding="utf-8"))} for path in FILES}
    suspects = {word for word in set().union(*words.values()) if private(word)}
    paths = [path for path in FILES if words[path] & suspects]
    assert paths
    offending = {
        f"{path.relative_to(ROOT)}: {name}" for path in paths for name in {*identifiers(parsed(path))} & suspects
    }
    assert not offending


@cache
def parsed(path: Path) -> ast.Module:
    """A module's tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def strings(path: Path) -> Iterator[str]:
    """Every string of a module, docstrings and pieces of f-strings too; of a template, all of it."""
    if path.suffix == ".html":
        yield path.read_text(encoding="utf-8")
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def product(suffix: str) -> list[Path]:
    """The product's files with this ending."""
    return [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob(f"*{suffix}"))]


@pytest.mark.parametrize(
    "text",
    [
        "is no whole number",
        "0 false alarms",
        "2 to 3 times M",
        "What mended it",
        "as layer.head",
        "less crop's",
        "restores 90%",
    ],
)
def test_an_old_word_is_recognised(text):
    assert OLD.search(text)
    assert not OLD.search(
        "is not an integer; 0 false detections; 2 to 3x M; fixes it; L2H3; minus truncation; recovers 90%"
    )


def test_sentences_labels_and_help_have_the_new_words():
    offending = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in product(".py") + product(".html")
        for text in strings(path)
        for match in OLD.finditer(text)
    }
    assert not offending


def test_heads_are_written_by_one_function():
    """As L0H7, by `probe.options.head_name`: no f-string writes 0.7."""
    dotted = re.compile(r"\{[\w.]*layer\}\.\{[\w.]*head\}")
    assert dotted.search('f"{row.layer}.{row.head}"')
    assert not [path for path in product(".py") if dotted.search(path.read_text(encoding="utf-8"))]


def test_no_two_classes_share_a_name():
    """A name means one thing; `Run` and such of a public interface too."""
    where: dict[str, set[str]] = {}
    for path in product(".py"):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}
