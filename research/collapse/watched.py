"""How often the rule of `probe.watch`'s defaults warns, by length: rule.md, from the stored distances of Origin.

python research/collapse/watched.py                  # results/watch.csv, in a second
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from research.collapse.run import RESULTS, TIMES, WITHIN, layers_in

FORMER = ("layer 0", 0.6)
"""The defaults before."""


def rows_of(name: str) -> list[dict[str, object]]:
    """Of one model, by length: evaluated windows, and how many are detected by the last layer's limit and by FORMER."""
    table = pd.read_csv(RESULTS / f"{name}.csv")
    origin = table[table.config == "origin"]
    trained = round(origin.length.min() / WITHIN[0])
    inside = origin[(origin.texts == "scale") & (origin.length <= trained)]
    last, rows = layers_in(table)[-1], list[dict[str, object]]()
    mean = inside[last].mean()
    farthest = float(np.abs(np.log(inside[last] / mean)).max())
    for times in (*WITHIN, *TIMES):
        now = origin[(origin.texts == "evaluated") & (origin.length == int(times * trained))]
        by_last = np.abs(np.log(now[last] / mean)) > farthest
        by_former = np.abs(np.log(now[FORMER[0]] / inside[FORMER[0]].mean())) > -np.log(FORMER[1])
        loss = now.loss.mean() - origin[(origin.texts == "evaluated") & (origin.length == trained)].loss.mean()
        of_length = {"model": name, "times": times, "excess": round(loss, 3), "windows": len(now)}
        detected = {"detected": int(by_last.sum()), "by_former": int(by_former.sum())}
        rows.append(of_length | detected | {"limit": round(float(np.exp(-farthest)), 3)})
    return rows


if __name__ == "__main__":
    models = sorted(path.name.removesuffix("-curve.csv") for path in RESULTS.glob("*-curve.csv"))
    result = pd.DataFrame([row for name in models for row in rows_of(name)])
    result.to_csv(RESULTS / "watch.csv", index=False)
    print(result.to_string(index=False))
