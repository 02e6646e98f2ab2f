"""A prediction as JSON, table and figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from probe.evaluation.summary import Table, plain_table
from probe.experiment.journal import Rows
from probe.figures.prediction import prediction_chart
from probe.figures.render import rendered
from probe.files import write as write_file
from probe.files import write_result
from probe.law.calibration import ORIGIN, REFERENCE
from probe.law.plan import PredictPlan
from probe.law.prediction import predict
from probe.law.run import FOLDER, SUMMARY, losses_of
from probe.store.results import misfit_text
from probe.thresholds.stated_window import FAR, NATS_ABOVE


def write(plan: PredictPlan, rows: Rows, out: Path) -> tuple[dict[str, Any], list[Path]]:
    """Writes prediction.json, .csv (excess by length), .png and .html; returns the summary and the paths."""
    summary = predict(plan, losses_of(plan, rows))
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


def sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    """The calibration, a table of failure lengths, and how it agrees with what was measured."""
    if summary["refusal"]:
        yield f"Nothing is predicted: {summary['refusal']}."
        return
    yield _calibrated(summary)
    longest = max(summary["lengths"])
    is_checked = any("measured" in row for name, row in summary["methods"].items() if name != ORIGIN)
    measured = ("measured", "excess") if is_checked else ()
    head = ("method", "predicted failure", "interval", f"excess at {longest}", *measured)
    rows = [_table_row(name, row, longest, is_checked) for name, row in summary["methods"].items()]
    yield plain_table(Table("", head, tuple(rows)))
    for text, agreement in summary.get("agreement", {}).items():
        if agreement["points"]:
            rank = "" if agreement["auc"] is None else f", AUC of fails or holds {agreement['auc']:z.2f}"
            yield (
                f"Predicted against measured, {text}: rms {agreement['rms']:z.2f} nats/token, "
                f"bias {agreement['bias']:+z.2f}{rank};\n"
                f"failure length within one step for {agreement['within_one_step']} of {agreement['methods']} ("
                f"{agreement['fails']} of them fail)."
            )
    refused = {name: row["refusal"] for name, row in summary["methods"].items() if row["refusal"]}
    names = {reason: ", ".join(name for name in refused if refused[name] == reason) for reason in refused.values()}
    if refused:
        yield "\n".join(f"Not predicted: {names[reason]}: {reason}." for reason in names)


def _calibrated(summary: Mapping[str, Any]) -> str:
    """What Origin loses, and the law that was fitted."""
    law, trained, longest = summary["law"], summary["trained_length"], max(summary["lengths"])
    factor = f"scale^-{_with_ends(law['scale_power'])} x " if law["scale_power"] else ""
    fails, (low, high) = law["origin_fails"], law["needed_factors"]
    text = (
        f"Origin loses {law['excess']['value'][-1]:z.2f} nats/token over {REFERENCE} at {longest} tokens, and "
        f"{'does not fail up to there' if fails is None else f'fails at {fails}'} "
        f"(M = {trained}, {summary['texts']} texts).\n"
        f"Z = {factor}sum of (distance - M + 1)^p over far keys, p = {_with_ends(law['power'])} ("
        f"{law['power_over_no_gap']:z.1f} by the loss over no gap, {law['power_over_masked']:z.1f} over masked keys); "
        f"gaps ask for {low:.2g} to {high:.2g} times this Z.\n"
        f"{misfit_text(summary)}\n"
        f"Fails: {NATS_ABOVE} nats/token or more over {REFERENCE} from there on."
    )
    if (longest if fails is None else fails) < FAR * trained:
        return text
    return (
        f"{text}\nThat is {FAR} M or more: M may be stated too small, and then nothing here holds; `mesa-lens "
        "estimate-window` estimates M."
    )


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


def _table_row(name: str, row: Mapping[str, Any], longest: int, is_checked: bool) -> tuple[str, ...]:
    predicted = ("-", "-", "-")
    if name in (ORIGIN, REFERENCE):
        predicted = ("(measured)" if name == ORIGIN else "(reference)", "", "")
    elif "predicted" in row:
        ends = [_length(end, longest) for end in row["failure"]["ends"]]
        interval = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        predicted = (_length(row["failure"]["length"], longest), interval, f"{row['predicted'][-1]['excess']:z.2f}")
    if not is_checked:
        return (name, *predicted)
    measured = ("-", "-")
    if "measured" in row:
        measured = (_length(row["measured_failure"], longest), f"{row['measured'][-1]['excess']:z.2f}")
    return (name, *predicted, *measured)


def _length(length: int | None, longest: int) -> str:
    return f"none up to {longest}" if length is None else str(length)


def _with_ends(value: Mapping[str, Any]) -> str:
    return f"{value['value']:z.1f} [{value['ends'][0]:z.1f}, {value['ends'][1]:z.1f}]"
