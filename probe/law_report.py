"""A prediction as JSON, table and figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from probe.experiment.journal import Rows
from probe.experiment.lock import owned
from probe.experiment.run import run
from probe.experiment.runner import LOCAL, Runner
from probe.figures.prediction import prediction_chart
from probe.figures.render import rendered
from probe.files import write as write_file
from probe.files import write_result
from probe.law.plan import PredictPlan, plan
from probe.law.prediction import predict
from probe.law.run import FOLDER, SUMMARY, Predict, losses_of
from probe.request import PredictRequest


def predict_failure(
    request: PredictRequest,
    out: Path,
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> dict[str, Any]:
    """Predicts at which length each method fails, by the law of docs/law.md; returns what prediction.json holds.

    Measures what is missing in the folder `out`, and writes `predict/` in it. Lengths are in tokens, losses in
    nats/token. Without `refusal`, `methods` has of each a `failure` with its `length` (None: none up to the longest)
    and 95% interval `ends`, or its own `refusal`. What `until` or lost workers left undone is counted in `tasks_left`,
    which is returned in place of it; the same call continues. Raises what `plan`, `run` and `owned` raise.
    """
    planned = plan(request)
    with owned(out):
        journal, failed = run(experiment := Predict(planned), out, overwrite=overwrite, until=until, runner=runner)
        if left := len(experiment.tasks(journal.rows)):
            return {"tasks_left": left, "failed": len(failed)}
        return write(planned, journal.rows, out)[0]


def write(planned: PredictPlan, rows: Rows, out: Path) -> tuple[dict[str, Any], list[Path]]:
    """Writes prediction.json, .csv (excess by length), .png and .html; returns the summary and the paths."""
    summary = predict(planned, losses_of(planned, rows))
    folder = out / FOLDER
    paths = [folder / SUMMARY]
    write_result(paths[0], summary)
    if summary["refusal"]:
        return summary, paths
    paths.append(folder / "prediction.csv")
    write_file(paths[-1], pd.DataFrame(_csv_rows(summary)).to_csv(index=False).encode())
    for form in ("png", "html"):
        paths.append(folder / f"prediction.{form}")
        write_file(paths[-1], rendered(prediction_chart(summary), form))
    return summary, paths


def _csv_rows(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, row in summary["methods"].items():
        for number, length in enumerate(summary["lengths"]):
            cells: dict[str, Any] = {"method": name, "length": length}
            for side in ("predicted", "measured"):
                entry = row[side][number] if side in row else {"excess": None, "excess_ends": (None, None)}
                values = (entry["excess"], *entry["excess_ends"])
                texts = ["" if value is None else f"{value:z.4f}" for value in values]
                cells |= dict(zip((side, f"{side}_low", f"{side}_high"), texts, strict=True))
            yield cells
