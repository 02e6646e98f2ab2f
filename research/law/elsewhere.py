"""Is the law as good if Origin's curve and the cost inside M are measured on other texts than those that judge it?

    python research/law/elsewhere.py    # the shipped model, two minutes of one core: results/elsewhere.csv

p, q and what is judged are those of results/default.json. Its predictions take f and the cost from the judged texts;
here they come from the eight others too, those that p and q were fitted to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.methods import Method, make
from mesa.models import load
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import (
    ORIGIN,
    QUERIES,
    REFERENCE,
    Law,
    excess_curve,
    failure_length,
    far_keys_by_length,
)
from probe.commands.predict.run import plan
from probe.eval_tasks.score import nll
from research.law.run import CONFIGS, FITTED, RESULTS


@torch.inference_mode()
def losses(model: Any, method: Method, texts: list[np.ndarray], last: int) -> np.ndarray:
    """Mean NLL (token,) of the last tokens of these texts under a method."""
    with mesa.applied(model, method):
        return np.mean([nll(model, text, last).double().numpy() for text in texts], axis=0)


def main() -> None:
    """Measures both halves, and judges."""
    judged = json.loads((RESULTS / "default.json").read_text(encoding="utf-8"))
    names = [name for name in CONFIGS["default"] if name != FITTED]
    planned = plan(PredictRequest(model="default", methods="origin", configs=tuple(names), check=True))
    trained, longest, lengths = planned.trained_length, planned.longest, planned.lengths
    rule = judged["rules"]["p by gaps"]
    far = {name: far_keys_by_length(planned.methods[name], lengths, QUERIES) for name in names}
    measured = np.array([judged["configs"][name]["measured"] for name in names])
    model = load("default").model
    origin, reference = make(ORIGIN, trained), make(REFERENCE, trained)
    curves, costs = {}, {}
    for half, begin in (("judged", 1), ("others", 0)):
        texts = planned.texts[begin::2]
        long, short = ([text[:length] for text in texts] for length in (longest, trained))
        whole = [losses(model, method, long, longest - 1) for method in (origin, reference)]
        curves[half] = excess_curve(whole[0] - whole[1], trained)
        inside = losses(model, origin, short, trained // 4).mean()
        costs[half] = [losses(model, planned.methods[name], short, trained // 4).mean() - inside for name in names]
    rows = []
    for of_curve, of_cost in (("judged", "judged"), ("others", "judged"), ("judged", "others"), ("others", "others")):
        law = Law(trained, curves[of_curve], rule["power"], rule["scale_power"])
        predicted = np.array([law.at(far[name]) + cost for name, cost in zip(names, costs[of_cost], strict=True)])
        exact = sum(
            failure_length(lengths, one) == failure_length(lengths, other)
            for one, other in zip(predicted, measured, strict=True)
        )
        rows.append(
            {
                "f": of_curve,
                "cost_inside": of_cost,
                "configs": len(names),
                "rms": np.sqrt(((predicted - measured) ** 2).mean()),
                "exact": exact,
            }
        )
        if (of_curve, of_cost) == ("judged", "judged"):
            stored = np.array([judged["configs"][name]["predicted"] for name in names])
            print(f"at most {abs(predicted - stored).max():z.4f} nats/token from default.json")
    table = pd.DataFrame(rows).round(4)
    table.to_csv(RESULTS / "elsewhere.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
