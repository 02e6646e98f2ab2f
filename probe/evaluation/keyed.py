"""What a summary says of LongPPL's key tokens: who chose them, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def key_words(summary: Mapping[str, Any]) -> list[str]:
    """Sentences; none where LongPPL was not run."""
    counts = {
        cell["length"]: cell for cell in summary["cells"] if (cell["task"], cell["metric"]) == ("longppl", "keys")
    }
    if not counts:
        return []
    by = {length: round(cell["mean"] * cell["n"]) for length, cell in sorted(counts.items())}
    told = ", ".join(f"{number} in {counts[length]['n']} texts at {length}" for length, number in by.items() if number)
    words = [f"LongPPL's key tokens were chosen by {summary['evaluator']}: {told or 'none'}."]
    without = [str(length) for length, number in by.items() if not number]
    if without:
        words.append(f"LongPPL is not judged at {', '.join(without)} tokens: there are no key tokens.")
    return words
