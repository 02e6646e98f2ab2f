"""`mesa-lens predict` from its plan to its report."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from probe.commands.predict.figures import prediction_chart
from probe.commands.predict.plan import PredictPlan, plan
from probe.commands.predict.prediction import predict, started
from probe.commands.predict.request import PredictRequest
from probe.commands.predict.result import PREDICTION, Prediction
from probe.commands.predict.run import FOLDER, Predict, losses_of
from probe.commands.predict.sections import sections, title
from probe.experiment.estimate import estimated
from probe.experiment.journal import JournalRows
from probe.experiment.lock import owned
from probe.experiment.run import CommandResult
from probe.experiment.run import run as run_plan
from probe.experiment.runner import LOCAL, Runner
from probe.figures.render import rendered
from probe.figures.section import as_text, page
from probe.files import write as write_file

__all__ = ["estimate", "plan", "run_and_report"]
estimate = partial(estimated, Predict)
"""What a plan takes."""


def predict_failure(
    request: PredictRequest,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> Prediction:
    """Predicts the length at which each method fails by loss, from one measured curve (docs/law.md).

    Measures what is missing in the folder and writes `predict/` there; the same call continues an interrupted one.

    Args:
        request: What to predict.
        out: The folder, e.g. of a run.
        overwrite: Whether what is there is removed first; default False.
        until: No task begins after this time, in seconds of `time.monotonic`. Default: no limit.
        runner: Who runs the tasks. Default: this process.

    Returns:
        A `Prediction`: `methods` by name, each with `failure.length` in tokens (None: none up to the longest) and
        `predicted` excess loss in nats/token; `misfit` of the law; `refusal`, why nothing is predicted, else empty;
        `tasks_left`, where something is missing.

    Raises:
        Refused: A value is wrong.
        FileExistsError: The folder holds another run.

    Examples:
        >>> request = probe.PredictRequest(methods="rerope", lengths=(2048,), samples=2)
        >>> prediction = probe.predict_failure(request, "runs/example")
        >>> prediction.methods["rerope"].failure.length is None  # 8x the trained length
        True
        >>> round(prediction.methods["rerope"].predicted[0].excess, 2)  # nats/token at 2048
        0.08
    """
    planned, out = plan(request), Path(out)
    with owned(out):
        return run_and_report(planned, out, overwrite=overwrite, until=until, runner=runner).summary


def run_and_report(plan: PredictPlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = run_plan(experiment := Predict(plan), out, **how)
    if left := len(experiment.tasks(journal.rows)):
        return CommandResult(started(plan, left), "", len(failed), str(left))
    prediction, written = write(plan, journal.rows, out)
    files = f"wrote {out / FOLDER}: {', '.join(path.name for path in written)}"
    return CommandResult(prediction, f"{as_text(sections(prediction))}\n\n{files}", 0, "")


def write(planned: PredictPlan, rows: JournalRows, out: Path) -> tuple[Prediction, list[Path]]:
    """Writes prediction.json, .csv (excess by length), .png and .html; returns the prediction and the paths."""
    prediction, path = predict(planned, losses_of(planned, rows)), out / PREDICTION.path
    PREDICTION.write(out, prediction)
    if prediction.refusal:
        return prediction, [path]
    paths = [path, *(path.with_suffix(f".{form}") for form in ("csv", "png", "html"))]
    write_file(paths[1], pd.DataFrame(_csv_rows(prediction)).to_csv(index=False).encode())
    write_file(paths[2], rendered(prediction_chart(prediction), "png"))
    write_file(paths[3], page(title(prediction), sections(prediction)).encode())
    return prediction, paths


def _csv_rows(prediction: Prediction) -> Iterator[dict[str, str | int]]:
    for name, row in prediction.methods.items():
        for number, length in enumerate(prediction.lengths):
            cells: dict[str, str | int] = {"method": name, "length": length}
            for side, entries in (("predicted", row.predicted), ("measured", row.measured)):
                values = entries[number].with_ends if entries else (math.nan,) * 3
                texts = ["" if math.isnan(value) else f"{value:z.4f}" for value in values]
                cells |= dict(zip((side, f"{side}_low", f"{side}_high"), texts, strict=True))
            yield cells
