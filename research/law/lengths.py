"""Measured against predicted failure length at every threshold, and configs without far keys, from stored results.

    python research/law/lengths.py

Writes results/lengths.csv (by model, rule and threshold), results/lengths_law.csv (of the law, by group of models)
and results/no_far_keys.csv (by config that sees no key at a distance of M or more at the longest length). A length is
where the excess loss last rises to the threshold, between the measured lengths by a line in its logarithm.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.settings import read_configs
from probe.commands.predict.formula import QUERIES, Law, far_keys_by_length
from probe.statistics import wilson
from probe.thresholds.failure import lasting
from research.law.exact import MODELS, RESULTS, TRAINED

THRESHOLDS = (0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0)


def main() -> None:
    """Writes both tables and prints them."""
    stored = {name: Stored(name) for name in MODELS}
    rows = [row for one in stored.values() for row in one.by_threshold()]
    near = [row for one in stored.values() for row in one.without_far_keys()]
    for name, table in (("lengths", rows), ("lengths_law", [*groups(rows)]), ("no_far_keys", near)):
        frame = pd.DataFrame(table).round(3)
        frame.to_csv(RESULTS / f"{name}.csv", index=False)
        print(frame.to_string(index=False))


def groups(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of each model, of the six trained small ones and of all with 19 or 12 configs: the law over all thresholds."""
    many = {"six": TRAINED, "many": (*MODELS[:3], *TRAINED)}
    for group, names in ({name: (name,) for name in MODELS} | many).items():
        law = pd.DataFrame([row for row in rows if row["model"] in names and row["rule"] == "p by gaps"])
        exact = law.groupby("threshold")["exact"].sum()
        configs = int(law.groupby("threshold")["configs"].sum().iloc[0])
        low, high = wilson(exact[0.5], configs)
        yield {
            "models": group,
            "configs": configs,
            "rms_far_least": law["rms_far"].min(),
            "rms_far_most": law["rms_far"].max(),
            "ratio_least": law["ratio_least"].min(),
            "ratio_most": law["ratio_most"].max(),
            "exact": exact[0.5],
            "low": low,
            "high": high,
            "exact_least": exact.drop(0.5).min(),
            "exact_most": exact.drop(0.5).max(),
        }


class Stored:
    """A model's stored result: excess loss over LM-Infinite (config, length), measured and predicted by each rule."""

    def __init__(self, name: str) -> None:
        data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        self.name, self.lengths = name, data["lengths"]
        trained, rows = data["trained_length"], data["configs"]
        methods = read_configs([*rows], trained)
        far = {text: far_keys_by_length(method, self.lengths, QUERIES) for text, method in methods.items()}
        self.configs, self.measured = [*rows], np.array([row["measured"] for row in rows.values()])
        self.has_far = np.array([keys.mean(keys.sums[0]) > 0 for keys in far.values()])  # config, length
        excess = {}
        for rule, fitted in data["rules"].items():
            if "power" in fitted:
                law = Law(trained, np.array(data["curve"]["excess"]), fitted["power"], fitted["scale_power"])
                excess[rule] = np.array([law.at(keys) for keys in far.values()])
        cost = np.array([row["predicted"] for row in rows.values()]) - next(iter(excess.values()))
        self.predicted = {rule: values + cost for rule, values in excess.items()}

    def by_threshold(self) -> Iterator[dict[str, Any]]:
        """Of each rule and threshold: exact lengths with Wilson's interval, and measured over predicted length."""
        for rule, predicted in self.predicted.items():
            for threshold in THRESHOLDS:
                sides = [[failure(self.lengths, row, threshold) for row in side] for side in (predicted, self.measured)]
                exact = sum(one[0] == other[0] for one, other in zip(*sides, strict=True))
                pairs = [(one[1], other[1]) for one, other in zip(*sides, strict=True)]
                ratios = [other / one for one, other in pairs if one and other]
                low, high = wilson(exact, len(pairs))
                yield {
                    "model": self.name,
                    "rule": rule,
                    "threshold": threshold,
                    "exact": exact,
                    "configs": len(pairs),
                    "low": low,
                    "high": high,
                    "never": sum(other is None for _, other in pairs),
                    "both_fail": len(ratios),
                    "ratio": np.median(ratios) if ratios else np.nan,
                    "ratio_least": min(ratios, default=np.nan),
                    "ratio_most": max(ratios, default=np.nan),
                    **self._errors(predicted),
                }

    def _errors(self, predicted: np.ndarray) -> dict[str, float]:
        """Root mean square and mean of measured less predicted, nats/token, by whether far keys are seen."""
        errors = self.measured - predicted
        parts = {"far": errors[self.has_far], "near": errors[~self.has_far]}
        return {
            f"{score}_{side}": float(value) if len(part) else np.nan
            for side, part in parts.items()
            for score, value in (("rms", np.sqrt(np.mean(part**2))), ("bias", np.mean(part)))
        }

    def without_far_keys(self) -> Iterator[dict[str, Any]]:
        """The configs that see no far key at the longest length: measured and predicted excess there, nats/token."""
        predicted = next(iter(self.predicted.values()))
        for number, config in enumerate(self.configs):
            if not self.has_far[number, -1]:
                measured, expected = self.measured[number, -1], predicted[number, -1]
                yield {
                    "model": self.name,
                    "config": config,
                    "length": self.lengths[-1],
                    "predicted": expected,
                    "measured": measured,
                    "residual": measured - expected,
                }


def failure(lengths: list[int], excess: np.ndarray, threshold: float) -> tuple[int | None, float | None]:
    """The first of the lengths from which on the excess is at or above it, and that length between them; None: never.

    The second is None as well where it is the first length: it lies somewhere before.
    """
    first = lasting(~(excess < threshold), np.asarray(lengths))
    at = None if first is None else lengths.index(first)
    if at is None or at == 0:
        return first, None
    below, above = excess[at - 1], excess[at]
    share = (threshold - below) / (above - below)
    return first, float(np.exp(np.interp(share, (0, 1), np.log(lengths[at - 1 : at + 1]))))


if __name__ == "__main__":
    main()
