"""Tables as plain text, of any command."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 110  # of text in a terminal


_NARROWEST = 8  # characters of a column that wraps


@dataclass(frozen=True)
class Table:
    """Texts: a row a method, a column a length. name: of its file in an export; empty: it has none."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    name: str = ""


def filled(text: str) -> str:
    """The text in lines of a terminal's width, and of no more than 110 characters."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
    return textwrap.fill(text, width, break_on_hyphens=False)  # methods' names have hyphens


def plain_table(table: Table) -> str:
    """A table as plain text, under its title where it has one; on a terminal that is narrower its cells wrap."""
    rows = (table.head, *table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    room = columns - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return "\n".join([*([table.title] if table.title else []), *lines])


def cross_table(title: str, texts: Mapping[tuple[str, Any], str], columns: Sequence[Any]) -> Table:
    """Texts by method and column, a row a method; '-' where there is none."""
    methods = dict.fromkeys(method for method, _ in texts)
    rows = tuple((method, *(texts.get((method, column), "-") for column in columns)) for method in methods)
    return Table(title, ("method", *map(str, columns)), rows)
