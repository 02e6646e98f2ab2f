"""The law beside drift, thresholds and arithmetic, on those configs of results/default.json that the study has."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mesa.settings import read_configs  # noqa: E402
from probe.commands.predict.run import auc  # noqa: E402
from probe.thresholds.stated_window import NATS_ABOVE  # noqa: E402

RESULTS = Path(__file__).parent / "results"
STUDY = ROOT / "research" / "thresholds_predict_failure" / "results" / "default.json"
PROMPTS, TOP = {"repeated": "", "text": ", text"}, 10
"""Prompts that drift and thresholds are read on, and what follows a rule's name there."""
DRAWS = 1000


def main() -> None:
    """Prints the table and writes results/beside.csv."""
    law, study = (json.loads(path.read_text()) for path in (RESULTS / "default.json", STUDY))
    trained, lengths = law["trained_length"], law["lengths"]
    known = {json.dumps(config, sort_keys=True): name for name, config in study["settings"]["configs"].items()}
    judged = read_configs(list(law["configs"]), trained)
    pairs = {name: known.get(json.dumps(method.describe(), sort_keys=True)) for name, method in judged.items()}
    pairs = {name: other for name, other in pairs.items() if other}
    print(f"{len(pairs)} configs of {len(judged)}: {', '.join(pairs)}")
    excess = np.array([law["configs"][name]["predicted"] for name in pairs])
    measured = np.array([law["configs"][name]["measured"] for name in pairs])
    rules = {"the law": (excess, steps_of(excess))}
    for rule, failures in {**bounds(study, list(pairs.values())), **calls(study, list(pairs.values()))}.items():
        steps = np.array([np.searchsorted(lengths, length) for length in failures])
        rules[rule] = ((np.arange(len(lengths)) >= steps[:, None]).astype(float), steps)
    truth, rng = steps_of(measured), np.random.default_rng(0)
    draws = [np.arange(len(pairs)), *rng.integers(0, len(pairs), (DRAWS, len(pairs)))]
    rows = []
    for rule, (scores, steps) in rules.items():
        ranks = [auc(scores[draw].ravel(), measured[draw].ravel() >= NATS_ABOVE) for draw in draws]
        shares = [float((abs(steps - truth)[draw] <= 1).mean()) for draw in draws]
        for score, values in (("auc", ranks), ("within_one_step", shares)):
            low, high = np.quantile([value for value in values[1:] if value is not None], [0.025, 0.975])
            rows.append({"rule": rule, "score": score, "value": values[0], "low": low, "high": high})
    table = pd.DataFrame(rows).round(4)
    table.to_csv(RESULTS / "beside.csv", index=False)
    print(table.to_string(index=False))


def steps_of(excess: np.ndarray) -> np.ndarray:
    """Number of each row's failure length; one more than the last where it does not fail."""
    holds = excess < NATS_ABOVE
    return np.where(holds.any(1), excess.shape[1] - holds[:, ::-1].argmax(1), 0)


def bounds(study: dict[str, Any], names: Sequence[str]) -> dict[str, list[float]]:
    """Arithmetic's failure lengths of these configs, by bound."""
    rows = [study["arithmetic"]["data"][study["coords"]["config"].index(name)] for name in names]
    return {f"arithmetic: {bound}": [row[at] for row in rows] for at, bound in enumerate(study["coords"]["bound"])}


def calls(study: dict[str, Any], names: Sequence[str]) -> dict[str, list[float]]:
    """Drift's and thresholds' failure lengths by prompt: the median of the seeds that can tell.

    Where no seed can tell, the rule is taken to say that it holds.
    """
    coords, data = study["coords"], study["predicted"]["data"]
    result = {}
    for (prompt, suffix), (rule, title) in product(PROMPTS.items(), (("standard", "thresholds"), ("drift", "drift"))):
        part = data[coords["prompt"].index(prompt)][coords["rule"].index(rule)][coords["top"].index(TOP)]
        seeds = [[value for value in part[coords["config"].index(name)] if value is not None] for name in names]
        result[title + suffix] = [float(np.median(values)) if values else np.inf for values in seeds]
    return result


if __name__ == "__main__":
    main()
