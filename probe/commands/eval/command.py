"""`mesa-lens eval` from its plan to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.commands.eval.figures import write_curves
from probe.commands.eval.plan import EvalPlan
from probe.commands.eval.run import run as run_cells
from probe.commands.eval.sections import notes, sections, title
from probe.commands.eval.summary import score_tables
from probe.experiment.run import CommandResult
from probe.figures.section import Section, as_text, provenance, write_page


def run_and_report(plan: EvalPlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    summary = run_cells(plan, out, **how)
    written = write_curves(summary, out)
    if summary.cells:
        parts = [*sections(summary), provenance(summary)]
        written.append(write_page(out, title(summary), parts, {"samples": None}))
    left = f"{summary.tasks_left} of {len(plan.cells)}" if summary.tasks_left else ""
    text = ""
    if summary.cells:
        files = ", ".join(["samples.csv", "summary.json", *(path.name for path in written)])
        scores = Section(tables=list(score_tables(summary.cells)))
        text = as_text([scores, Section("", [*notes(summary), f"wrote {out}: {files}"])])
    return CommandResult(summary, text, len(summary.failed), left)
