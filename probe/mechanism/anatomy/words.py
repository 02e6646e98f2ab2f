"""What an anatomy run's summary says in a few sentences, and with tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NAMED = 6
"""Heads that are named, at most."""
_PREVIOUS = 0.5
"""The least share on the token before of a previous-token head."""
_COLUMNS = {
    "mean distance": ("all_heads", "mean_distance", "{:.0f}"),
    "beyond M": ("all_heads", "mass_beyond", "{:z.2f}"),
    "sink": ("all_heads", "sink", "{:z.2f}"),
    "entropy": ("all_heads", "entropy", "{:z.2f}"),
    "unmet phases": ("unmet", "attention", "{:z.2f}"),
}


def words(summary: Mapping[str, Any]) -> str:
    """The table of what heads do beyond M, and a sentence or two a part."""
    parts = [_table(summary), *_retrieval(summary), *_sink(summary), *_previous(summary), *_lens(summary)]
    parts += [*_positions(summary), *_vector_table(summary), *_called(summary)]
    return "\n".join(part for part in parts if part)


def anatomy_findings(summary: Mapping[str, Any]) -> list[str]:
    """A paragraph for every part that was measured."""
    parts = (_retrieval(summary), _sink(summary), _lens(summary), (*_positions(summary), *_called(summary)))
    said = [" ".join(filter(None, sentences)) for sentences in parts]
    left = f"{summary['cells_left']} cells are still to be run." if summary["cells_left"] else ""
    return [paragraph for paragraph in (*said, left) if paragraph]


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
    rows = [["length", "method", "queries", *_COLUMNS]]
    for key in dict.fromkeys(keys):
        cells = [(found.get((part, *key)), name, form) for part, name, form in _COLUMNS.values()]
        rows.append([*map(str, key), *(_mean(row, name, form) for row, name, form in cells)])
    return "Means over heads, by where the query stands:\n" + _aligned(rows)


def _mean(row: Mapping[str, Any] | None, name: str, form: str) -> str:
    return "" if row is None else form.format(row[name][0])


def _retrieval(summary: Mapping[str, Any]) -> Iterator[str]:
    """Which heads stop retrieving, and which methods revive them."""
    reference, verdicts, trained = summary["reference"], summary["retrieval_heads"], summary["trained_length"]
    measured = {row["length"] for row in summary["retrieval"] if row["method"] == reference}
    if not verdicts and any(length > trained for length in measured):
        told = f"No head retrieves the passkey inside M under {reference}."
        yield told if min(measured) <= trained else "Retrieval: no length up to M was asked for."
    for length in dict.fromkeys(each["length"] for each in verdicts):
        own = [each for each in verdicts if each["length"] == length]
        dead = sorted((each for each in own if each["dies"]), key=lambda each: -each["inside"][0])
        named = ", ".join(
            f"{each['layer']}.{each['head']} ({each['inside'][0]:z.2f} to {each['beyond'][reference][0]:z.2f})"
            for each in dead[:_NAMED]
        )
        more = f" and {len(dead) - _NAMED} more" if len(dead) > _NAMED else ""
        heads = "1 head retrieves" if len(own) == 1 else f"{len(own)} heads retrieve"
        after = sum(each["offset"] for each in own)
        heads += f" the passkey inside M, {after} by looking one token after it" if after else " the passkey inside M"
        if any(None in (*each["inside"], *each["beyond"][reference]) for each in own):
            yield f"Retrieval: {heads}; one prompt does not say which are lost at {length} tokens, give more --samples."
            continue
        yield (
            f"Retrieval: {heads}; {len(dead) or 'none'} lost at {length} tokens under {reference}"
            f"{f': {named}{more} (layer.head, score inside to beyond)' if dead else ''}."
        )
        if dead:
            others = [name for name in summary["methods"] if name != reference and name in own[0]["beyond"]]
            counts = [(name, sum(name in each["revived"] for each in dead)) for name in others]
            yield f"Revived: {', '.join(f'{count} by {name}' for name, count in counts)}." if counts else ""


def _sink(summary: Mapping[str, Any]) -> Iterator[str]:
    """The first token's share inside and beyond M, under the reference."""
    reference = summary["reference"]
    for row in summary["all_heads"]:
        if row["method"] == reference and row["span"] == "beyond M":
            (inside,) = (
                other["sink"]
                for other in summary["all_heads"]
                if (other["method"], other["length"], other["span"]) == (reference, row["length"], "inside M")
            )
            yield (
                f"Sink: under {reference} at {row['length']} tokens heads give the first token {_ranged(inside)} of "
                f"their attention inside M and {_ranged(row['sink'])} beyond."
            )


