"""The verdict in one sentence each: what broke, where, what mended it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from probe.evaluation.intervals import shown
from probe.store.located import number, percent
from probe.thresholds.failure import NLL
from probe.verdict.baseline import beside_crop, betters
from probe.verdict.cells import position
from probe.verdict.naming import Rows, listed, reference_of, several, verb
from probe.verdict.trust import level


def broke(summary: Mapping[str, Any], rows: Rows) -> str:
    """From which length on the reference fails, or that it holds, is at chance or was not measured."""
    reference, trained = reference_of(rows), summary["trained_length"]
    name, measured = reference["method"], reference["measured"]
    if "length" not in measured:
        return f"Nothing was measured by length; {name} was trained on windows of M = {trained} tokens."
    if reference["held"] is None:
        return f"Nothing can be said of length: the model is at chance inside its window ({level(summary, name)})."
    length, alone = measured["length"], _alone(measured)
    if length is None:
        dips = f", but for a dip at {listed(measured['dips'])}" if measured["dips"] else ""
        if measured["chance"]:
            return f"Nothing that can be judged: {_unfailing([reference], name)}{_ends(measured)}{dips}."
        crop = beside_crop([reference]) if alone else ""
        return f"Nothing: {_held([reference], name)}{_ends(measured)}{alone}{dips}{crop}."
    at = f"{length} tokens{_ends(measured)}, {length / trained:.2g} times M"
    if measured["share"] is not None and measured["high"] is None:
        return f"{name} may fail at {at}, which so few prompts do not tell from none: {_reasons(measured)}{alone}."
    return f"{name} fails at {at}: {_reasons(measured)}{alone}."


def where(summary: Mapping[str, Any], rows: Rows) -> str:
    """Where the reference's states first leave their in-window range, and which heads are enough to mend it."""
    text = _drifts(summary, reference_of(rows))
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
    reference, others = reference_of(rows), [row for row in rows if not row["is_reference"]]
    name, longest = reference["method"], reference["measured"].get("longest")
    if not others:
        return "No other method was run."
    if "length" not in reference["measured"]:
        return "Nothing was measured by length."
    if reference["held"] is None:
        return "Nothing can be said of any method, since the model is at chance inside its window."
    failing = [row for row in others if row["held"] is not None and row["held"] < longest]
    if reference["held"] == longest:
        worse = f"; {several(failing)} fail{verb(failing)} earlier" if failing else ""
        judged = " that can be judged" if reference["measured"]["chance"] else ""
        return f"Nothing{judged} was to be mended up to {longest} tokens{worse}."
    better = [row for row in others if (row["held"] or 0) > reference["held"]]
    if not better:
        return f"Nothing that was run: no method holds longer than {name}."
    whole = [row for row in better if row["held"] == longest]
    part = [row for row in better if row["held"] < longest]
    told = [_whole(whole, reference, longest)] if whole else []
    told += [f"{several(part, reference)} {_lasts(part)} than {name}, but not so long"] if part else []
    return f"{'; '.join(told)}."


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
    others = f"; not on {listed(still)}" if still else ""
    at = f"from position {position(call)} on ({on[3:]}{others}){before}"
    return f"The states of {name} leave their in-window range first in layer {call['layer']}, {at}"


def _restored(row: Mapping[str, Any]) -> float:
    share = number(row["heads"]["share"])
    return share if share == share else -math.inf


def _shows_nothing(found: Mapping[str, Any], method: str) -> bool:
    """Whether a method was judged on a prompt, and keeps to its in-window range."""
    call = next(call for call in found["methods"] if call["method"] == method)
    return call["length"] is None and not call["reason"]


def _whole(rows: Rows, reference: Mapping[str, Any], longest: int) -> str:
    """Those that hold up to the longest length, and the least tail NLL there."""
    names = several(rows, reference)
    text = f"{_held(rows, names)}{_alone(rows[0]['measured'])}"
    if rows[0]["measured"]["chance"]:
        text = _unfailing(rows, names)
    crop = beside_crop(rows)
    difference = (rows[0]["nll"] or {}).get("difference")
    if difference is None:
        return text + crop
    less = shown(difference["mean"], difference["low"], difference["high"], "+z.2f")
    return (
        f"{text}; {rows[0]['method']} has the lowest tail NLL there, {less} nats/token to {reference['method']}{crop}"
    )


def _held(rows: Rows, names: str) -> str:
    """That methods hold up to the longest length; by tail NLL alone only where they do better than crop."""
    longest = f"{rows[0]['measured']['longest']} tokens, the longest measured"
    if rows[0]["measured"]["judged"] == [NLL] and not all(map(betters, rows)):
        return f"{names} {'does' if len(rows) == 1 else 'do'} not fail up to {longest}"
    return f"{names} hold{verb(rows)} up to {longest}"


def _lasts(rows: Rows) -> str:
    """Whether methods hold longer; by tail NLL alone they fail later."""
    return f"fail{verb(rows)} later" if rows[0]["measured"]["judged"] == [NLL] else f"hold{verb(rows)} longer"


def _unfailing(rows: Rows, names: str) -> str:
    """That methods do not fail by the one measure that can judge: they are not said to hold."""
    measured, do = rows[0]["measured"], "does" if len(rows) == 1 else "do"
    unfailing = f"{names} {do} not fail by {measured['judged'][0]} up to {measured['longest']} tokens"
    return f"{unfailing}, the longest measured (by {measured['chance'][0]} nothing can be told)"


def _ends(measured: Mapping[str, Any]) -> str:
    """The 95% interval of a measured failure; that there is none."""
    if measured["share"] is None:
        return " (no interval)"
    if (measured["length"], measured["low"], measured["high"]) == (None, None, None):
        return ""
    return f" [{measured['low'] or 'none'}, {measured['high'] or 'none'}]"


def _reasons(measured: Mapping[str, Any]) -> str:
    """Which rule fails from which length on, of a method that does fail."""
    rules = [("tail NLL", measured["by_nll"]), ("passkey accuracy", measured["by_passkey"])]
    known = [f"by {name} from {length} on" for name, length in rules if length is not None]
    return " and ".join(known) or "by tail NLL and passkey accuracy in turns"


def _alone(measured: Mapping[str, Any]) -> str:
    """That one measure judges alone, the other being at chance or not clear."""
    return f", judged by {measured['judged'][0]} alone" if len(measured["judged"]) == 1 else ""
