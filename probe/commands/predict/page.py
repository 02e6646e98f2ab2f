"""What the pages of `mesa-lens predict` show: excess loss by length, one method's distances, sentences."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from mesa.methods import Method
from mesa.plan import relative_positions
from probe.commands import Findings, RunFacts
from probe.commands.predict.formula import ORIGIN, REFERENCE, Law, far_keys_by_length, kind_sentence, length_grid
from probe.commands.predict.result import PREDICTION, Agreement, AtLength, MethodPrediction, Prediction, findings_of
from probe.figures import figure_data as fig
from probe.figures.export import Export, InNotebook
from probe.figures.section import Section, Table, as_text
from probe.statistics import tally
from probe.store.result_file import NOT_RECORDED
from probe.thresholds.failure import PredictedFailure
from probe.thresholds.stated_window import FAR_MULTIPLE, NATS_ABOVE

_EXCESS = "excess loss (nats/token)"
_QUERIES = 8
_METHODS = 6  # at most in a panel
_FAILS = fig.Rule(NATS_ABOVE, f"fails: {NATS_ABOVE} nats", fig.RED)


def prediction_chart(prediction: Prediction) -> fig.Chart:
    """Excess by length: predicted as lines with bands, measured as markers with intervals; a few methods a panel."""
    methods = {name: row for name, row in prediction.methods.items() if row.failure and not row.not_covered}
    origin, others = methods.pop("origin", None), [name for name in methods if name != "lm-infinite"]
    names = itertools.count()
    looks = {name: fig.STYLES.get(name) or fig.nth(next(names)) for name in others}
    count = max(1, math.ceil(len(others) / _METHODS))
    panels = []
    rules = (fig.trained_rule(prediction.trained_length), _FAILS)
    for part in np.array_split(others, count):
        shown = ({"origin": origin} if origin else {}) | {name: methods[name] for name in part.tolist()}
        lines = tuple(
            _line(name, entries, looks.get(name, fig.style(name)), side)
            for side in ("measured", "predicted")
            for name, row in shown.items()
            if (entries := getattr(row, side)) and (name, side) != ("origin", "predicted")
        )
        failures = ((name, at.length) for name in part.tolist() if (at := methods[name].failure))
        failing = fig.grouped((name, str(length or f"none up to {prediction.longest}")) for name, length in failures)
        panels.append(
            fig.Panel(
                ", ".join(dict.fromkeys(name.split(":")[0] for name in part.tolist())),
                "length (tokens)",
                _EXCESS,
                lines,
                fig.axis_range(lines, rules[1:]),
                rules=rules,
                x_ticks=fig.log_ticks(prediction.lengths),
                log_x=True,
                seen=f"Failure is predicted at, in tokens: {failing}" if failing else "No method here is covered",
            )
        )
    title = f"{prediction.model}: loss over lm-infinite by length; origin: measured; lines of others: predicted"
    if any(methods[name].measured for name in others):
        title += ", markers: measured"
    return fig.Chart(title, fig.same_range(panels))


def prediction_export(prediction: Prediction) -> Export:
    """The chart, and a table: excess (nats/token) by method and length with 95% ends, and failure lengths by method.

    NaN: not predicted, not measured, or no failure up to the longest length; `refusal` says why nothing is predicted.
    """
    if prediction.refusal:
        return Export({}, {})
    methods, lengths = prediction.methods.values(), prediction.lengths
    none = [(math.nan,) * 3] * len(lengths)
    variables: dict[str, tuple] = {}
    for side in ("predicted", "measured"):
        values = np.array([[entry.with_ends for entry in getattr(row, side)] or none for row in methods])
        for number, end in enumerate(("", "_low", "_high")):
            attrs = {"long_name": f"{side} excess over lm-infinite", "units": "nats/token"}
            variables[f"{side}{end}"] = (("method", "length"), values[..., number], attrs)
    failures = [(at.length, *at.ends) if (at := row.failure) else (None,) * 3 for row in methods]
    for end, column in zip(("", "_low", "_high"), np.array(failures, float).T, strict=True):
        variables[f"predicted_failure{end}"] = ("method", column, {"units": "tokens"})
    variables["refusal"] = ("method", [row.refusal for row in methods])
    attrs = {"model": prediction.model, "trained_length": prediction.trained_length}
    numbers = xr.Dataset(variables, {"method": list(prediction.methods), "length": lengths}, attrs)
    return Export({"prediction": prediction_chart(prediction)}, {"prediction": numbers})


def method_chart(law: Law, method: Method, lengths: Sequence[int], cost: float) -> fig.Chart:
    """The distances that the last query of the longest prompt gives its keys, and the predicted excess by length."""
    trained, longest, look = method.trained_length, max(lengths), fig.style(method.name)
    keys = np.arange(longest)
    distances = relative_positions(method.plan(longest), np.array([longest - 1]), keys)[0][::-1]
    seen = fig.Line(method.name, keys.astype(float), np.where(distances < 0, np.nan, distances), *look)
    grid = length_grid(lengths, trained)
    excess = law.at(far_keys_by_length(method, grid, _QUERIES)) + cost
    line = fig.Line(method.name, np.array(grid, float), excess, *look)
    curve = fig.Line("origin", *_origin(law, grid), *fig.style("origin"))
    rule = fig.Rule(float(trained), "M", fig.RED)
    panels = (
        fig.Panel(
            "distances of the last query",
            "true distance (tokens)",
            "distance given",
            (seen,),
            fig.axis_range([seen], [rule]),
            rules=(rule,),
        ),
        fig.Panel(
            "predicted loss",
            "length (tokens)",
            _EXCESS,
            (curve, line),
            fig.axis_range([curve, line], [_FAILS]),
            rules=(fig.trained_rule(trained), _FAILS),
            x_ticks=fig.log_ticks(lengths),
            log_x=True,
            seen=f"At {longest} tokens its predicted excess loss over lm-infinite is {excess[-1]:z.2f} nats/token.",
        ),
    )
    return fig.Chart(f"{method.name}: distances, and the loss that they predict", panels)


def _origin(law: Law, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    places = np.clip(np.array(lengths) - law.trained_length, 0, len(law.excess) - 1)
    return np.array(lengths, float), law.excess[places]


def _line(name: str, entries: Sequence[AtLength], look: fig.Look, side: str) -> fig.Line:
    x = np.array([entry.length for entry in entries], float)
    y, low, high = np.array([entry.with_ends for entry in entries]).T
    colour, dash, symbol = look
    if side == "predicted":
        return fig.Line(name, x, y, colour, dash, "none", interval=(low, high), band=True)
    return fig.Line(name, x, y, colour, dash if name == "origin" else "none", symbol, interval=(low, high))


def failure_table(prediction: Prediction) -> Table:
    """Failure lengths and excess at the longest length, a row a method; next to what was measured, where it was."""
    longest = prediction.longest
    is_checked = any(row.measured for name, row in prediction.methods.items() if name != ORIGIN)
    measured = ("measured", "excess") if is_checked else ()
    head = ("method", "predicted failure", "interval", f"excess at {longest}", *measured)
    rows = [_table_row(name, row, longest, is_checked) for name, row in prediction.methods.items()]
    return Table("", head, tuple(rows))


def left_out(prediction: Prediction) -> list[str]:
    """The methods that nothing is predicted of, a sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for name, row in prediction.methods.items():
        if row.refusal:
            by_reason.setdefault(row.refusal, []).append(name)
    return [f"Not predicted: {', '.join(names)}: {reason}." for reason, names in by_reason.items()]


