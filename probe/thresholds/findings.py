"""What a run shows, in plain words computed from its summary."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from probe.thresholds.control import ALPHA


def findings(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """(heading, sentences) pairs: what broke, where inside it shows, what mended it, how far to trust it."""
    return [
        ("What broke", _broke(summary)),
        ("Where inside it shows", _where(summary)),
        ("What mended it", _mended(summary)),
        ("How far to trust it", _trust(summary)),
    ]


def _broke(summary: dict[str, Any]) -> str:
    reference = _row(summary, summary["reference"])
    name, trained = reference["method"], summary["trained_length"]
    if "length" not in reference["measured"]:
        return f"Nothing was measured by length; {name} was trained on windows of M = {trained} tokens."
    measured, longest = reference["measured"], summary["measured_lengths"][-1]
    length = measured["length"]
    if length is None and measured["chance"]:
        return f"{name}: {measured['text']}. {_scores(reference)}"
    if length is None:
        judged = "" if len(summary["judged_by"]) > 1 else f", judged by {summary['judged_by'][0]} alone"
        text = f"{name} holds up to {longest} tokens, the longest length measured{judged}{_sure(measured, longest)}."
        return f"{text}{_dips(measured)}"
    last_good = "" if measured["before"] is None else f" (at {measured['before']} it still held)"
    return (
        f"{name} fails at {length} tokens{_sure(measured, longest)}, {length / trained:.2g} times its trained window "
        f"of {trained}{last_good}: {_reasons(reference)}.{_dips(measured)} {_scores(reference)}"
    )


def _sure(measured: dict[str, Any], longest: int) -> str:
    """The interval of a measured length, and how often a resample gives that very length; empty where it has none."""
    if measured["share"] is None:
        return ""
    low, high = measured["low"], measured["high"]
    ends = "" if low is None else f"95% interval {low} to {high or f'none up to {longest}'}, "
    return f" ({ends}exactly so in {measured['share']:.0%} of resamples)"


def _dips(measured: dict[str, Any]) -> str:
    """At which shorter lengths it fails too."""
    dips = ", ".join(map(str, measured["dips"]))
    return f" It dips at {dips}: it fails there, but not at every longer length." if dips else ""


def _where(summary: dict[str, Any]) -> str:
    drift = summary.get("drift", "it was not judged when this run was made")
    if isinstance(drift, str):
        return f"Drift could not be judged: {drift}. {_thresholds(summary)}"
    return " ".join(
        [
            *(_drifts(name, each, summary["reference"]) for name, each in drift["prompts"].items()),
            _thresholds(summary),
        ]
    )


def _drifts(prompt: str, found: dict[str, Any], reference: str) -> str:
    """Where the reference's states leave their in-window range, on one prompt."""
    call = next(each for each in found["methods"] if each["method"] == reference)
    on = f"On {prompt}, the states of {reference}"
    untrusted = ""
    if call["untrusted"]:
        one = len(call["untrusted"]) == 1
        alarm = ("Layer", "alarms", "is") if one else ("Layers", "alarm", "are")
        untrusted = f" {alarm[0]} {_ranges(call['untrusted'])} {alarm[1]} inside the window and {alarm[2]} not judged."
    if call["reason"]:
        return f"{on} cannot be judged ({call['text']})."
    if call["length"] is None and untrusted:
        return f"{on} keep to their in-window range in the layers that can be judged ({call['text']}).{untrusted}"
    if call["length"] is None:
        return f"{on} keep to their in-window range in every layer ({call['text']})."
    until = max(call["layers"].values())
    text = f"{on} leave their in-window range from {_position(call)} on, first in layer {call['layer']}"
    text += f" and in {len(call['layers'])} layers ({_ranges(call['layers'])}) by {until}."
    if call["before"] is not None:
        text += f" It began before M, at {call['before']}, among positions that few training texts reach."
    if found["saturated"]:
        layers = _ranges(found["saturated"])
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


def _ranges(numbers: Iterable[int]) -> str:
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
            f"{summary['reference']} passes the thresholds of the best {predicted['chosen']} dims (median) at "
            f"{predicted['text']}."
        )
    return text


def _mended(summary: dict[str, Any]) -> str:
    others = [row for row in summary["methods"] if row["method"] != summary["reference"]]
    if not others:
        return "No other method was run."
    return " ".join(_one_method(summary, row) for row in others)


def _one_method(summary: dict[str, Any], row: dict[str, Any]) -> str:
    predicted = f"predicted from hidden states: {row['predicted']['text']}"
    if "length" not in row["measured"]:
        return f"{row['method']}: {predicted}; not measured."
    measured, longest = row["measured"], summary["measured_lengths"][-1]
    sure = _sure(measured, longest)
    if measured["length"] is not None:
        text = f"{row['method']} fails at {measured['length']} tokens{sure}, {_reasons(row)} ({predicted})."
    elif measured["chance"]:
        text = f"{row['method']}: {measured['text']} ({predicted})."
    else:
        text = f"{row['method']} holds up to {longest} tokens, the longest measured{sure} ({predicted})."
    return f"{text}{_dips(measured)}"


def _trust(summary: dict[str, Any]) -> str:
    return f"{_false_alarms(summary)} {_control(summary)}".strip()


def _false_alarms(summary: dict[str, Any]) -> str:
    """How often the rule `drift` calls a break where the model works."""
    drift = summary.get("drift", "")
    if isinstance(drift, str):
        return ""
    windows, trained = drift["rule"]["pretended"], summary["trained_length"]
    rates = []
    for call in drift["prompts"][summary["prompt"]]["methods"]:
        if call["false_alarms"] is None:
            rates.append(f"{call['method']} unknown")
        else:
            rates.append(f"{call['method']} {call['false_alarms']:.1%} ({call['any_false_alarm']:.0%} in any layer)")
    until = trained - drift["rule"]["held_out"]
    return (
        f"False alarms of the rule “drift” in the layers it calls, measured with {windows // 2} pretended windows from "
        f"{trained // 4} to {until} tokens, each tried on what follows it up to {until}, as shares of (layer, window) "
        f"pairs: {', '.join(rates)}."
    )


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


def _reasons(row: dict[str, Any]) -> str:
    """Which rule fails from which length on, of a method that does fail."""
    measured = row["measured"]
    reasons = [("tail NLL", measured["by_nll"]), ("passkey accuracy", measured["by_passkey"])]
    known = [f"by {name} from {length} on" for name, length in reasons if length is not None]
    return " and ".join(known) or "by tail NLL and passkey accuracy in turns"


def _scores(row: dict[str, Any]) -> str:
    names = {"tail_nll": "tail NLL", "passkey": "passkey accuracy"}
    series = []
    for key, name in names.items():
        known = [(multiple, each[key]) for multiple, each in row["scores"].items() if each[key] is not None]
        if known:
            series.append(f"{name}: " + ", ".join(f"{value:.2f} at {multiple}" for multiple, value in known))
    return f"Its {'; its '.join(series)}." if series else ""


def _row(summary: dict[str, Any], method: str) -> dict[str, Any]:
    return next(row for row in summary["methods"] if row["method"] == method)
