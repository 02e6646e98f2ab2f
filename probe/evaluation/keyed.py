"""LongPPL of an evaluation, and what its summary says of key tokens: who chose them, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.evaluation.summary import Table

LONGPPL = "longppl"


def pooled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """LongPPL by method and length: e to the mean NLL over all key tokens of all texts, as the public code has it.

    keys: how many tokens these are, in so many texts.
    """
    own = [row for row in rows if row["task"] == LONGPPL]
    by = {
        metric: {_place(row): row["score"] for row in own if row["metric"] == metric} for metric in ("key_nll", "keys")
    }
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for place, nll in by["key_nll"].items():
        found.setdefault(place[:2], []).append((nll, by["keys"][place]))
    return [
        {
            "method": method,
            "length": length,
            "longppl": float(np.exp(np.average([nll for nll, _ in each], weights=[count for _, count in each]))),
            "keys": int(sum(count for _, count in each)),
            "texts": len(each),
        }
        for (method, length), each in sorted(found.items(), key=lambda item: item[0][1])
    ]


def longppl_table(entries: Sequence[Mapping[str, Any]]) -> Table | None:
    """LongPPL, a row a method, a column a length; None: there is none."""
    if not entries:
        return None
    methods, lengths = (list(dict.fromkeys(entry[name] for entry in entries)) for name in ("method", "length"))
    by = {(entry["method"], entry["length"]): f"{entry['longppl']:.3g}" for entry in entries}
    rows = [(method, *(by.get((method, length), "-") for length in lengths)) for method in methods]
    head = ("method", *map(str, lengths))
    return Table("LongPPL: e to the mean NLL over all key tokens of all texts", head, tuple(rows))


def _place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["method"], row["length"], row["sample"]


def key_words(summary: Mapping[str, Any]) -> list[str]:
    """Sentences; none where LongPPL was not run."""
    counts = {cell["length"]: cell for cell in summary["cells"] if (cell["task"], cell["metric"]) == (LONGPPL, "keys")}
    if not counts:
        return []
    by = {length: round(cell["mean"] * cell["n"]) for length, cell in sorted(counts.items())}
    told = ", ".join(f"{number} in {counts[length]['n']} texts at {length}" for length, number in by.items() if number)
    words = [f"LongPPL's key tokens were chosen by {summary['evaluator']}: {told or 'none'}."]
    without = [str(length) for length, number in by.items() if not number]
    if without:
        words.append(f"LongPPL is not judged at {', '.join(without)} tokens: there are no key tokens.")
    return words
