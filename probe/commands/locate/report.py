"""Writes the report of `mesa-lens locate`."""

from __future__ import annotations

from pathlib import Path

from probe.commands.locate.export import TABLES, located_tables
from probe.commands.locate.result import LOCATED, Located
from probe.commands.locate.sections import sections, title
from probe.figures.section import write_page

LOCATE_REPORT = LOCATED.path.with_name("report.html")
"""Below the folder of the run."""


def write_locate_report(summary: Located, out: Path) -> Path:
    """Writes locate/report.html, which opens offline, and its tables as csv beside it; returns the report's path."""
    path = out / LOCATE_REPORT
    for name in TABLES:
        path.with_name(f"{name}.csv").unlink(missing_ok=True)  # of an earlier run
    return write_page(path, title(summary), sections(summary), located_tables(summary, {}))
