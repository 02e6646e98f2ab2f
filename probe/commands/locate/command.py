"""`mesa-lens locate` from its plan to its report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from probe.commands.locate.export import write_located
from probe.commands.locate.plan import LocatePlan, plan
from probe.commands.locate.result import LOCATED
from probe.commands.locate.results import summarize
from probe.commands.locate.run import Locate, locate
from probe.commands.locate.sections import places
from probe.experiment.estimate import estimated
from probe.experiment.run import CommandResult
from probe.figures.section import as_text

__all__ = ["estimate", "plan", "run_and_report"]
estimate = partial(estimated, Locate)
"""What a plan takes."""


def run_and_report(plan: LocatePlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = locate(plan, out, **how)
    summary = summarize(plan, journal)
    text = as_text(places(summary))
    if journal.rows:
        LOCATED.write(out, summary)
        text += f"\n\nwrote {write_located(out, summary).parent}: report.html, summary.json, tables"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""), summary.refusal)
