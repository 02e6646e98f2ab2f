"""Exact failure lengths by rule, and rms beside the law's, from stored results; writes results/exact.csv.

    python research/law/exact.py

Intervals resample configs alone: of the judged texts only the means are stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.settings import read_configs
from probe.commands.predict.formula import QUERIES, Law, failure_length, far_keys_by_length
from probe.thresholds.stated_window import NATS_ABOVE

RESULTS = Path(__file__).parent / "results"
TRAINED = ("small", "base-500000", "M-128", "M-512", "gqa", "wide")
MODELS = (
    "default",
    "seed1",
    "seed2",
    "untried",
    *TRAINED,
    "smollm2-twelve",
    "smollm2-twelve-first",
)
DRAWS = 10_000


def main() -> None:
    """Prints the table and writes it."""
    there = [name for name in MODELS if (RESULTS / f"{name}.json").exists()]
    rows = [row for name in there for row in rows_of(name)]
    table = pd.DataFrame(rows).round(4)
    table.to_csv(RESULTS / "exact.csv", index=False)
    print(table.to_string(index=False))


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Of each rule: exact failure lengths, of how many, rms, and rms less the law's with its interval, nats/token."""
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    trained, lengths, stored = data["trained_length"], data["lengths"], data["configs"]
    methods = read_configs([*stored], trained)
    far = {text: far_keys_by_length(method, lengths, QUERIES) for text, method in methods.items()}
    measured = np.array([row["measured"] for row in stored.values()])
    predicted = {}
    for rule, values in data["rules"].items():
        if "power" in values:
            law = Law(trained, np.array(data["curve"]["excess"]), values["power"], values["scale_power"])
            predicted[rule] = np.array([law.at(keys) for keys in far.values()])
    own = next(iter(predicted.values()))  # the law's: beyond it, what a method costs inside M
    cost = np.array([row["predicted"] for row in stored.values()]) - own
    seen = np.array([keys.mean(keys.sums[0]) > 0 for keys in far.values()])
    predicted["arithmetic: a distance of M or more is seen"] = np.where(seen, NATS_ABOVE, 0.0) - cost
    errors = {rule: ((values + cost - measured) ** 2).mean(1) for rule, values in predicted.items()}
    drawn = np.random.default_rng(0).integers(0, len(stored), (DRAWS, len(stored)))
    law_errors = next(iter(errors.values()))
    for rule, squares in errors.items():
        pairs = zip(predicted[rule] + cost, measured, strict=True)
        less = np.sqrt(squares[drawn].mean(1)) - np.sqrt(law_errors[drawn].mean(1))
        low, high = np.quantile(less, (0.025, 0.975))
        yield {
            "model": name,
            "rule": rule,
            "exact": sum(failure_length(lengths, one) == failure_length(lengths, other) for one, other in pairs),
            "configs": len(stored),
            "fail": sum(failure_length(lengths, one) is not None for one in measured),
            "rms": np.sqrt(squares.mean()),
            "rms_more": np.sqrt(squares.mean()) - np.sqrt(law_errors.mean()),
            "low": low,
            "high": high,
        }


if __name__ == "__main__":
    main()
