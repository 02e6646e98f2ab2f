"""The verdict in one sentence each: what broke, where, what mended it, how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probe.evaluation.intervals import shown
from probe.store.located import percent
from probe.thresholds.findings import ranges
from probe.verdict.cells import position

Rows = Sequence[Mapping[str, Any]]
_NAMED = 4  # methods in a sentence


def broke(summary: Mapping[str, Any], rows: Rows) -> str:
    """From which length on the reference fails, or that it holds, is at chance or was not measured."""
    reference, trained = _reference(rows), summary["trained_length"]
    name, measured = reference["method"], reference["measured"]
    if "length" not in measured:
        return f"Nothing was measured by length; {name} was trained on windows of M = {trained} tokens."
    if reference["held"] is None:
        return f"Nothing can be said of length: the model is at chance inside its window ({_level(summary, name)})."
    length, alone = measured["length"], _alone(measured)
    if length is None:
        dips = f", but for a dip at {_listed(measured['dips'])}" if measured["dips"] else ""
        held = f"{name} holds up to {measured['longest']} tokens, the longest measured"
        return f"Nothing: {held}{_ends(measured)}{alone}{dips}."
    return f"{name} fails at {length} tokens{_ends(measured)}, {length / trained:.2g} times M: {_reasons(measured)}{alone}."


def where(summary: Mapping[str, Any], rows: Rows) -> str:
    """Where the reference's states first leave their in-window range, and which heads are enough to mend it."""
    text = _drifts(summary, _reference(rows))
    found = [row for row in rows if row["heads"]]
    if not found:
        return f"{text}."
    enough = [row for row in found if row["heads"]["is_enough"]]
    best = min(enough, key=lambda row: len(row["heads"]["heads"])) if enough else max(found, key=_restored)
    heads = best["heads"]
    count = f"{len(heads['heads'])} head{'s' * (len(heads['heads']) > 1)}"
    share = percent(heads["share"], heads["low"], heads["high"])
    return f"{text}; {best['method']} in {count} alone restores {share} of the loss at {heads['length']} tokens."


def mended(summary: Mapping[str, Any], rows: Rows) -> str:
    """Which methods hold longer than the reference, and the best of them at the longest length."""
    reference, others = _reference(rows), [row for row in rows if not row["is_reference"]]
    name, longest = reference["method"], reference["measured"].get("longest")
    if not others:
        return "No other method was run."
    if "length" not in reference["measured"]:
        return "Nothing was measured by length."
    if reference["held"] is None:
        return "Nothing can be said of any method, since the model is at chance inside its window."
    failing = [row for row in others if row["held"] is not None and row["held"] < longest]
    if reference["held"] == longest:
        worse = f"; {_several(failing)} fail{_s(failing)} earlier" if failing else ""
        return f"Nothing was to be mended up to {longest} tokens{worse}."
    better = [row for row in others if (row["held"] or 0) > reference["held"]]
    if not better:
        return f"Nothing that was run: no method holds longer than {name}."
    whole = [row for row in better if row["held"] == longest]
    part = [row for row in better if row["held"] < longest]
    told = [_whole(whole, reference, longest)] if whole else []
    told += [f"{_several(part, reference)} hold{_s(part)} longer than {name}, but not so long"] if part else []
    return f"{'; '.join(told)}."


def sure(summary: Mapping[str, Any], rows: Rows) -> str:
    """False alarms of drift, what a guess scores, and what was not judged."""
    reference = _reference(rows)["method"]
    told = [_false_alarms(rows), f"chance: {_level(summary, reference)}" if summary["level"] else ""]
    left = _unjudged(summary, rows)
    told += [f"not judged: {', '.join(left)}" if left else "nothing was left unjudged"]
    text = "; ".join(part for part in told if part)
    return f"{text[0].upper()}{text[1:]}."


def _reference(rows: Rows) -> Mapping[str, Any]:
    return next(row for row in rows if row["is_reference"])


