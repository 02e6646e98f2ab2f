"""Distance, count or sinks: what heads do under a gap in positions, and which of it goes with the loss?

    python research/mechanism/gaps.py --out runs/gaps

Decided beforehand in README.md. Journals by text, and writes gaps.csv, a row a head and quantity, gaps-heads.csv, the
correlations over heads, and gaps-costs.csv, the loss by gap.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.engine.attention import rows
from mesa.engine.schedule import Schedule
from probe.commands.anatomy.run import recorded_attention
from probe.commands.predict import PredictRequest
from probe.commands.predict.run import plan
from probe.eval_tasks.score import nll
from probe.statistics import student
from research.correlation import correlations, rank_correlation
from research.script import Journal, make_parser, run

M, SCORED, NEAR = 256, 64, 32
BOUNDARIES, GAPS = (16, 32, 64, 96, 128, 160), (0, 128, 256, 512, 1024, 1792)
ALONE = (128, 1024)
"""The gap that is put into single heads."""
QUANTITIES = ("near", "first", "leak")
"""What a head loses on the last `NEAR` tokens and on the first, and what it gains on the other moved keys."""
DRAWS = 1000


def gap(boundary: int, size: int, heads: Any = None) -> mesa.Method:
    """The first `boundary` tokens `size` further away, in all heads or in some."""
    return mesa.make("gap", M, boundary=boundary, gap=size, heads=heads)


def attention(model: Any, ids: list[int], boundary: int, size: int) -> list[Any]:
    """Mean attention of every head (layer, head, quantity), over the last `SCORED` tokens as queries."""
    queries = [*range(len(ids) - SCORED, len(ids))]
    distance = torch.tensor(queries)[:, None] - torch.arange(len(ids))
    index = torch.arange(len(ids)).expand_as(distance)
    parts = torch.stack([(distance >= 0) & (distance <= NEAR), index == 0, (index > 0) & (index < boundary)], -1)

    def measured(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        weights = rows(schedule, query, key, scale, queries)[0].double()
        return {"mass": torch.einsum("hqk,qkp->hp", weights, parts.double()) / len(queries)}

    return recorded_attention(model, ids, gap(boundary, size), measured)["mass"].values.round(5).tolist()


@torch.no_grad()
def measure(journal: Journal, texts: Iterable[list[int]]) -> None:
    """Journals what is missing."""
    model = mesa.load().model
    heads = [(layer, head) for layer in range(4) for head in range(8)]

    def loss(ids: list[int], method: mesa.Method) -> float:
        with mesa.applied(model, method):
            return float(nll(model, np.array(ids), SCORED).double().mean())

    for number, ids in enumerate(texts):
        for boundary in BOUNDARIES:
            for size in GAPS:
                if (cell := ("gap", boundary, size, number)) not in journal.rows:
                    row = {"nll": loss(ids, gap(boundary, size)), "mass": attention(model, ids, boundary, size)}
                    journal.add(cell, row)
        for layer, head in heads:
            if (cell := ("alone", layer, head, number)) not in journal.rows:
                journal.add(cell, {"nll": loss(ids, gap(*ALONE, heads={layer: (head,)}))})
        print(number, flush=True)


class Measured:
    """What the journal holds, as arrays: each config's change from no gap, of every text."""

    def __init__(self, journal: Journal, texts: int) -> None:
        def losses(*cell: str | int) -> np.ndarray:
            return np.array([journal.rows[*cell, text]["nll"] for text in range(texts)])

        def mass(*cell: int) -> np.ndarray:
            return np.array([journal.rows["gap", *cell, text]["mass"] for text in range(texts)])

        plain = losses("gap", BOUNDARIES[0], 0)
        self.configs = [(boundary, size) for boundary in BOUNDARIES for size in GAPS[1:]]
        self.costs = np.array([losses("gap", *config) - plain for config in self.configs])  # (config, text)
        self.before = np.array([mass(boundary, 0) for boundary, _ in self.configs])
        self.after = np.array([mass(*config) for config in self.configs])  # (config, text, layer, head, quantity)
        self.changes = (self.after - self.before) * [-1, -1, 1]
        self.alone = np.array([[losses("alone", layer, head) - plain for head in range(8)] for layer in range(4)])


def resampled(texts: int) -> np.ndarray:
    """Weights of texts (draw, text): first all the same, then drawn with replacement."""
    rng = np.random.default_rng(0)
    return np.concatenate([np.ones((1, texts)), rng.multinomial(texts, np.full(texts, 1 / texts), size=DRAWS)]) / texts


def interval(values: np.ndarray) -> dict[str, float]:
    """The first value, and the 95% interval of the others that are defined."""
    others = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(others, [0.025, 0.975]) if len(others) else (np.nan, np.nan)
    return {"": float(values[0]), "_low": float(low), "_high": float(high)}


