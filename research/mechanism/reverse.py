"""What far keys in some heads alone, or in all others, cost of what they cost in all: from the law's sparse design."""

from __future__ import annotations

import csv
from pathlib import Path

TABLE = Path(__file__).parents[1] / "law" / "results" / "sparse.csv"
PAIRS = {"smollm2": ("16:0;19:3", "16:0;11:1"), "default": ("0:7;2:0",)}
CASES = [
    (model, f"{place} {heads}", keys)
    for model, pairs in PAIRS.items()
    for heads in pairs
    for place in ("in", "not in")
    for keys in {"smollm2": (16, 320), "default": (16, 128)}[model]
]


def share(model: str, place: str, keys: int) -> float:
    """Of the cost with the keys moved in all heads, at the largest size."""
    with TABLE.open(encoding="utf-8") as file:
        own = [
            row for row in csv.DictReader(file) if (row["model"], row["keys"], row["first"]) == (model, str(keys), "0")
        ]
    largest = max(int(row["gap"]) for row in own)
    costs = {row["place"]: float(row["cost"]) for row in own if int(row["gap"]) == largest}
    return costs[place] / costs["all"]