def law_sentences(prediction: Prediction) -> list[str]:
    """What Origin loses, what is taken for the cause and how it was fitted, and how well it fits."""
    law, trained, longest = prediction.law, prediction.trained_length, prediction.longest
    if law is None:
        return []
    fails, (low, high) = law.origin_fails, law.needed_factors
    meanings = {_meaning(power) for power in (law.power_over_no_gap, law.power_over_masked)}
    meaning = f"so {meanings.pop()}" if len(meanings) == 1 else "but what counts is open: the two fits differ"
    text = [
        f"The excess loss of origin over {REFERENCE} is {law.excess.value[-1]:z.2f} nats/token at {longest} tokens. "
        f"origin {'does not fail up to there' if fails is None else f'fails at {fails} tokens'} (M = {trained}, "
        f"{prediction.texts} texts). A method fails from where its excess loss is {NATS_ABOVE} nats/token or more.",
        "Far keys are those at a distance of M or more. Z is their weighted number: each counts (distance - M + 1)^p. "
        "A method's excess loss is predicted as that of origin at the length where its Z is the same, plus what the "
        "method costs inside M.",
        f"Here p = {law.power}, {meaning}. It is fitted to position gaps, which move "
        f"keys away at fixed length ({law.power_over_no_gap:z.1f} by their loss over no gap, "
        f"{law.power_over_masked:z.1f} over the same keys masked).",
    ]
    if kind := kind_sentence(law.kind, fails):
        text.insert(1, kind)
    if law.scale_power:
        text.append(
            f"Where a method multiplies queries by a scale (log n), Z is divided by scale^q; q = {law.scale_power}."
        )
    text.append(
        f"{prediction.misfit} Single gaps would need {low:.2g} to {high:.2g} times their Z; the intervals allow it."
    )
    if (longest if fails is None else fails) >= FAR_MULTIPLE * trained:
        text.append(
            f"origin passes up to {FAR_MULTIPLE}x M or more: M may be too small, and then nothing here holds; "
            "`mesa-lens check --estimate-window` estimates M."
        )
    return text


