"""`mesa-lens predict`: predicts the length at which each method fails, from one curve and the method's distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesa_lens.arguments import AddedOptions, Results, run_experiment
from probe.commands.predict.request import PredictRequest

HELP = "predict at which length each method fails, from the unmodified model's loss"
EXAMPLE = "mesa-lens predict --config leaky-rerope:k=2,log_n=false --check --out runs/predict"
OUT = "runs/predict"


def run(request: PredictRequest, options: AddedOptions) -> int:
    """Measures what is missing, then predicts."""
    from probe.commands.predict.plan import plan
    from probe.commands.predict.run import Predict

    return run_experiment(request, options, plan, Predict, _measured)


def _measured(plan: Any, out: Path, **how: Any) -> Results:
    from probe.commands.predict.prediction import started
    from probe.commands.predict.report import write
    from probe.commands.predict.run import FOLDER, Predict
    from probe.commands.predict.sentences import sentences
    from probe.experiment.run import run as run_plan

    journal, failed = run_plan(experiment := Predict(plan), out, **how)
    if left := len(experiment.tasks(journal.rows)):
        return Results(started(plan, left), "", len(failed), str(left))
    prediction, written = write(plan, journal.rows, out)
    files = f"wrote {out / FOLDER}: {', '.join(path.name for path in written)}"
    return Results(prediction, "\n\n".join([*sentences(prediction), files]), 0, "")
