"""`mesa-lens anatomy` from its plan to its report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from probe.commands.anatomy.export import write_anatomy
from probe.commands.anatomy.plan import AnatomyPlan, plan
from probe.commands.anatomy.result import ANATOMY, TOKENS
from probe.commands.anatomy.results import summarize, token_summary
from probe.commands.anatomy.run import AnatomyExperiment
from probe.commands.anatomy.sections import headline
from probe.experiment.estimate import estimated
from probe.experiment.run import CommandResult
from probe.experiment.run import run as run_plan
from probe.figures.section import as_text

__all__ = ["estimate", "plan", "run_and_report"]
estimate = partial(estimated, AnatomyExperiment)
"""What a plan takes."""


def run_and_report(plan: AnatomyPlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = run_plan(AnatomyExperiment(plan), out, **how)
    summary = summarize(plan, journal)
    text = as_text(headline(summary))
    if journal.rows:
        ANATOMY.write(out, summary)
        if tokens := token_summary(plan, journal):
            TOKENS.write(out, tokens)
        text += f"\n\nwrote {write_anatomy(out, summary).parent}: report.html, summary.json, tables"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""))
