"""A run's summary in words and tables: what the verdict rests on, scores by method, differences to the reference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from probe.evaluation.summary import Table, plain_table
from probe.statistics import shown
from probe.thresholds.calls import ranges
from probe.thresholds.control import ALPHA

_SCORES = {"NLL": "tail_nll", "passkey": "passkey"}


def findings(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """(heading, sentences) pairs: drift prompt by prompt, thresholds dim by dim, the control beside them."""
    return [
        ("Drift, prompt by prompt", _where(summary)),
        ("Thresholds, dim by dim", _thresholds(summary)),
        ("Negative control", _control(summary)),
    ]


def _where(summary: dict[str, Any]) -> str:
    drift = summary["drift"]
    if isinstance(drift, str):
        return f"Drift could not be judged: {drift}."
    return " ".join(_drift(prompt, row, summary["reference"]) for prompt, row in drift["prompts"].items())


def _drift(prompt: str, drift: dict[str, Any], reference: str) -> str:
    """Where the reference's states leave their in-window range, on one prompt."""
    call = next(row for row in drift["methods"] if row["method"] == reference)
    on = f"On {prompt}, the states of {reference}"
    untrusted = ""
    if call["untrusted"]:
        one = len(call["untrusted"]) == 1
        alarm = ("Layer", "alarms", "is") if one else ("Layers", "alarm", "are")
        untrusted = f" {alarm[0]} {ranges(call['untrusted'])} {alarm[1]} inside the window and {alarm[2]} not judged."
    if call["reason"]:
        return f"{on} cannot be judged ({call['text']})."
    if call["length"] is None and untrusted:
        return f"{on} keep to their in-window range in the layers that can be judged ({call['text']}).{untrusted}"
    if call["length"] is None:
        return f"{on} keep to their in-window range in every layer ({call['text']})."
    until = max(call["layers"].values())
    leave = "leave" if call["high"] is not None else "may leave"
    text = f"{on} {leave} their in-window range first at {_position(call)}, in layer {call['layer']}"
    text += f", and in {len(call['layers'])} layers ({ranges(call['layers'])}) by {until}."
    if call["before"] is not None:
        text += f" It began before M, at {call['before']}, among positions that few training texts reach."
    if drift["high_variance"]:
        text += f" Cannot tell in layers {ranges(drift['high_variance'])}, whose states move as much inside the window."
    text += untrusted
    dims = ", ".join(f"{row['layer']}:{row['dim']} ({row['share']:.0%})" for row in drift["dims"][:3])
    return f"{text} Largest shares, by layer:dim: {dims}." if dims else text


def _position(call: dict[str, Any]) -> str:
    """A call with its interval, where that is wider."""
    low, high = call["low"], call["high"]
    if low is None:
        return f"{call['length']} (most resamples call nothing)"
    interval = "" if low == high == call["length"] else f" (95% interval {low} to {high or 'none'})"
    return f"{call['length']}{interval}"


def _thresholds(summary: dict[str, Any]) -> str:
    if (summary.get("stated_window") or {}).get("is_wrong"):
        return f"Thresholds are not judged: {summary['control']}."
    searched, prompt = summary["searched"], summary["prompt"]
    qualified = summary["qualified"][prompt]
    share = f"{qualified} of {searched} (layer, dim) pairs ({qualified / searched:.1%})"
    others = ", ".join(f"{count} on {name}" for name, count in summary["qualified"].items() if name != prompt)
    text = f"Dim by dim (the rule “paper”), {share} of {summary['hook']} on {prompt} show an observable threshold"
    text += f"; {others}." if others else "."
    if summary["best"]:
        first = summary["best"][0]
        doubt = ", which drift cannot judge: false alarms" if first["layer"] in _unjudged(summary) else ""
        reference = summary["reference"]
        predicted = next(row for row in summary["methods"] if row["method"] == reference)["predicted_by_thresholds"]
        text += (
            f" The highest score is {first['score']:.0f}, of dim {first['dim']} in layer {first['layer']}{doubt}. "
            f"Median crossing of {reference} over the {predicted['judged']} judged of the best {predicted['chosen']} "
            f"dims: {predicted['text']}."
        )
    return text


