"""What the verdict rests on, in plain words computed from a run's summary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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
    text = f"{on} leave their in-window range from {_position(call)} on, first in layer {call['layer']}"
    text += f" and in {len(call['layers'])} layers ({ranges(call['layers'])}) by {until}."
    if call["before"] is not None:
        text += f" It began before M, at {call['before']}, among positions that few training texts reach."
    if found["saturated"]:
        layers = ranges(found["saturated"])
        text += f" Layers {layers} move so much inside the window already that a break there may not show."
    text += untrusted
    dims = ", ".join(f"{each['layer']}:{each['dim']} ({each['share']:.0%})" for each in found["dims"][:3])
    return f"{text} Most of it is carried by (layer:dim) {dims}."


def _position(call: dict[str, Any]) -> str:
    """A call with its interval, where that is wider."""
    low, high = call["low"], call["high"]
    end = call["captured"] if high is None else high
    interval = "" if low == high == call["length"] else f" (95% interval {low} to {end})"
    return f"{call['length']}{interval}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, runs of them as ranges."""
    parts: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _thresholds(summary: dict[str, Any]) -> str:
    searched, prompt = summary["searched"], summary["prompt"]
    qualified = summary["qualified"][prompt]
    share = f"{qualified} of {searched} (layer, dim) pairs ({qualified / searched:.1%})"
    others = ", ".join(f"{count} on {name}" for name, count in summary["qualified"].items() if name != prompt)
    text = f"Dim by dim (the rule “paper”), {share} of {summary['hook']} on {prompt} show an observable threshold"
    text += f"; {others}." if others else "."
    if summary["best"]:
        first = summary["best"][0]
        row = _row(summary, summary["reference"])
        predicted = row.get("predicted_by_thresholds", row["predicted"])
        text += (
            f" The clearest is layer {first['layer']}, dim {first['dim']} (score {first['score']:.0f}). "
            f"{summary['reference']} passes the thresholds of the best {predicted['chosen']} dims at "
            f"{predicted['text']} (median)."
        )
    return text


def _control(summary: dict[str, Any]) -> str:
    control = summary["control"]
    if isinstance(control, str):
        return f"The negative control could not be made: {control}."
    rows = {row["comparison"]: row["share"][summary["prompt"]] for row in control}
    at = control[0]["at"]
    text = (
        f"The same search at position {at}, where the model works, calls {rows['control']:.1%} of the pairs "
        f"observable; at M with as many positions {rows['matched']:.1%}, with all of them {rows['all']:.1%}."
    )
    if not rows["all"]:
        text += " No threshold was found, so nothing is predicted."
    elif max(rows["matched"], rows["all"]) <= rows["control"]:
        text += " That is no more than the control: the thresholds found here say nothing about M."
    return text


def _row(summary: dict[str, Any], method: str) -> dict[str, Any]:
    return next(row for row in summary["methods"] if row["method"] == method)
