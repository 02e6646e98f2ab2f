"""A run's scores as tables: by method, and paired differences to the reference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from probe.evaluation.intervals import shown
from probe.evaluation.summary import Table, plain_table

_SCORES = {"NLL": "tail_nll", "passkey": "passkey"}


def table(summary: dict[str, Any]) -> str:
    """Plain text, one line a method: predicted failure and scores, then differences to the reference."""
    head = ("method", "predicted", *_columns(summary))
    rows = []
    for row in summary["methods"]:
        scores = (_number(row["scores"][length][name]) for name, length in _places(summary))
        rows.append((row["method"], predicted_text(summary, row), *scores))
    compared = difference_table(summary)
    parts = [Table("", head, tuple(rows)), *([compared] if compared else [])]
    return "\n\n".join(map(plain_table, parts))


def difference_table(summary: dict[str, Any]) -> Table | None:
    """Each method's scores less the reference's on the same prompts; None where nothing was compared."""
    compared = [row for row in summary["methods"] if any(map(_differences, row["scores"].values()))]
    if not compared:
        return None
    rows = []
    for row in compared:
        found = [row["scores"][length].get(f"{name}_difference") for name, length in _places(summary)]
        cells = ("-" if each is None else shown(each["mean"], each["low"], each["high"], "+z.2f") for each in found)
        rows.append((row["method"], *cells))
    title = f"difference to {summary['reference']} on the same prompts [95% interval, paired]"
    return Table(title, ("method", *_columns(summary)), tuple(rows))


def predicted_text(summary: dict[str, Any], row: dict[str, Any]) -> str:
    """A method's prediction; of a method whose positions follow a pass's length, with the length they are of."""
    text = row["predicted"]["text"]
    follows = row["predicted"]["length"] is not None and row["method"] in summary.get("follows_length", ())
    return f"{text} (in prompts of {summary['pass_length']})" if follows else text


def score_text(scores: dict[str, Any], name: str) -> str:
    """A score with its interval, where it has one; a dash where it was not measured."""
    low, high = scores.get(f"{name}_interval", (None, None))
    return "–" if scores[name] is None else shown(scores[name], low, high, "z.2f")


def spread(counts: Sequence[int], searched: int) -> str:
    """Counts as shares of `searched`: least, median, most, such as '0.0%, 0.3%, 2.1%'."""
    return ", ".join(f"{each / searched:.1%}" for each in (min(counts), median(counts), max(counts)))


def _differences(scores: dict[str, Any]) -> list[str]:
    return [name for name in scores if name.endswith("_difference")]


def _places(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The scores' names and the lengths that they are of, in the columns' order."""
    return [(name, length) for name in _SCORES.values() for length in summary["methods"][0]["scores"]]


def _columns(summary: dict[str, Any]) -> list[str]:
    return [f"{label} {length}" for label in _SCORES for length in summary["methods"][0]["scores"]]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.2f}"
