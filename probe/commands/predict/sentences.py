"""A prediction in words: the law, a table of failure lengths, what is left out. Loads no torch."""

from __future__ import annotations

from probe.commands.predict.calibration import ORIGIN, REFERENCE
from probe.commands.predict.kind import kind_sentence
from probe.commands.predict.result import MethodPrediction, Prediction
from probe.tables import Table
from probe.thresholds.stated_window import FAR_MULTIPLE, NATS_ABOVE


def failure_table(prediction: Prediction) -> Table:
    """Failure lengths and excess at the longest length, a row a method; beside what was measured, where it was."""
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
    text = [
        f"The excess loss of origin over {REFERENCE} is {law.excess.value[-1]:z.2f} nats/token at {longest} tokens. "
        f"origin {'does not fail up to there' if fails is None else f'fails at {fails} tokens'} (M = {trained}, "
        f"{prediction.texts} texts). A method fails from where its excess loss is {NATS_ABOVE} nats/token or more.",
        "Far keys are those at a distance of M or more. Z is their weighted number: each counts (distance - M + 1)^p. "
        "A method's excess loss is predicted as that of origin at the length where its Z is the same, plus what the "
        "method costs inside M.",
        f"Here p = {law.power}, so {_meaning(law.power.value)}. It is fitted to position gaps, which move "
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
            "`mesa-lens estimate-window` estimates M."
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