def _drifts(summary: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    call, name = reference["drift"], reference["method"]
    if call is None:
        return f"Drift could not be judged: {summary['drift']}"
    on = f"on prompt {summary['prompt']}"
    if call["reason"]:
        return f"The states of {name} cannot be judged {on}: {call['reason']}"
    if call["length"] is None:
        judged = " that can be judged" if call["untrusted"] else ""
        return (
            f"The states of {name} keep to their in-window range in every layer{judged}, up to {call['captured']} {on}"
        )
    before = "" if call["before"] is None else f", a break that begins before M, at {call['before']}"
    still = [prompt for prompt, found in summary["drift"]["prompts"].items() if _shows_nothing(found, call["method"])]
    others = f"; not on {_listed(still)}" if still else ""
    at = f"from position {position(call)} on ({on[3:]}{others}){before}"
    return f"The states of {name} leave their in-window range first in layer {call['layer']}, {at}"


def _restored(row: Mapping[str, Any]) -> float:
    return row["heads"]["share"]


def _shows_nothing(found: Mapping[str, Any], method: str) -> bool:
    """Whether a method was judged on a prompt, and keeps to its in-window range."""
    call = next(call for call in found["methods"] if call["method"] == method)
    return call["length"] is None and not call["reason"]


def _whole(rows: Rows, reference: Mapping[str, Any], longest: int) -> str:
    """Those that hold up to the longest length, and the least tail NLL there."""
    alone = _alone(rows[0]["measured"])
    text = f"{_several(rows, reference)} hold{_s(rows)} up to {longest} tokens, the longest measured{alone}"
    difference = (rows[0]["nll"] or {}).get("difference")
    if difference is None:
        return text
    less = shown(difference["mean"], difference["low"], difference["high"], "+.2f")
    return f"{text}; {rows[0]['method']} has the lowest tail NLL there, {less} nats/token to {reference['method']}"


def _several(rows: Rows, reference: Mapping[str, Any] | None = None) -> str:
    """The methods, counted where they are many; with the doubt that they hold longer than the reference."""
    doubts = [_doubt(row, reference) if reference else "" for row in rows]
    if len(rows) > _NAMED:
        doubted = sum(map(bool, doubts))
        return f"{len(rows)} methods" + (f" ({doubted} not beyond doubt)" if doubted else "")
    return _listed([f"{row['method']}{doubt}" for row, doubt in zip(rows, doubts, strict=True)])


def _doubt(row: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Said where the intervals of both failure lengths meet, or there is none."""
    ends, others = row["measured"], reference["measured"]
    if ends["share"] is None:
        return " (without an interval)"
    return " (not beyond doubt)" if (ends["low"] or math.inf) <= (others["high"] or math.inf) else ""


def _false_alarms(rows: Rows) -> str:
    known = [(row["drift"]["false_alarms"], row["method"]) for row in rows if row["drift"] is not None]
    rates = [(rate, method) for rate, method in known if rate is not None]
    if not rates:
        return "false alarms of drift: unknown"
    own = [rate for rate, method in rates if method == _reference(rows)["method"]]
    worst, method = max(rates)
    most = f", at most {worst:.1%} ({method})" if worst > (own or [-1])[0] else ""
    told = (
        f"{own[0]:.1%} of (layer, window) pairs under {_reference(rows)['method']}"
        if own
        else "unknown under the reference"
    )
    return f"false alarms of drift inside the window: {told}{most}"


def _level(summary: Mapping[str, Any], reference: str) -> str:
    """What a guess scores, and the reference inside the window."""
    level = summary["level"]
    guess = "an unknown tail NLL" if level["guess"] is None else f"a tail NLL of {level['guess']:.2f}"
    return f"a guess scores {guess}, {reference} {level['tail_nll']:.2f} at {level['length']} tokens"


def _unjudged(summary: Mapping[str, Any], rows: Rows) -> list[str]:
    left = [f"{rule} (at chance inside M)" for rule in summary["at_chance"]]
    left += [] if summary["level"] else ["failure by length (not measured)"]
    if isinstance(summary["drift"], str):
        return [*left, "drift"]
    reasons = dict.fromkeys(row["drift"]["reason"] for row in rows if row["drift"]["reason"])
    for reason in reasons:
        left.append(f"drift of {_several([row for row in rows if row['drift']['reason'] == reason])} ({reason})")
    layers = [row for row in rows if row["drift"]["untrusted"] and not row["drift"]["reason"]]
    if len(layers) > _NAMED:
        left.append(f"drift of {len(layers)} methods in single layers (false alarms)")
    else:
        left += [f"drift of {row['method']} in {_layers(row['drift']['untrusted'])} (false alarms)" for row in layers]
    return left


def _layers(numbers: Sequence[int]) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {ranges(numbers)}"


def _ends(measured: Mapping[str, Any]) -> str:
    """The 95% interval of a measured length; that there is none."""
    if measured["share"] is None:
        return " (no interval)"
    return f" [{measured['low'] or 'none'}, {measured['high'] or 'none'}]"


def _reasons(measured: Mapping[str, Any]) -> str:
    """Which rule fails from which length on, of a method that does fail."""
    rules = [("tail NLL", measured["by_nll"]), ("passkey accuracy", measured["by_passkey"])]
    known = [f"by {name} from {length} on" for name, length in rules if length is not None]
    return " and ".join(known) or "by tail NLL and passkey accuracy in turns"


def _alone(measured: Mapping[str, Any]) -> str:
    """That one measure judges alone, the other being at chance or not clear."""
    return f", judged by {measured['judged'][0]} alone" if len(measured["judged"]) == 1 else ""


def _s(rows: Rows) -> str:
    """The verb's ending."""
    return "s" if len(rows) == 1 else ""


def _listed(names: Sequence[object]) -> str:
    """Names as text, such as 'a, b and c'."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last
