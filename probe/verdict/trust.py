"""How sure a verdict is: false alarms, what a guess scores, what was not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.evaluation.intervals import wilson
from probe.thresholds.calls import ranges
from probe.thresholds.failure import LEAST_ACCURACY, NLL, PASSKEY
from probe.verdict.naming import NAMED, Rows, reference_of, several


def sure(summary: Mapping[str, Any], rows: Rows) -> str:
    """False alarms of drift, what a guess scores, and what was not judged."""
    reference = reference_of(rows)["method"]
    told = [_false_alarms(rows), f"chance: {level(summary, reference)}" if summary["level"] else ""]
    left = _unjudged(summary, rows)
    told += [f"not judged: {', '.join(left)}" if left else "nothing was left unjudged"]
    text = "; ".join(part for part in told if part)
    return f"{text[0].upper()}{text[1:]}."


def _false_alarms(rows: Rows) -> str:
    """Of the (layer, window) pairs tried inside the window, those falsely called: by the reference, and the most."""
    tried = [row for row in rows if row["drift"] is not None and row["drift"]["tried"]]
    if not tried:
        return "false alarms inside the window: unknown"
    alarms, pairs = (sum(row["drift"][name] for row in tried) for name in ("alarms", "tried"))
    if not alarms:
        judged = " in the layers judged" if any(row["drift"]["untrusted"] for row in rows if row["drift"]) else ""
        of = f"0 of {pairs} (layer, window) pairs, under {several(tried)}"
        return f"no false alarms inside the window{judged} ({of})"
    worst = max(tried, key=lambda row: row["drift"]["alarms"] / row["drift"]["tried"])
    rates = [f"{_rate(row)} under {row['method']}" for row in tried if row["is_reference"] or row is worst]
    judged = ", in the layers judged" if any(row["drift"]["untrusted"] for row in rows if row["drift"]) else ""
    return f"false alarms inside the window{judged}, of (layer, window) pairs: {', '.join(rates)}"


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['drift']['alarms']} of {row['drift']['tried']}"


def level(summary: Mapping[str, Any], reference: str) -> str:
    """What a guess scores, and the reference inside the window."""
    level, prompts = summary["level"], summary["level"]["prompts"]
    guess = "an unknown tail NLL" if level["guess"] is None else f"a tail NLL of {level['guess']:z.2f}"
    texts = f"{prompts['window']} text{'s' * (prompts['window'] > 1)}"
    found = "" if level.get("passkeys") is None else f" and finds {level['passkeys']} of {prompts['sample']} passkeys"
    own = f"{reference} scores {level['tail_nll']:z.2f} ({texts}){found} at {level['length']} tokens"
    return f"a guess scores {guess}; {own}"


def _unmeasured(summary: Mapping[str, Any]) -> list[str]:
    """What failure is not judged by, and why: none of few passkeys says little, and less than half is no measure."""
    level, chance = summary["level"], summary["at_chance"]
    if not level:
        return ["failure by length (not measured)"]
    left = [f"{NLL} (at chance inside M)"] if NLL in chance else []
    found, asked = level.get("passkeys"), level["prompts"].get("sample", 0)
    if PASSKEY in chance:
        told = wilson(0, asked)[1] < LEAST_ACCURACY
        why = "at chance inside M" if told else f"none of {asked} found inside M, too few to tell chance"
        left.append(f"{PASSKEY} ({why})")
    elif found is not None and PASSKEY not in summary["judged_by"]:
        left.append(f"{PASSKEY} ({found} of {asked} found inside M, less than half)")
    return left


def _unjudged(summary: Mapping[str, Any], rows: Rows) -> list[str]:
    left = _unmeasured(summary)
    if isinstance(summary["drift"], str):
        return [*left, "drift"]
    reasons = dict.fromkeys(row["drift"]["reason"] for row in rows if row["drift"]["reason"])
    for reason in reasons:
        left.append(f"drift of {several([row for row in rows if row['drift']['reason'] == reason])} ({reason})")
    layers = [row for row in rows if row["drift"]["untrusted"] and not row["drift"]["reason"]]
    if len(layers) > NAMED:
        left.append(f"drift of {len(layers)} methods in single layers (false alarms)")
    else:
        left += [f"drift of {row['method']} in {_layers(row['drift']['untrusted'])} (false alarms)" for row in layers]
    return left


def _layers(numbers: Sequence[int]) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {ranges(numbers)}"
