"""The ranked rows as a table of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.statistics import shown
from probe.store.results import percent
from probe.thresholds.calls import WITH_FACTOR
from probe.verdict.rows import to_crop

_NAMED = 4  # heads
_MISSING = "not measured"


def table(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The head and a line a row, as `ranked` orders them."""
    reference = summary["reference"]
    longest = summary["measured_lengths"][-1] if summary["measured_lengths"] else None
    columns = {
        "rank": [str(row["rank"] or "–") for row in rows],
        "method": [row["method"] for row in rows],
        "measured failure": [row["measured"]["text"] for row in rows],
        f"NLL at {longest} (less {reference}'s)" if longest else "NLL": [_nll(row) for row in rows],
        **({"NLL less crop's": [_crop(row) for row in rows]} if any(map(to_crop, rows)) else {}),
        "drifts from": [_drift(row["drift"]) for row in rows],
    }
    if any(row["heads"] for row in rows):
        columns["smallest set of heads"] = [heads(row["heads"]) for row in rows]
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def heads(smallest: Mapping[str, Any] | None) -> str:
    """How many heads restore how much, such as '2 (1.3, 1.5): 92% [80, 104]'; a dash where none were searched."""
    if smallest is None:
        return "–"
    names = ", ".join(f"{layer}.{head}" for layer, head in smallest["heads"][:_NAMED])
    more = ", …" if len(smallest["heads"]) > _NAMED else ""
    share = percent(smallest["share"], smallest["low"], smallest["high"])
    state = "" if smallest["is_enough"] else "not enough: " if smallest.get("finished", True) else "search not done: "
    return f"{state}{len(smallest['heads'])} ({names}{more}): {share}"


def _nll(row: Mapping[str, Any]) -> str:
    nll = row["nll"]
    if nll is None:
        return _MISSING
    difference = nll["difference"]
    if row["is_reference"] or difference is None:
        return f"{nll['mean']:z.2f}"
    return f"{nll['mean']:z.2f} ({shown(difference['mean'], difference['low'], difference['high'], '+z.2f')})"


def _drift(call: Mapping[str, Any] | None) -> str:
    if call is None:
        return "not judged"
    return call["text"] if call["layer"] is None else f"{position(call)}, layer {call['layer']}"


def position(call: Mapping[str, Any]) -> str:
    """Where a method's states drift, with its interval where that is wider."""
    follows = f", {WITH_FACTOR}" if call.get("follows") else ""
    if call["low"] == call["high"] == call["length"]:
        return f"{call['length']}{follows}"
    return f"{call['length']} [{call['low']}, {call['high'] or 'none'}]{follows}"


def difference_to_crop(row: Mapping[str, Any]) -> str:
    """The tail NLL less crop's, with its interval."""
    less = to_crop(row) or {}
    return shown(less["mean"], less["low"], less["high"], "+z.2f")


def _crop(row: Mapping[str, Any]) -> str:
    return "–" if to_crop(row) is None else difference_to_crop(row)