def _unjudged(summary: dict[str, Any]) -> list[int]:
    """The layers in which drift is not judged under the reference, on the headline's prompt."""
    if isinstance(summary["drift"], str):
        return []
    methods = summary["drift"]["prompts"][summary["prompt"]]["methods"]
    return next(row["untrusted"] for row in methods if row["method"] == summary["reference"])


def _control(summary: dict[str, Any]) -> str:
    control = summary["control"]
    if isinstance(control, str):
        return f"The negative control could not be made: {control}."
    rows, places, searched = control["prompts"][summary["prompt"]], control["place"], control["searched"]
    inside, matched = (sorted(count / searched for count in rows[name]) for name in ("qualified", "matched"))
    qualified = summary["qualified"][summary["prompt"]]
    rates = ", ".join(f"{name} {share:.0%}" for name, share in rows["false_predictions"].items())
    text = (
        f"Dim by dim, the same search put at {len(places)} positions from {places[0]} to {places[-1]}, where the model "
        f"works, calls {inside[0]:.1%} to {inside[-1]:.1%} of the pairs observable (median {median(inside):.1%}); at M "
        f"with as many positions {matched[0]:.1%} to {matched[-1]:.1%} ({median(matched):.1%}), with all of them "
        f"{qualified / searched:.1%}. From {control['least']} dims on it predicts; shares of the positions with a "
        f"false prediction: {rates}."
    )
    if not qualified:
        return f"{text} No threshold was found, so nothing is predicted."
    if rows["as_many"] > 0.5:
        return f"{text} That is no more than the control: the thresholds found here say nothing about M."
    if rows["as_many"] > ALPHA:
        text += f" At {rows['as_many']:.0%} of the positions no fewer are found than at M: M is not told from them."
    return text


def table(summary: dict[str, Any]) -> str:
    """Plain text, one line a method: predicted failure and scores, then differences to the reference."""
    head = ("method", "predicted", *_columns(summary))
    rows = []
    for row in summary["methods"]:
        scores = (_number(row["scores"][length][name]) for name, length in _places(summary))
        rows.append((row["method"], predicted_text(summary, row), *scores))
    compared = difference_table(summary)
    parts = [Table("", head, tuple(rows)), *([compared] if compared else [])]
    return "\n\n".join(map(plain_table, parts))


def difference_table(summary: dict[str, Any]) -> Table | None:
    """Each method's scores less the reference's on the same prompts; None where nothing was compared."""
    compared = [row for row in summary["methods"] if any(map(_differences, row["scores"].values()))]
    if not compared:
        return None
    rows = []
    for row in compared:
        less = [row["scores"][length].get(f"{name}_difference") for name, length in _places(summary)]
        cells = ("-" if mean is None else shown(mean["mean"], mean["low"], mean["high"], "+z.2f") for mean in less)
        rows.append((row["method"], *cells))
    title = f"difference to {summary['reference']} on the same prompts [95% interval, paired]"
    return Table(title, ("method", *_columns(summary)), tuple(rows))


def predicted_text(summary: dict[str, Any], row: dict[str, Any]) -> str:
    """A method's prediction; of a method whose positions follow a pass's length, with the length they are of."""
    text = row["predicted"]["text"]
    follows = row["predicted"]["length"] is not None and row["method"] in summary.get("follows_length", ())
    return f"{text} (in prompts of {summary['pass_length']})" if follows else text


def score_text(scores: dict[str, Any], name: str) -> str:
    """A score with its interval, where it has one; a dash where it was not measured."""
    low, high = scores.get(f"{name}_interval", (None, None))
    return "–" if scores[name] is None else shown(scores[name], low, high, "z.2f")


def spread(counts: Sequence[int], searched: int) -> str:
    """Counts as shares of `searched`: least, median, most, such as '0.0%, 0.3%, 2.1%'."""
    return ", ".join(f"{count / searched:.1%}" for count in (min(counts), median(counts), max(counts)))


def _differences(scores: dict[str, Any]) -> list[str]:
    return [name for name in scores if name.endswith("_difference")]


def _places(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The scores' names and the lengths that they are of, in the columns' order."""
    return [(name, length) for name in _SCORES.values() for length in summary["methods"][0]["scores"]]


def _columns(summary: dict[str, Any]) -> list[str]:
    return [f"{label} {length}" for label in _SCORES for length in summary["methods"][0]["scores"]]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.2f}"