def along_gaps(costs: np.ndarray, changes: np.ndarray) -> dict[str, float]:
    """Spearman's correlation over gaps, no gap included, of means over texts; both: (config, text)."""
    weights = resampled(costs.shape[1])
    means = [np.concatenate([np.zeros((1, len(weights))), part @ weights.T]) for part in (costs, changes)]
    ranks = [rankdata(part, axis=0) - (len(part) + 1) / 2 for part in means]
    spread = np.sqrt((ranks[0] ** 2).sum(0) * (ranks[1] ** 2).sum(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return interval((ranks[0] * ranks[1]).sum(0) / spread)


def along_texts(costs: np.ndarray, changes: np.ndarray) -> dict[str, float]:
    """Spearman's correlation over texts and gaps once each gap's mean over texts is taken out; resampled by text."""
    x, y = (part - part.mean(1, keepdims=True) for part in (costs, changes))
    weights = np.rint(resampled(costs.shape[1]) * costs.shape[1])
    return interval(correlations(x.ravel(), y.ravel(), np.tile(weights, len(costs))))


def by_head(data: Measured) -> list[dict[str, Any]]:
    """A row a head and quantity."""
    result, at = [], data.configs.index(ALONE)
    for layer, head in np.ndindex(data.alone.shape[:2]):
        low, high = student(data.alone[layer, head].tolist())
        cost = {"cost_alone": float(data.alone[layer, head].mean()), "cost_low": low, "cost_high": high}
        for number, quantity in enumerate(QUANTITIES):
            place = (..., layer, head, number)
            row = {"layer": layer, "head": head, "quantity": quantity, "before": data.before[at][place].mean()}
            row |= {"after": data.after[at][place].mean()} | cost
            for name, correlation in (("gaps", along_gaps), ("texts", along_texts)):
                values = correlation(data.costs, data.changes[place])
                row |= {f"{name}{end}": value for end, value in values.items()}
            result.append(row)
    return result


def over_heads(data: Measured) -> list[dict[str, Any]]:
    """Rank correlation over heads of the cost of the gap in a head alone with what the gap everywhere changes there."""
    at = data.configs.index(ALONE)
    costs = data.alone.mean(-1).ravel()
    changes = {name: data.changes[at, ..., number].mean(0).ravel() for number, name in enumerate(QUANTITIES)}
    result = []
    for name, change in changes.items():
        value, low, high = rank_correlation(costs.tolist(), change.tolist())
        result.append({"over": "heads", "quantity": name, "spearman": value, "low": low, "high": high})
    weights = np.random.default_rng(0).multinomial(len(costs), np.full(len(costs), 1 / len(costs)), size=DRAWS)
    weights = np.concatenate([np.ones((1, len(costs))), weights])
    samples = {name: correlations(costs, change, weights) for name, change in changes.items()}
    for first, second in (("leak", "first"), ("near", "first"), ("leak", "near")):
        ends = interval(samples[first] - samples[second])
        row = {"over": "heads", "quantity": f"{first} less {second}"}
        result.append(row | dict(zip(("spearman", "low", "high"), ends.values(), strict=True)))
    return result


def costs(data: Measured) -> list[dict[str, Any]]:
    """The loss by gap, nats/token more than without: mean over texts with Student's interval."""
    return [
        {
            "boundary": boundary,
            "gap": size,
            "cost": row.mean(),
            **dict(zip(("low", "high"), student(row.tolist()), strict=True)),
        }
        for (boundary, size), row in zip(data.configs, data.costs, strict=True)
    ]


def main(args: argparse.Namespace) -> None:
    """Measures what is missing, and writes the tables."""
    planned = plan(PredictRequest(methods="origin", samples=16))
    texts = [text[:M].tolist() for text in planned.texts]
    settings = {**planned.settings, "boundaries": BOUNDARIES, "gaps": GAPS, "scored": SCORED}
    journal = Journal(args.out / "journal.jsonl", settings, overwrite=args.overwrite)
    measure(journal, texts)
    data = Measured(journal, len(texts))
    tables: Mapping[str, Callable[[Measured], list[dict[str, Any]]]] = {
        "gaps": by_head,
        "gaps-heads": over_heads,
        "gaps-costs": costs,
    }
    for name, table in tables.items():
        result = [{key: f"{x:.4g}" if isinstance(x, float) else x for key, x in row.items()} for row in table(data)]
        with (args.out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, result[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(result)
        print(name, *(" ".join(map(str, row.values())) for row in result), sep="\n")


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/gaps", "mechanism")
    top.prog = "python research/mechanism/gaps.py"
    return top


if __name__ == "__main__":
    run(main, parser())
