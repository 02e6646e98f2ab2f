"""Writes the report of `mesa-lens eval`."""

from __future__ import annotations

from pathlib import Path

from probe.commands.eval.result import Evaluated
from probe.commands.eval.sections import sections, title
from probe.figures.section import Section, page, provenance
from probe.files import write

REPORT = "report.html"


def write_eval_report(result: Evaluated, folder: Path) -> Path:
    """Writes report.html, which opens offline, into the folder of an evaluation; returns its path."""
    write(folder / REPORT, render_evaluation(result).encode())
    return folder / REPORT


def render_evaluation(result: Evaluated) -> str:
    """The report's HTML, beside which samples.csv lies."""
    files = Section("Tables", links={"samples.csv": "samples.csv"})
    return page(title(result), [*sections(result), files, provenance(result)])
