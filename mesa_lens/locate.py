"""`mesa-lens locate`: finds the layers and heads where a method restores the loss beyond M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesa_lens.arguments import AddedOptions, Results, run_experiment
from probe.commands.locate.request import LocateRequest

HELP = "apply a method in one layer or head alone: what share of the loss comes back?"
EXAMPLE = "mesa-lens locate --out runs/demo"
OUT = "runs/locate"


def run(request: LocateRequest, options: AddedOptions) -> int:
    """Measures what is missing and writes its report."""
    from probe.commands.locate.plan import plan
    from probe.commands.locate.run import Locate

    return run_experiment(request, options, plan, Locate, _measured)


def _measured(plan: Any, out: Path, **how: Any) -> Results:
    from probe.commands.locate.report import write_locate_report
    from probe.commands.locate.results import write
    from probe.commands.locate.run import locate
    from probe.commands.locate.sentences import located_findings

    journal, failed = locate(plan, out, **how)
    summary = write(plan, journal, out)
    text = "\n\n".join("\n  ".join([heading, *lines]) for heading, lines in located_findings(summary))
    if journal.rows:
        text += f"\nwrote {write_locate_report(summary, out).parent}: report.html, summary.json, tables"
    return Results(summary, text, len(failed), str(summary.tasks_left or ""), summary.refusal)
