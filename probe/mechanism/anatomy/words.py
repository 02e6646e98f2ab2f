"""What an anatomy run's summary says in a few sentences, and with tables for a terminal.

Every sentence says of how many heads and prompts it is. What intervals leave open is "cannot tell", and what was not
measured is named as that: neither is an absence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.mechanism.anatomy.verdicts import LEAST, RETRIEVES
from probe.store.results import Row, having, number, ranged

_NAMED = 6
"""Heads that are named, at most."""
_PREVIOUS = 0.5
"""The least share on the token before of a previous-token head."""
_PARTS = {"heads": "heads", "frequencies": "unmet", "retrieval": "retrieval", "lens": "lens", "vectors": "vectors"}
"""Where the summary holds each part."""
_COLUMNS = {
    "mean distance": ("all_heads", "mean_distance", "{:.0f}"),
    "beyond M": ("all_heads", "mass_beyond", "{:z.2f}"),
    "sink": ("all_heads", "sink", "{:z.2f}"),
    "entropy": ("all_heads", "entropy", "{:z.2f}"),
    "unmet phases": ("unmet", "attention", "{:z.2f}"),
}


def words(summary: Mapping[str, Any]) -> str:
    """The table of what heads do beyond M, a paragraph a part, and the table of positional vectors."""
    return "\n".join(part for part in (_table(summary), *anatomy_findings(summary), *_vector_table(summary)) if part)


def anatomy_findings(summary: Mapping[str, Any]) -> list[str]:
    """A paragraph for every part that was measured beyond M, and which were not measured."""
    parts = (_retrieval(summary), _previous(summary), _lens(summary), (*_positions(summary), *_called(summary)))
    said = [" ".join(sentences) for sentences in parts]
    absent = ", ".join(name for name, table in _PARTS.items() if not summary.get(table))
    said.append(f"Not measured: {absent} (--parts)." if absent else "")
    said.append(f"{summary['cells_left']} cells are still to be run." if summary["cells_left"] else "")
    return [paragraph for paragraph in said if paragraph]


def _table(summary: Mapping[str, Any]) -> str:
    """A row a method, length and span: means over all heads."""
    keys = [(row["length"], row["method"], row["span"]) for row in [*summary["all_heads"], *summary["unmet"]]]
    if not keys:
        return ""
    found = {
        (name, row["length"], row["method"], row["span"]): row
        for name in ("all_heads", "unmet")
        for row in summary[name]
    }
    rows = [["length", "method", "queries", "prompts", *_COLUMNS]]
    for key in dict.fromkeys(keys):
        cells = [(found.get((part, *key)), name, form) for part, name, form in _COLUMNS.values()]
        counts = _counts([row for row, _, _ in cells if row])
        rows.append([*map(str, key), counts, *(_mean(row, name, form) for row, name, form in cells)])
    return "Means over heads, by where the query stands:\n" + _aligned(rows)


def _mean(row: Mapping[str, Any] | None, name: str, form: str) -> str:
    return "" if row is None else form.format(row[name][0])


def _retrieval(summary: Mapping[str, Any]) -> Iterator[str]:
    """Which heads stop retrieving beyond M, which methods revive them, and where neither can be told."""
    reference, trained = summary["reference"], summary["trained_length"]
    measured = having(summary["retrieval"], method=reference)
    lengths = sorted({row["length"] for row in measured})
    if not lengths or lengths[-1] <= trained:
        return
    if lengths[0] > trained:
        yield "Retrieval: cannot tell which heads are lost; no length up to M was measured."
        return
    inside = having(measured, length=max(length for length in lengths if length <= trained))
    heads = [row for row in inside if row["best"][0] >= RETRIEVES]
    of = f"inside M under {reference} ({_prompts(inside)})"
    if not heads:
        best = max(inside, key=lambda row: row["best"][0])
        highest = f"{_place(best)}, {ranged(*best['best'])}"
        yield f"Retrieval: 0 of {_heads(inside)} score {RETRIEVES} or more {of}; highest: {highest}."
        return
    after = sum(row["best_offset"] for row in heads)
    looking = f", {after} of them by looking one token after it" if after else ""
    yield f"Retrieval: {len(heads)} of {_heads(inside)} retrieve the passkey {of}{looking}."
    for length in dict.fromkeys(row["length"] for row in summary["retrieval_heads"]):
        own = having(summary["retrieval_heads"], length=length)
        yield _lost(own, reference, _prompts(having(measured, length=length)))
        if dead := having(own, dies=True):
            others = [name for name in summary["methods"] if name != reference and name in own[0]["beyond"]]
            yield f"Of these revived: {'; '.join(_revived(dead, name) for name in others)}." if others else ""


def _lost(own: Sequence[Row], reference: str, prompts: str) -> str:
    """How many of the heads that retrieve inside M are lost and kept at one length, and of how many that is open."""
    outcomes = {"lost": [], "kept": [], "cannot tell": []}
    for row in own:
        outcomes["lost" if row["dies"] else "kept" if row["keeps"] else "cannot tell"].append(row)
    told = []
    for outcome, rows in outcomes.items():
        rows.sort(key=lambda row: -row["inside"][0])
        named = ", ".join(
            f"{_place(row)} ({row['inside'][0]:z.2f} to {row['beyond'][reference][0]:z.2f})" for row in rows[:_NAMED]
        )
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        told += [f"{outcome} {len(rows)}: {named}{more}"] if rows else []
    return f"At {own[0]['length']} tokens ({prompts}; layer.head, score inside to beyond): {'; '.join(told)}."


def _revived(dead: Sequence[Row], name: str) -> str:
    """How many lost heads retrieve again under a method; those that neither clearly do nor clearly do not."""
    revived = sum(name in row["revived"] for row in dead)
    known = [row["beyond"].get(name, (None, None, None))[2] for row in dead if name not in row["revived"]]
    halves = [row["inside"][0] / 2 for row in dead if name not in row["revived"]]
    unsure = sum(not number(high) < half for high, half in zip(known, halves, strict=True))
    return f"{revived} of {len(dead)} by {name}{f' (cannot tell: {unsure})' if unsure else ''}"


def _previous(summary: Mapping[str, Any]) -> Iterator[str]:
    """The heads that look at the token before inside M, and whether they still do beyond it, by length beyond M."""
    reference = summary["reference"]
    for length in (each for each in summary["lengths"] if each > summary["trained_length"]):
        inside = having(summary["heads"], method=reference, length=length, span="inside M")
        if not inside:
            continue
        heads = sorted(inside, key=lambda row: -row["previous"][0])
        of = f"of {_heads(inside)} (attention on the token before at least {_PREVIOUS} inside M, {_prompts(inside)})"
        found = [row for row in heads if row["previous"][0] >= _PREVIOUS]
        told = [_beyond(summary, row) for row in found[:_NAMED]]
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        told = f"{'; '.join(told)}{more}" if told else f"highest: {_place(heads[0])}, {ranged(*heads[0]['previous'])}"
        yield f"Previous-token heads under {reference} at {length} tokens: {len(found)} {of}; {told}."


def _beyond(summary: Mapping[str, Any], row: Row) -> str:
    place = {name: row[name] for name in ("layer", "head", "length")}
    beyond = having(summary["heads"], **place, span="beyond M")
    told = ", ".join(f"{each['previous'][0]:z.2f} {each['method']}" for each in beyond)
    return f"{_place(row)} {row['previous'][0]:z.2f}{f' (beyond M {told})' if told else ''}"


def _lens(summary: Mapping[str, Any]) -> Iterator[str]:
    """By how much the reference is the worse at the end, and from which layer on; of which methods that is open."""
    reference = summary["reference"]
    for length in (each for each in summary["lengths"] if each > summary["trained_length"]):
        rows = having(summary["lens"], length=length)
        others = [name for name in dict.fromkeys(row["method"] for row in rows) if name != reference]
        if not others or len({row["method"] for row in rows}) == len(others):
            continue
        own = {row["method"]: row for row in having(summary["lens_differs"], length=length)}
        told = "; ".join(f"{name} {_differs(own.get(name))}" for name in others)
        yield f"Logit lens at {length} tokens, {reference}'s NLL less the method's (nats/token): {told}."


def _differs(row: Row | None) -> str:
    if row is None:
        return "cannot tell (fewer than 2 shared prompts)"
    last = row["by_layer"][-1]
    text = f"{ranged(*last)} ({row['n']} prompts)"
    if row["from_layer"] is not None:
        return f"{text}, seen from layer {row['from_layer']} on, half of it from layer {row['half_from_layer']} on"
    return f"{text}, {'none' if max(map(abs, last)) < LEAST else 'cannot tell'}"


def _positions(summary: Mapping[str, Any]) -> Iterator[str]:
    """Whether positions can be read from text."""
    found = summary.get("vectors")
    if not found:
        return
    reference = _first(found)
    own = having(found["layers"], method=reference)
    least = {row["layer"]: min(number(each) for each in row["reliability"].values()) for row in own}
    known = {layer: value for layer, value in least.items() if value == value}
    good = [layer for layer, value in known.items() if value >= found["reliable"]]
    shares = [min(1.0, max(0.0, number(row["share"]["inside"]))) for row in own if row["share"]["inside"] is not None]
    text = f"Positional vectors of {found['texts'][reference]} texts under {reference}: "
    between = f"{min(known.values()):z.2f} to {max(known.values()):z.2f} by layer" if known else "unknown"
    text += f"reliability {between}, at least {found['reliable']} in {len(good)} of {len(own)} layers"
    text += f" ({', '.join(map(str, good))})" if good else ""
    text += "; cannot tell in the others" if len(good) < len(own) else ""
    yield f"{text}."
    if shares:
        yield f"Of the states' variance inside M, {min(shares):.1%} to {max(shares):.1%} is positional."


def _vector_table(summary: Mapping[str, Any]) -> Iterator[str]:
    """How reliable positional vectors are, how like in-window ones, and at which slope."""
    found = summary.get("vectors")
    if not found:
        return
    own = [row for row in found["layers"] if row["method"] == _first(found)]
    rows = [["method", "layer", "reliability in/out", "cosine in/out", "slope"]]
    rows += [
        [row["method"], str(row["layer"]), _pair(row["reliability"]), _pair(row["cosine"]), _slope(row)]
        for row in found["layers"]
        if row["layer"] in (own[0]["layer"], own[len(own) // 2]["layer"], own[-1]["layer"])
    ]
    yield "Positional vectors (slope: in-window tokens for one token beyond):\n" + _aligned(rows)


def _called(summary: Mapping[str, Any]) -> Iterator[str]:
    """What thresholds and drift say of positional vectors."""
    found = summary.get("vectors")
    if not found:
        return
    thresholds = found["thresholds"]
    yield (
        f"Observable dims of them: {thresholds['observable']} of {thresholds['searched']}; in noise alone "
        f"{thresholds['by_chance']}."
    )
    calls = "; ".join(f"{call['method']} {call['said']}" for call in found["drift"])
    chance = ", ".join(call["method"] for call in found["drift"] if call["by_chance"] is not None)
    yield f"Their drift: {calls}; in noise alone {f'{chance} too' if chance else 'none is called'}."


def _first(vectors: Mapping[str, Any]) -> str:
    """The reference of the run that the vectors are of."""
    return next(iter(vectors["texts"]))


def _slope(row: Mapping[str, Any]) -> str:
    if row["slope"] is None:
        return "-"
    return f"{row['slope']:z.2f} [{row['slope_low']:z.2f}, {row['slope_high']:z.2f}]"


def _pair(values: Mapping[str, float | None]) -> str:
    return " / ".join("-" if values[name] is None else f"{values[name]:z.2f}" for name in ("inside", "beyond"))


def _place(row: Row) -> str:
    return f"{row['layer']}.{row['head']}"


def _heads(rows: Sequence[Row]) -> str:
    return "1 head" if len(rows) == 1 else f"{len(rows)} heads"


def _prompts(rows: Sequence[Row]) -> str:
    """Over how many prompts the rows are means."""
    counts = _counts(rows)
    return f"{counts} prompt{'' if counts == '1' else 's'}"


def _counts(rows: Sequence[Row]) -> str:
    counts = sorted({row["n"] for row in rows})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
