"""The verdict in one sentence each: what broke, where, what mended it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.evaluation.intervals import shown
from probe.store.results import is_clear, percent
from probe.thresholds.failure import NLL
from probe.thresholds.stated_window import times_of_m
from probe.verdict.baseline import beats, beside_crop
from probe.verdict.cells import position
from probe.verdict.naming import NAMED, Rows, counted, listed, reference_of, several, verb
from probe.verdict.trust import level

_AT_CHANCE = "Cannot tell: the model is at chance inside its window"


def broke(summary: Mapping[str, Any], rows: Rows) -> str:
    """Between which lengths the reference fails, or that it holds, is at chance or was not measured."""
    reference, trained = reference_of(rows), summary["trained_length"]
    name, measured = reference["method"], reference["measured"]
    if "length" not in measured:
        return f"Nothing was measured by length (--samples 0); {name} was trained on windows of M = {trained} tokens."
    if reference["held"] is None:
        return f"{_AT_CHANCE} ({level(summary, name)})."
    prompts = counted(summary)
    if measured["length"] is None:
        dips = f", but for a dip at {listed(measured['dips'])}" if measured["dips"] else ""
        crop = beside_crop([reference]) if len(measured["judged"]) == 1 and not measured["chance"] else ""
        none = "Nothing that can be judged" if measured["chance"] else "Nothing"
        text = f"{none}: {_lasting([reference], name)}{dips} ({prompts}){_open(measured)}."
        return f"{text} {crop}" if crop else text
    judged = f"by {_reasons(measured)}, at every length measured{_alone(measured)}"
    if measured["high"] is None:
        none = f"not at all up to {measured['longest']}: {prompts} cannot tell"
        return f"{name} may fail after {measured['after']} tokens, or {none}. Their means fail {judged}."
    times = times_of_m(summary, measured["after"], measured["high"])
    one = "" if measured["share"] is not None else ", no interval over prompts"
    return f"{name} fails in {_ends(measured)} tokens{times} ({prompts}{one}). It fails {judged}."


def where(summary: Mapping[str, Any], rows: Rows) -> str:
    """Where the reference's states first leave their in-window range, and which heads are enough to mend it."""
    reference = reference_of(rows)
    measured = reference["measured"]
    if reference["held"] is not None and measured["length"] is None:
        return f"Nothing to locate: {_unfailing(reference)}."
    text = _drifts(summary, reference)
    enough = [row for row in rows if row["heads"] and row["heads"]["is_enough"] and is_clear(row["heads"])]
    if not enough:
        return text
    best = min(enough, key=lambda row: len(row["heads"]["heads"]))
    heads = best["heads"]
    count = f"{len(heads['heads'])} head{'s' * (len(heads['heads']) > 1)}"
    share = percent(heads["share"], heads["low"], heads["high"])
    lost = f"the {'tail NLL' if heads['measure'] == 'nll' else heads['measure']} lost at {heads['length']} tokens"
    return f"{text} {best['method']} in {count} alone restores {share} of {lost} (n = {heads['items']})."


def mended(summary: Mapping[str, Any], rows: Rows) -> str:
    """Which methods last longer than the reference, the best of them at the longest length, and crop beside them."""
    reference, others = reference_of(rows), [row for row in rows if not row["is_reference"]]
    name = reference["method"]
    if not others:
        return "No other method was run."
    if "length" not in reference["measured"]:
        return "Nothing was measured by length."
    if reference["held"] is None:
        return f"{_AT_CHANCE}."
    if reference["measured"]["length"] is None:
        failing = [row for row in others if row["measured"]["length"] is not None]
        return " ".join([f"Nothing to mend: {_unfailing(reference)}.", *_failing(failing)])
    better = [row for row in others if row["held"] > reference["held"]]
    if not better:
        return f"Nothing that was run: no method lasts longer than {name} ({counted(summary)})."
    unsure = reference["measured"]["high"] is None and reference["measured"]["share"] is not None
    whole = [row for row in better if row["measured"]["length"] is None]
    part = [row for row in better if row["measured"]["length"] is not None]
    sentences = [_whole(summary, whole, reference)] if whole else []
    sentences += [f"{several(part, reference)} last{verb(part)} longer than {name} and {_fails(part)}."] if part else []
    crop = beside_crop(others, whole)
    doubt = [f"Cannot tell whether {name} fails, so whether there is anything to mend."] if unsure else []
    return " ".join([*doubt, *sentences, *([crop] if crop else [])])


def _unfailing(reference: Mapping[str, Any]) -> str:
    """That the reference does not fail, by what can be judged, and what its prompts leave open."""
    measured = reference["measured"]
    judged = ", by what can be judged" if measured["chance"] else ""
    return f"{reference['method']} does not fail up to {measured['longest']} tokens{judged}{_open(measured)}"


