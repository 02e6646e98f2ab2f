"""What the verdict rests on, in plain words computed from a run's summary."""

from __future__ import annotations

from statistics import median
from typing import Any

from probe.thresholds.calls import ranges
from probe.thresholds.control import ALPHA


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
    return " ".join(_drifts(name, each, summary["reference"]) for name, each in drift["prompts"].items())


def _drifts(prompt: str, found: dict[str, Any], reference: str) -> str:
    """Where the reference's states leave their in-window range, on one prompt."""
    call = next(each for each in found["methods"] if each["method"] == reference)
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
    if found["high_variance"]:
        text += f" Cannot tell in layers {ranges(found['high_variance'])}, whose states move as much inside the window."
    text += untrusted
    dims = ", ".join(f"{each['layer']}:{each['dim']} ({each['share']:.0%})" for each in found["dims"][:3])
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
    return next(each["untrusted"] for each in methods if each["method"] == summary["reference"])


def _control(summary: dict[str, Any]) -> str:
    control = summary["control"]
    if isinstance(control, str):
        return f"The negative control could not be made: {control}."
    found, places, searched = control["prompts"][summary["prompt"]], control["place"], control["searched"]
    inside, matched = (sorted(count / searched for count in found[name]) for name in ("qualified", "matched"))
    qualified = summary["qualified"][summary["prompt"]]
    rates = ", ".join(f"{name} {share:.0%}" for name, share in found["false_predictions"].items())
    text = (
        f"Dim by dim, the same search put at {len(places)} positions from {places[0]} to {places[-1]}, where the model "
        f"works, calls {inside[0]:.1%} to {inside[-1]:.1%} of the pairs observable (median {median(inside):.1%}); at M "
        f"with as many positions {matched[0]:.1%} to {matched[-1]:.1%} ({median(matched):.1%}), with all of them "
        f"{qualified / searched:.1%}. From {control['least']} dims on it predicts; shares of the positions with a "
        f"false prediction: {rates}."
    )
    if not qualified:
        return f"{text} No threshold was found, so nothing is predicted."
    if found["as_many"] > 0.5:
        return f"{text} That is no more than the control: the thresholds found here say nothing about M."
    if found["as_many"] > ALPHA:
        text += f" At {found['as_many']:.0%} of the positions no fewer are found than at M: M is not told from them."
    return text
