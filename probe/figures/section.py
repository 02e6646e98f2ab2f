"""A result page as data: sections, drawn as text for a terminal and as HTML; the dashboard draws them too."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from probe.figures.export import csv_bytes, html_embed, row_table
from probe.figures.figure_data import Drawable
from probe.files import write
from probe.glossary import template
from probe.store.result_file import NOT_RECORDED, RunSummary

# Tables as plain text

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


# Sections

REPORT = "report.html"
"""The page that a command writes into its folder."""


@dataclass(frozen=True)
class Section:
    """A part of a result page, drawn in the order of its fields.

    Args:
        title: Its heading; default none.
        sentences: One is a paragraph, several are a list.
        figures: By the names of their files. `Markup` is HTML of its own, which the terminal leaves out.
        tables: Each under its title.
        links: Addresses of further files by their text, on HTML pages alone.
        parts: Sections one level below; those of text alone are a list of terms.
        folded: Whether it opens by a click on its title; the terminal leaves it out.

    Examples:
        >>> print(as_text([Section("Found", ["One head is enough."])]))
        Found
        One head is enough.
    """

    title: str = ""
    sentences: Sequence[str] = ()
    figures: Mapping[str, Drawable | Markup] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[Section] = ()
    folded: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it is a title with sentences, and nothing else."""
        return bool(self.title and self.sentences) and not (
            self.figures or self.tables or self.links or self.parts or self.folded
        )


def figures_of(sections: Sequence[Section]) -> dict[str, Drawable]:
    """All figures of the sections and their parts, by name, in the order of the page."""
    figures = (item for section in _with_parts(sections) for item in section.figures.items())
    return {name: figure for name, figure in figures if not isinstance(figure, Markup)}


def tables_of(sections: Sequence[Section]) -> dict[str, xr.Dataset]:
    """The tables with a name of the sections and their parts, as texts by row, in the order of the page."""
    tables = (table for section in _with_parts(sections) for table in section.tables if table.name and table.rows)
    return {table.name: row_table([dict(zip(table.head, row, strict=True)) for row in table.rows]) for table in tables}


def _with_parts(sections: Sequence[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from _with_parts(section.parts)


def as_text(sections: Sequence[Section]) -> str:
    """Titles, sentences and tables, for a terminal; without figures, and without what is folded."""
    return "\n\n".join(filter(None, (_as_text(section) for section in sections if not section.folded)))


def page(title: str, sections: Sequence[Section]) -> str:
    """An HTML page that opens offline: plotly.js inlined once, every text escaped, terms of the glossary explained."""
    return template("figures/section.html").render(
        title=title, sections=sections, embed=embed, plotly_js=get_plotlyjs()
    )


def write_page(
    folder: Path,
    title: str,
    sections: Sequence[Section],
    tables: Mapping[str, xr.Dataset | None],
    own: Sequence[str] = (),
) -> Path:
    """Writes report.html, which opens offline, and the tables as csv next to it; returns the page's path.

    tables: by the names of their files, to which the page links; None: that file is there already. own: names of
    tables that an earlier page may have had: those that this one has not are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if table is not None:
            write(folder / f"{name}.csv", csv_bytes(table))
    files = [Section("Tables", links={f"{name}.csv": f"{name}.csv" for name in tables})] if tables else []
    write(folder / REPORT, page(title, [*sections, *files]).encode())
    for name in {*own} - {*tables}:
        (folder / f"{name}.csv").unlink(missing_ok=True)
    return folder / REPORT


def provenance(summary: RunSummary) -> Section:
    """Origin, text, seed, executor, versions, and the methods with their parameters."""
    rows = [*(summary.origin or {"model_revision": NOT_RECORDED}).items()]
    rows += [("text", str(summary.text_source or NOT_RECORDED)), ("seed", str(summary.seed))]
    rows.append(("executor", summary.executor))
    for name, config in summary.methods.items():
        rows.append((name, ", ".join(f"{key}={value}" for key, value in config.items() if key != "name")))
    rows += summary.versions.items()
    return Section("Provenance", tables=[Table("", ("what", "value"), tuple(rows))], folded=True)


def _as_text(section: Section) -> str:
    """A section with its title; empty where it has figures alone."""
    blocks = ["\n".join(map(filled, section.sentences)), *map(plain_table, section.tables), as_text(section.parts)]
    text = "\n\n".join(filter(None, blocks))
    return f"{section.title}\n{text}" if section.title and text else text


def embed(figure: Drawable | Markup) -> Markup:
    """The figure as a part of a page that has plotly.js."""
    return figure if isinstance(figure, Markup) else Markup(html_embed(figure))


def report_link(folder: Path, command: str, text: str) -> dict[str, str]:
    """The address of a command's report by its text, if it is in the folder of a run."""
    return {text: f"{command}/{REPORT}"} if (folder / command / REPORT).is_file() else {}
