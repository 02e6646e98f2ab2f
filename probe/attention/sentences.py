"""The main results of an anatomy run as sentences and small tables, computed from its summary. No torch.

"Cannot tell" is an outcome of its own: intervals that leave a question open, and parts that were not measured, show no
absence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from probe.store.results import Row, having, number, ranged

RETRIEVES = 0.3
"""Least score inside M of a retrieval head."""
LEAST = 0.01
"""Nats/token; a smaller difference counts as none."""
_NAMED = 6  # heads in a sentence, at most
_PREVIOUS = 0.5  # least share on the token before of a previous-token head
_PARTS = {"heads": "heads", "frequencies": "unmet", "retrieval": "retrieval", "lens": "lens", "vectors": "vectors"}
"""Where the summary holds each part."""
_COLUMNS = {
    "mean distance": ("all_heads", "mean_distance", "{:.0f}"),
    "beyond M": ("all_heads", "mass_beyond", "{:z.2f}"),
    "sink": ("all_heads", "sink", "{:z.2f}"),
    "entropy": ("all_heads", "entropy", "{:z.2f}"),
    "unmet phases": ("unmet", "attention", "{:z.2f}"),
}


def text_of(summary: Mapping[str, Any]) -> str:
    """The table of means over heads, a paragraph a part, and the table of positional vectors."""
    return "\n".join(
        part for part in (_head_table(summary), *anatomy_findings(summary), _vector_table(summary)) if part
    )


def anatomy_findings(summary: Mapping[str, Any]) -> list[str]:
    """A paragraph for every part that was measured beyond M, and which parts were not."""
    paragraphs = [" ".join(part(summary)) for part in (_retrieval, _previous, _lens, _positions)]
    absent = ", ".join(name for name, table in _PARTS.items() if not summary.get(table))
    paragraphs.append(f"Not measured: {absent} (--parts)." if absent else "")
    paragraphs.append(f"{summary['tasks_left']} tasks are left to run." if summary["tasks_left"] else "")
    return [paragraph for paragraph in paragraphs if paragraph]


def _head_table(summary: Mapping[str, Any]) -> str:
    """A row a method, length and span: means over all heads."""
    cells: dict[tuple[Any, ...], dict[str, str]] = {}
    for column, (table, name, form) in _COLUMNS.items():
        for row in summary[table]:
            key = (row["length"], row["method"], row["span"])
            empty = {"prompts": str(row["n"]), **dict.fromkeys(_COLUMNS, "")}
            cells.setdefault(key, empty)[column] = form.format(row[name][0])
    rows = [dict(zip(("length", "method", "queries"), key, strict=True)) | row for key, row in cells.items()]
    table = pd.DataFrame(rows)
    return f"Means over heads, by position of the query:\n{table.to_string(index=False)}" if rows else ""


def _retrieval(summary: Mapping[str, Any]) -> Iterator[str]:
    """Which heads stop retrieving beyond M, which methods restore them, and where neither can be told."""
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
    score = f"score {RETRIEVES} or more inside M under {reference} ({_prompts(inside)})"
    text = f"Retrieval: {len(heads)} of {_heads(inside)} {score}"
    if not heads:
        best = max(inside, key=lambda row: row["best"][0])
        yield f"{text}; highest: {_place(best)}, {ranged(*best['best'])}."
        return
    after = sum(row["best_offset"] for row in heads)
    yield f"{text}{f', {after} of them on the token after the one emitted' if after else ''}."
    for length in dict.fromkeys(row["length"] for row in summary["retrieval_heads"]):
        rows = having(summary["retrieval_heads"], length=length)
        yield _lost(rows, reference, _prompts(having(measured, length=length)))
        if lost := having(rows, dies=True):
            others = [name for name in summary["methods"] if name != reference and name in rows[0]["beyond"]]
            yield (
                f"Of the lost heads, restored: {'; '.join(_restored(lost, name) for name in others)}." if others else ""
            )


def _lost(rows: Sequence[Row], reference: str, prompts: str) -> str:
    """How many of the retrieval heads are lost and kept at one length, and of how many that is open."""
    outcomes: dict[str, list[Row]] = {"lost": [], "kept": [], "cannot tell": []}
    for row in sorted(rows, key=lambda row: -row["inside"][0]):
        outcomes["lost" if row["dies"] else "kept" if row["keeps"] else "cannot tell"].append(row)
    parts = []
    for outcome, members in outcomes.items():
        named = [f"{_place(row)} ({row['inside'][0]:z.2f} to {row['beyond'][reference][0]:z.2f})" for row in members]
        more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        parts += [f"{outcome} {len(members)}: {', '.join(named[:_NAMED])}{more}"] if members else []
    return f"At {rows[0]['length']} tokens ({prompts}; layer.head, score inside to beyond): {'; '.join(parts)}."


def _restored(lost: Sequence[Row], name: str) -> str:
    """How many lost heads retrieve again under a method, and of how many that is open."""
    others = [row for row in lost if name not in row["revived"]]
    ends = [(number(row["beyond"].get(name, (None, None, None))[2]), row["inside"][0] / 2) for row in others]
    unclear = sum(not high < half for high, half in ends)
    return f"{len(lost) - len(others)} of {len(lost)} by {name}{f' (cannot tell: {unclear})' if unclear else ''}"


def _previous(summary: Mapping[str, Any]) -> Iterator[str]:
    """The heads that attend to the token before inside M, and whether they still do beyond it, by length beyond M."""
    reference = summary["reference"]
    for length in (length for length in summary["lengths"] if length > summary["trained_length"]):
        inside = having(summary["heads"], method=reference, length=length, span="inside M")
        if not inside:
            continue
        ranked = sorted(inside, key=lambda row: -row["previous"][0])
        heads = [row for row in ranked if row["previous"][0] >= _PREVIOUS]
        parts = [_beyond(summary, row) for row in heads[:_NAMED]]
        parts += [f"and {len(heads) - _NAMED} more"] if len(heads) > _NAMED else []
        text = "; ".join(parts) or f"highest: {_place(ranked[0])}, {ranged(*ranked[0]['previous'])}"
        of = f"of {_heads(inside)} (attention on the token before at least {_PREVIOUS} inside M, {_prompts(inside)})"
        yield f"Previous-token heads under {reference} at {length} tokens: {len(heads)} {of}; {text}."


def _beyond(summary: Mapping[str, Any], row: Row) -> str:
    place = {name: row[name] for name in ("layer", "head", "length")}
    beyond = having(summary["heads"], **place, span="beyond M")
    scores = ", ".join(f"{other['previous'][0]:z.2f} {other['method']}" for other in beyond)
    return f"{_place(row)} {row['previous'][0]:z.2f}{f' (beyond M {scores})' if scores else ''}"


def _lens(summary: Mapping[str, Any]) -> Iterator[str]:
    """By how much the reference is worse at the end, and from which layer on; of which methods that is open."""
    reference = summary["reference"]
    for length in (length for length in summary["lengths"] if length > summary["trained_length"]):
        names = list(dict.fromkeys(row["method"] for row in having(summary["lens"], length=length)))
        differences = {row["method"]: row for row in having(summary["lens_differs"], length=length)}
        parts = [f"{name} {_difference(differences.get(name))}" for name in names if name != reference]
        if reference in names and parts:
            text = "; ".join(parts)
            yield f"Logit lens at {length} tokens, {reference}'s NLL less the method's (nats/token): {text}."


def _difference(row: Row | None) -> str:
    if row is None:
        return "cannot tell (fewer than 2 shared prompts)"
    last = row["by_layer"][-1]
    text = f"{ranged(*last)} ({row['n']} prompts)"
    if row["from_layer"] is not None:
        return (
            f"{text}, significant from layer {row['from_layer']} on, half of it from layer {row['half_from_layer']} on"
        )
    return f"{text}, {'none' if max(map(abs, last)) < LEAST else 'cannot tell'}"


def _positions(summary: Mapping[str, Any]) -> Iterator[str]:
    """Whether text gives positional vectors, their share of the variance, and their thresholds and drift."""
    vectors = summary.get("vectors")
    if not vectors:
        return
    reference = next(iter(vectors["texts"]))
    rows = having(vectors["layers"], method=reference)
    least = {row["layer"]: min(number(value) for value in row["reliability"].values()) for row in rows}
    known = {layer: value for layer, value in least.items() if value == value}
    good = [str(layer) for layer, value in known.items() if value >= vectors["reliable"]]
    layers = f" ({', '.join(good)})" if good else ""
    between = f"{min(known.values()):z.2f} to {max(known.values()):z.2f} by layer" if known else "unknown"
    yield (
        f"Positional vectors of {vectors['texts'][reference]} texts under {reference}: reliability {between}, at least "
        f"{vectors['reliable']} in {len(good)} of {len(rows)} layers{layers}"
        f"{'; cannot tell in the others' if len(good) < len(rows) else ''}."
    )
    shares = [min(1.0, max(0.0, row["share"]["inside"])) for row in rows if row["share"]["inside"] is not None]
    if shares:
        yield f"Of the states' variance inside M, {min(shares):.1%} to {max(shares):.1%} is positional."
    thresholds = vectors["thresholds"]
    yield (
        f"Threshold dims: {thresholds['observable']} of {thresholds['searched']}; in noise alone "
        f"{thresholds['by_chance']}."
    )
    calls = "; ".join(f"{call['method']} {call['said']}" for call in vectors["drift"])
    chance = ", ".join(call["method"] for call in vectors["drift"] if call["by_chance"] is not None)
    yield f"Drift: {calls}; in noise alone {f'{chance} too' if chance else 'none'}."


def _vector_table(summary: Mapping[str, Any]) -> str:
    """Positional vectors' reliability, similarity to in-window ones and slope in the first, middle and last layer."""
    vectors = summary.get("vectors")
    if not vectors:
        return ""
    layers = list(dict.fromkeys(row["layer"] for row in vectors["layers"]))
    table = pd.DataFrame(
        {
            "method": row["method"],
            "layer": row["layer"],
            "reliability in/out": _pair(row["reliability"]),
            "cosine in/out": _pair(row["cosine"]),
            "slope": ranged(row["slope"], row["slope_low"], row["slope_high"]) if row["slope"] is not None else "-",
        }
        for row in vectors["layers"]
        if row["layer"] in (layers[0], layers[len(layers) // 2], layers[-1])
    )
    return f"Positional vectors (slope: in-window tokens for one token beyond):\n{table.to_string(index=False)}"


def _pair(values: Mapping[str, float | None]) -> str:
    return " / ".join("-" if values[name] is None else f"{values[name]:z.2f}" for name in ("inside", "beyond"))


def _place(row: Row) -> str:
    return f"{row['layer']}.{row['head']}"


def _heads(rows: Sequence[Row]) -> str:
    return "1 head" if len(rows) == 1 else f"{len(rows)} heads"


def _prompts(rows: Sequence[Row]) -> str:
    """Over how many prompts the rows are means."""
    counts = sorted({row["n"] for row in rows})
    return f"{counts[0]} prompt{'s' * (counts[0] > 1)}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} prompts"
