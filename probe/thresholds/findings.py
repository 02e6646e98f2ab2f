"""What a run shows, in plain words computed from its summary."""

from __future__ import annotations

from typing import Any


def findings(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """(heading, sentences) pairs: what broke, where inside it shows, what mended it, how far to trust it."""
    return [
        ("What broke", _broke(summary)),
        ("Where inside", _where(summary)),
        ("What mended it", _mended(summary)),
        ("How far to trust the thresholds", _trust(summary)),
    ]


def _broke(summary: dict[str, Any]) -> str:
    reference = _row(summary, summary["reference"])
    name, trained = reference["method"], summary["trained_length"]
    if "length" not in reference["measured"]:
        return f"Nothing was measured by length; {name} was trained on windows of M = {trained} tokens."
    length = reference["measured"]["length"]
    if length is None:
        judged = (
            "" if summary["passkey_judged"] else f", judged by tail NLL alone: {name} finds no passkey within M either"
        )
        return f"{name} holds up to {summary['measured_lengths'][-1]} tokens, the longest length measured{judged}."
    before = max((each for each in summary["measured_lengths"] if each < length), default=None)
    last_good = "" if before is None else f" (at {before} it still held)"
    return (
        f"{name} fails at {length} tokens, {length / trained:.2g} times its trained window of {trained}{last_good}: "
        f"{_reasons(reference)}. {_scores(reference)}"
    )


def _where(summary: dict[str, Any]) -> str:
    searched, prompt = summary["searched"], summary["prompt"]
    qualified = summary["qualified"][prompt]
    share = f"{qualified} of {searched} (layer, dim) pairs ({qualified / searched:.1%})"
    others = ", ".join(f"{count} on {name}" for name, count in summary["qualified"].items() if name != prompt)
    text = f"On prompt {prompt}, {share} of {summary['hook']} show an observable threshold"
    text += f"; {others}." if others else "."
    if summary["best"]:
        first = summary["best"][0]
        predicted = _row(summary, summary["reference"])["predicted"]
        text += (
            f" The clearest is layer {first['layer']}, dim {first['dim']} (score {first['score']:.0f}). "
            f"{summary['reference']} passes the thresholds of the best {predicted['chosen']} dims at "
            f"{predicted['text']} (median)."
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
    length, longest = row["measured"]["length"], summary["measured_lengths"][-1]
    if length is None:
        return f"{row['method']} holds up to {longest} tokens, the longest measured ({predicted})."
    return f"{row['method']} fails at {length} tokens, {_reasons(row)} ({predicted})."


def _trust(summary: dict[str, Any]) -> str:
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


def _reasons(row: dict[str, Any]) -> str:
    """Which rule fails from which length on, of a method that does fail."""
    measured = row["measured"]
    reasons = [("tail NLL", measured["by_nll"]), ("passkey accuracy", measured["by_passkey"])]
    return " and ".join(f"by {name} from {length} on" for name, length in reasons if length is not None)


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
