"""`mesa-lens predict` from its plan to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.commands.predict.plan import PredictPlan
from probe.commands.predict.prediction import started
from probe.commands.predict.report import write
from probe.commands.predict.run import FOLDER, Predict
from probe.commands.predict.sections import sections
from probe.experiment.run import CommandResult
from probe.experiment.run import run as run_plan
from probe.figures.section import as_text


def run_and_report(plan: PredictPlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = run_plan(experiment := Predict(plan), out, **how)
    if left := len(experiment.tasks(journal.rows)):
        return CommandResult(started(plan, left), "", len(failed), str(left))
    prediction, written = write(plan, journal.rows, out)
    files = f"wrote {out / FOLDER}: {', '.join(path.name for path in written)}"
    return CommandResult(prediction, f"{as_text(sections(prediction))}\n\n{files}", 0, "")