def _previous(summary: Mapping[str, Any]) -> Iterator[str]:
    """The heads that look at the token before inside M, and whether they still do beyond it."""
    reference = summary["reference"]
    found = {(row["layer"], row["head"], row["method"], row["length"], row["span"]): row for row in summary["heads"]}
    for length in (each for each in summary["lengths"] if each > summary["trained_length"]):
        heads = [
            (row["layer"], row["head"])
            for row in summary["heads"]
            if (row["method"], row["length"], row["span"]) == (reference, length, "inside M")
            and row["previous"][0] >= _PREVIOUS
        ]
        if not heads:
            yield f"No head puts half of its attention on the token before, inside M at {length} tokens."
            continue
        yield f"Previous-token heads at {length} tokens, attention on the token before inside M and beyond:"
        for layer, head in heads:
            inside = found[layer, head, reference, length, "inside M"]["previous"][0]
            beyond = (
                f"{found[layer, head, name, length, 'beyond M']['previous'][0]:z.2f} {name}"
                for name in summary["methods"]
                if (layer, head, name, length, "beyond M") in found
            )
            yield f"  {layer}.{head}: {inside:z.2f}; {', '.join(beyond)}"


def _lens(summary: Mapping[str, Any]) -> Iterator[str]:
    """By how much, and from which layer on, the reference is the worse."""
    for length in dict.fromkeys(each["length"] for each in summary["lens_differs"]):
        own = [each for each in summary["lens_differs"] if each["length"] == length]
        apart = [each for each in own if each["from_layer"] is not None]
        alike = [each["method"] for each in own if each["from_layer"] is None]
        told = [
            f"{each['method']} {_ranged(each['by_layer'][-1])}, seen from layer {each['from_layer']} on, "
            f"half of it from layer {each['half_from_layer']} on"
            for each in apart
        ]
        less = f"at {length} tokens {summary['reference']}'s NLL of the next token, less the method's (nats/token)"
        yield f"Lens: {less}: {'; '.join(told)}." if told else ""
        yield f"Lens: at {length} tokens nothing sets {', '.join(alike)} apart after the last layer." if alike else ""


def _positions(summary: Mapping[str, Any]) -> Iterator[str]:
    """Whether positions can be read from text."""
    found = summary.get("vectors")
    if not found:
        return
    reference = _first(found)
    own = [row for row in found["layers"] if row["method"] == reference]
    reliable = {row["layer"]: min(each or 0 for each in row["reliability"].values()) for row in own}
    good = [layer for layer, value in reliable.items() if value >= found["reliable"]]
    shares = [row["share"]["inside"] or 0 for row in own]
    yield (
        f"Positions: {found['texts'][reference]} texts that slide give a reliability of {min(reliable.values()):z.2f} "
        f"to {max(reliable.values()):z.2f} by layer under {reference}; "
        f"{_layers(good)} at least {found['reliable']}. Of the states' variance inside M, {min(shares):.1%} to "
        f"{max(shares):.1%} is positional."
    )


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
        f"Thresholds on them: {thresholds['observable']} of {thresholds['searched']} dims are observable, "
        f"{thresholds['by_chance']} where positions mean nothing."
    )
    calls = "; ".join(f"{call['method']} {call['said']}" for call in found["drift"])
    chance = [call["method"] for call in found["drift"] if call["by_chance"] is not None]
    yield f"Drift on them: {calls}; where positions mean nothing {', '.join(chance) or 'none'} is called."


def _layers(good: Sequence[int]) -> str:
    named = ", ".join(map(str, good))
    return f"layers {named} have" if len(good) > 1 else f"layer {named} has" if good else "no layer has"


def _first(vectors: Mapping[str, Any]) -> str:
    """The reference of the run that the vectors are of."""
    return next(iter(vectors["texts"]))


def _slope(row: Mapping[str, Any]) -> str:
    if row["slope"] is None:
        return "-"
    return f"{row['slope']:z.2f} [{row['slope_low']:z.2f}, {row['slope_high']:z.2f}]"


def _pair(values: Mapping[str, float | None]) -> str:
    return " / ".join("-" if values[name] is None else f"{values[name]:z.2f}" for name in ("inside", "beyond"))


def _ranged(triple: Sequence[float | None]) -> str:
    mean, low, high = triple
    return f"{mean:z.2f}" if low is None or high is None else f"{mean:z.2f} [{low:z.2f}, {high:z.2f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
