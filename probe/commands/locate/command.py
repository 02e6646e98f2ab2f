"""`mesa-lens locate` from its plan to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.commands.locate.plan import LocatePlan
from probe.commands.locate.report import write_locate_report
from probe.commands.locate.results import write
from probe.commands.locate.run import locate
from probe.commands.locate.sections import places
from probe.experiment.run import CommandResult
from probe.figures.section import as_text


def run_and_report(plan: LocatePlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = locate(plan, out, **how)
    summary = write(plan, journal, out)
    text = as_text(places(summary))
    if journal.rows:
        text += f"\n\nwrote {write_locate_report(summary, out).parent}: report.html, summary.json, tables"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""), summary.refusal)