def _meaning(power: float) -> str:
    """What a power says of far keys."""
    if power < 0.3:
        return "it is their number that counts"
    if power < 2:
        return "both their number and their distance count"
    return "the farthest of them count most"


def _table_row(name: str, row: MethodPrediction, longest: int, is_checked: bool) -> tuple[str, ...]:
    predicted = ("-", "-", "-")
    if name in (ORIGIN, REFERENCE):
        predicted = ("(measured)" if name == ORIGIN else "(reference)", "", "")
    elif row.not_covered:
        predicted = ("not covered", "", "")
    elif row.failure:
        ends = [_length(end, longest) for end in row.failure.ends]
        interval = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        predicted = (_length(row.failure.length, longest), interval, f"{row.predicted[-1].excess:z.2f}")
    if not is_checked:
        return (name, *predicted)
    measured = ("-", "-")
    if row.measured:
        measured = (_length(row.measured_failure, longest), f"{row.measured[-1].excess:z.2f}")
    return (name, *predicted, *measured)


def _length(length: int | None, longest: int) -> str:
    return f"none up to {longest}" if length is None else str(length)


def title(prediction: Prediction) -> str:
    """The page's heading."""
    return f"{prediction.model}: predicted to fail beyond M = {prediction.trained_length} tokens"


def sections(prediction: Prediction) -> list[Section]:
    """The law, failure lengths, how they agree with what was measured, and what is left out."""
    if prediction.refusal:
        return [Section(sentences=[f"Nothing is predicted: {prediction.refusal}."])]
    agreement = [_agreement(text, of) for text, of in prediction.agreement.items() if of.points]
    text = [f"Text: {prediction.text_source or NOT_RECORDED}."]
    known = prediction.origin or {}
    text += [f"Weights: {known['quantization']}."] if "quantization" in known else []
    text += [f"Tokenizer: {known['tokenizer_note']}."] if "tokenizer_note" in known else []
    return [
        Section(
            "", law_sentences(prediction), {"prediction": prediction_chart(prediction)}, [failure_table(prediction)]
        ),
        *(Section("", sentences) for sentences in (agreement, left_out(prediction), text) if sentences),
    ]


def _agreement(text: str, agreement: Agreement) -> str:
    rank = "" if math.isnan(agreement.auc) else f", AUC of fails or passes {agreement.auc:z.2f}"
    return (
        f"Predicted against measured, {text}: rms {agreement.rms:z.2f} nats/token, bias {agreement.bias:+z.2f}{rank}; "
        f"failure length exact for {tally(agreement.exact, agreement.methods)}, "
        f"within one step for {agreement.within_one_step} ({agreement.fails} fail)."
    )


def findings(folder: Path, facts: RunFacts) -> Findings:
    """For the verdict of the run in a folder."""
    return findings_of(PREDICTION.find(folder), facts)


def predicted(folder: Path, facts: RunFacts) -> dict[str, PredictedFailure]:
    """For the curves of the run in a folder: the failure of each method that has one."""
    return findings(folder, facts).predicted


def in_notebook(folder: Path) -> InNotebook:
    """The table, text and figures; NotFound where nothing was predicted."""
    prediction = PREDICTION.read(folder)
    export = prediction_export(prediction)
    return export.numbers.get("prediction", xr.Dataset()), as_text(sections(prediction)), export, None
