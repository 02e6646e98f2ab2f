"""The verdict as plain text and as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from probe.evaluation.summary import Table, plain_table
from probe.store.results import VERDICT
from probe.thresholds.findings import table as score_tables

_WIDTH = 110


class Verdict(dict[str, Any]):
    """A verdict that shows itself: a table in a notebook, a text in a terminal."""

    def __repr__(self) -> str:
        """Sentences, table and notes."""
        return text(self)

    def _repr_html_(self) -> str:
        return html(self)


def told(summary: Mapping[str, Any]) -> str:
    """What the terminal is told of a run: the verdict, then the scores it rests on."""
    return f"{text(summary[VERDICT])}\n\n{score_tables(dict(summary))}"


def text(verdict: Mapping[str, Any]) -> str:
    """Sentences, table and notes, for a terminal."""
    told = (_filled(f"{each['heading']}: {each['text']}") for each in verdict["told"])
    table = plain_table(Table("", tuple(verdict["head"]), tuple(map(tuple, verdict["cells"]))))
    notes = map(_filled, verdict["notes"])
    return "\n\n".join(["\n".join(told), table, "\n".join(notes)])


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False)  # methods' names have hyphens


def html(verdict: Mapping[str, Any]) -> str:
    """The same as a part of a page; every text escaped. On narrow screens the rows stand below each other."""
    loader = jinja2.FileSystemLoader(Path(__file__).parents[1])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("verdict.html").render(verdict=verdict)