def _drifts(summary: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    call, name = reference["drift"], reference["method"]
    if call is None:
        return f"Cannot tell: drift could not be judged ({summary['drift']})."
    on = f"on {_prompt(summary)}"
    if call["reason"]:
        return f"Cannot tell: the states of {name} are not judged {on} ({call['reason']})."
    if call["length"] is None:
        return f"Not seen: drift of {name} {on}: {call['text']}."
    before = "" if call["before"] is None else f"; the break begins before M, at {call['before']}"
    prompts = summary["drift"]["prompts"].items()
    still = [prompt for prompt, found in prompts if _is_none(found, call["method"])]
    others = f" (not called on {listed(still)})" if still else ""
    at = f"at position {position(call)}{others}{before}"
    leave = "leave" if call["high"] is not None else "may leave"
    return f"O{on[1:]}, the states of {name} {leave} their in-window range first in layer {call['layer']}, {at}."


def _prompt(summary: Mapping[str, Any]) -> str:
    """What the headline prompt is: the paper's is one word, repeated."""
    word = f", '{summary['word']}'" if summary.get("word") else ""
    return f"one repeated word{word}" if summary["prompt"] == "repeated" else f"prompt {summary['prompt']}"


def _is_none(found: Mapping[str, Any], method: str) -> bool:
    """Whether a method was judged on a prompt, and not called."""
    call = next(call for call in found["methods"] if call["method"] == method)
    return call["length"] is None and not call["reason"]


def _whole(summary: Mapping[str, Any], rows: Rows, reference: Mapping[str, Any]) -> str:
    """Those that last up to the longest length, and the least tail NLL there."""
    open_ = [row for row in rows if row["measured"]["after"] is not None]
    doubt = f"; of {several(open_)} an earlier failure is not ruled out" if open_ else ""
    alone = "; one prompt rules no failure out" if rows[0]["measured"]["share"] is None else ""
    text = f"{_lasting(rows, several(rows))} ({counted(summary)}){doubt}{alone}"
    difference = (rows[0]["nll"] or {}).get("difference")
    if difference is None:
        return f"{text}."
    less = shown(difference["mean"], difference["low"], difference["high"], "+z.2f")
    sharing = [row for row in rows if row["rank"] == rows[0]["rank"]]
    unclear = f" (not clearly below {several(sharing[1:])})" if len(sharing) > 1 else ""
    lowest = f"{rows[0]['method']} has the lowest mean tail NLL{unclear}," if len(rows) > 1 else "its mean tail NLL is"
    return f"{text}; {lowest} {less} nats/token to {reference['method']}."


def _failing(rows: Rows) -> list[str]:
    return [f"{several(rows)} {_fails(rows)}."] if rows else []


def _fails(rows: Rows) -> str:
    """Where methods fail: one by one, or before the longest length where they are many."""
    if len(rows) > NAMED:
        return f"fail by {rows[0]['measured']['longest']}"
    measured = [row["measured"] for row in rows]
    ends = [f"in {_ends(each)}" if each["high"] else f"after {each['after']}, if at all" for each in measured]
    return f"fail{verb(rows)} {listed(ends)}"


def _lasting(rows: Rows, names: str) -> str:
    """That methods last up to the longest length; said to hold by tail NLL alone only where they beat crop."""
    measured = rows[0]["measured"]
    longest = f"up to {measured['longest']} tokens, the longest measured"
    fail = f"{names} {'does' if len(rows) == 1 else 'do'} not fail"
    if measured["chance"]:
        return f"{fail} by {measured['judged'][0]} {longest} (by {measured['chance'][0]} nothing can be said)"
    if measured["judged"] == [NLL] and not all(map(beats, rows)):
        return f"{fail} {longest}{_alone(measured)}"
    return f"{names} hold{verb(rows)} {longest}{_alone(measured)}"


def _open(measured: Mapping[str, Any]) -> str:
    """Of a method that does not fail, after which length its prompts do not rule a failure out."""
    if measured["after"] is not None:
        return f"; a failure after {measured['after']} is not ruled out"
    return "" if measured["share"] is not None else "; one prompt rules no failure out"


def _ends(measured: Mapping[str, Any]) -> str:
    return f"({measured['after']}, {measured['high']}]"


def _reasons(measured: Mapping[str, Any]) -> str:
    """Which rule fails at every measured length from which on, of a method that does fail."""
    rules = [("tail NLL", measured["by_nll"]), ("passkey accuracy", measured["by_passkey"])]
    known = [f"{name} from {length} on" for name, length in rules if length is not None]
    return " and by ".join(known) or "tail NLL or passkey accuracy, in turns"


def _alone(measured: Mapping[str, Any]) -> str:
    """That one measure judges alone, the other being at chance or not clear."""
    return f", judged by {measured['judged'][0]} alone" if len(measured["judged"]) == 1 else ""
