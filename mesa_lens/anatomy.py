"""`mesa-lens anatomy`: measures what every head attends to under each method, and which heads retrieve a passkey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesa_lens.arguments import AddedOptions, Results, run_experiment
from probe.commands.anatomy.request import AnatomyRequest

HELP = "measure what every head attends to under each method"
EXAMPLE = "mesa-lens anatomy --out runs/demo"
OUT = "runs/anatomy"


def run(request: AnatomyRequest, options: AddedOptions) -> int:
    """Measures what is missing and writes its report."""
    from probe.commands.anatomy.plan import plan
    from probe.commands.anatomy.run import AnatomyExperiment

    return run_experiment(request, options, plan, AnatomyExperiment, _measured)


def _measured(plan: Any, out: Path, **how: Any) -> Results:
    from probe.commands.anatomy.report import write_anatomy_report
    from probe.commands.anatomy.results import write
    from probe.commands.anatomy.run import AnatomyExperiment
    from probe.commands.anatomy.sentences import anatomy_findings, head_table
    from probe.experiment.run import run as run_plan

    journal, failed = run_plan(AnatomyExperiment(plan), out, **how)
    summary = write(plan, journal, out)
    paragraphs = [head_table(summary), *anatomy_findings(summary)]
    if journal.rows:
        paragraphs.append(f"wrote {write_anatomy_report(summary, out).parent}: report.html, summary.json, tables")
    return Results(summary, "\n".join(filter(None, paragraphs)), len(failed), str(summary.tasks_left or ""))
