"""Identifiers are the field's words: none of the private ones that this project once had."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("mesa", "probe", "theory", "mesa_lens", "research", "benchmarks", "tests")
PRIVATE = "made found told asked heard crew seams surely perhaps".split()
"""Words that no identifier holds."""
PREFIXES = ("own_", "each_")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))] + [ROOT / "app.py"]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that a module defines, reads, imports or passes by keyword."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
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
    offending = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name in identifiers(ast.parse(path.read_text(encoding="utf-8")))
        if private(name)
    }
    assert not offending
