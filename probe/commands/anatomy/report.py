"""Writes the report of `mesa-lens anatomy`."""

from __future__ import annotations

from pathlib import Path

from probe.commands.anatomy.export import anatomy_tables
from probe.commands.anatomy.result import ANATOMY, Anatomy
from probe.commands.anatomy.sections import sections, title
from probe.figures.section import write_page

ANATOMY_REPORT = ANATOMY.path.with_name("report.html")
"""Below the folder of the run."""


def write_anatomy_report(summary: Anatomy, out: Path) -> Path:
    """Writes anatomy/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    return write_page(out / ANATOMY_REPORT, title(summary), sections(summary), anatomy_tables(summary, {}))
