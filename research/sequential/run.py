"""How often a run in stages decides wrongly: the product's own decisions on simulated losses of the shipped model.

    .venv/bin/python research/sequential/run.py            # 10,000 runs; writes results.json and results.md
    .venv/bin/python research/sequential/run.py --runs 500 --whole 20 --out /tmp/try

Losses are drawn with the means, the variance and the correlation between texts that the demo's 20 texts have
(docs/demo-curves.csv): by four methods and eight lengths. `decided` and `looks_of` are those that a run uses; the whole
runs go through `Stages`, which also chooses the lengths. Truth is what the means say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import evaluation_plan, plan as plan_probe
from probe.commands.probe.stages import BY_POSITION, Stages, candidates
from probe.statistics import confidence_of, looks_of
from probe.thresholds.failure import NATS_ABOVE, decided, measured_failure

ROOT = Path(__file__).parents[2]
CURVES = ROOT / "docs/demo-curves.csv"
TEXTS = 20
TAILS = ("normal", "Student, 3 degrees", "log-normal", "the 20 texts, drawn again")
OFFSETS = (-0.25, -0.1, -0.05, -1e-9, 1e-9, 0.05, 0.1, 0.25)


def shipped() -> tuple[pd.DataFrame, pd.DataFrame]:
    """By text (row) the loss, and the share of passkeys found, of each method and length (columns)."""
    rows = pd.read_csv(CURVES)
    shape = {"index": "prompt", "columns": ["method", "length"], "values": "value"}
    loss = rows[rows.score == "tail_nll"].pivot(**shape).dropna(axis=1)
    passkeys = rows[rows.score == "passkey"].pivot(**shape).dropna(axis=1).mean()
    return loss, passkeys


def above_level(loss: pd.DataFrame) -> pd.DataFrame:
    """Each loss less Origin's at M, text by text."""
    return loss.sub(loss["origin", 256], axis=0).drop(columns=[("origin", 256)])


def drawn(residuals: np.ndarray, tails: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Residuals (*shape, column) of mean 0 with the columns' covariance. residuals: those of the texts, of mean 0."""
    if tails == TAILS[3]:
        return residuals[rng.integers(0, len(residuals), shape)]
    values, vectors = np.linalg.eigh(np.cov(residuals.T))
    root = vectors * np.sqrt(np.clip(values, 0, None))
    normal = rng.standard_normal((*shape, root.shape[1]))
    if tails == TAILS[1]:  # one scale a text: texts that are far off are so at all lengths
        normal *= np.sqrt(1 / rng.chisquare(3, (*shape, 1)))
    if tails == TAILS[2]:  # of variance 1 and skewness 3.3
        width = 0.8
        normal = (np.exp(width * normal) - np.exp(width**2 / 2)) / np.sqrt(np.exp(2 * width**2) - np.exp(width**2))
    return normal @ root.T


def sequential(above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is decided of differences (text, ...) look by look, as a run stops at them; and with how many texts."""
    looks = looks_of(len(above))
    confidence = confidence_of({"looks": looks})
    decisions, texts = np.zeros(above.shape[1:], int), np.full(above.shape[1:], looks[-1])
    for look in looks:
        now = np.where(decisions == 0, decided(above[:look], confidence), 0)
        texts = np.where(now != 0, look, texts)
        decisions += now
    return decisions, texts


def at_threshold(runs: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """False and right decisions of one cell whose mean lies about the threshold; all cells pooled in equal shares.

    Cells that are Origin at M again are left out: they do not vary.
    """
    above = above_level(shipped()[0])
    residuals = (above - above.mean()).loc[:, above.std() > 0].to_numpy()
    cells = rng.integers(0, residuals.shape[1], runs)
    rows = []
    for tails in TAILS:
        values = drawn(residuals, tails, (TEXTS, runs), rng)[:, np.arange(runs), cells]
        for offset in OFFSETS:
            decisions, texts = sequential(values + NATS_ABOVE + offset)
            false, right = (decisions == sign for sign in (-np.sign(offset), np.sign(offset)))
            where = f"{offset:+g}" if abs(offset) > 1e-6 else f"just {'below' if offset < 0 else 'above'}"
            rows.append(
                {"tails": tails, "mean": where, "false": false.mean(), "right": right.mean(), "texts": texts.mean()}
            )
    return rows


def on_curves(runs: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Runs that decide all 31 cells of the shipped model: those with a false decision in any of them."""
    above = above_level(shipped()[0])
    means, residuals = above.mean().to_numpy(), (above - above.mean()).to_numpy()
    rows = []
    for tails in TAILS:
        decisions, texts = sequential(means + drawn(residuals, tails, (TEXTS, runs), rng))
        truth = np.sign(means - NATS_ABOVE)
        rows.append(
            {
                "tails": tails,
                "any false": ((decisions * truth) < 0).any(1).mean(),
                "false cells": ((decisions * truth) < 0).mean(),
                "decided": (decisions != 0).mean(),
                "texts": texts.mean(),
            }
        )
    return rows


class Simulated:
    """Runs through `Stages`, to their end, on drawn losses and passkeys; means are interpolated between lengths."""

    def __init__(self, longest: int = 2048) -> None:
        plan = plan_probe(ProbeRequest(samples=TEXTS), longest)
        self.evaluation = evaluation_plan(plan, ())
        self.lengths, self.methods = candidates(plan.lengths, plan.trained_length, False), list(plan.methods)
        loss, passkeys = shipped()
        self.loss, self.residuals = loss.mean(), loss - loss.mean()
        self.passkeys = passkeys

    def _at(self, series: pd.Series, method: str, length: int) -> float:
        of = series[method].sort_index()
        return float(np.interp(length, of.index, of.to_numpy()))

    def failure(self, method: str) -> int | None:
        """The first length that may be measured from which on the means fail; None: none does."""
        level = self._at(self.loss, "origin", 256) + NATS_ABOVE
        fails = [
            self._at(self.loss, method, length) > level or self._at(self.passkeys, method, length) < 0.5
            for length in self.lengths
        ]
        first = next((at for at in range(len(fails)) if all(fails[at:])), None)
        return None if first is None else self.lengths[first]

    def run(self, tails: str, rng: np.random.Generator) -> tuple[dict[str, tuple[int | None, int | None]], int]:
        """By method the ends of the bracket, and the tokens that were read."""
        stages = Stages(self.evaluation, "origin", self.lengths, TEXTS)
        noise = pd.DataFrame(drawn(self.residuals.to_numpy(), tails, (TEXTS,), rng), columns=self.residuals.columns)
        rows: dict = {}
        tokens = 0
        while tasks := stages.tasks(rows):
            for task in tasks:
                name, method, length = task.key
                tokens += task.weight
                if name == BY_POSITION:
                    scores = [
                        {"length": end, "sample": 0, "metric": "nll", "value": self._at(self.loss, method, end)}
                        for end in self.evaluation.setting.lengths
                    ]
                elif name == "nll":
                    mean = self._at(self.loss, method, length)
                    values = [mean + self._at(noise.loc[text], method, length) for text in task.inputs]
                    scores = _scores("nll", length, task.inputs, values)
                else:
                    share = self._at(self.passkeys, method, length)
                    scores = _scores("accuracy", length, task.inputs, rng.random(len(task.inputs)) < share)
                rows.setdefault(task.key, {"peak_mib": 0.0, "scores": []})["scores"] += scores
        failures = measured_failure(stages.scores(rows), 256).failures
        return {failure.method: (failure.after, failure.high) for failure in failures}, tokens


def _scores(metric: str, length: int, samples: tuple[int, ...], values: object) -> list[dict[str, object]]:
    return [
        {"length": length, "sample": sample, "metric": metric, "value": float(value)}
        for sample, value in zip(samples, values, strict=True)  # type: ignore[call-overload]
    ]


def whole_runs(runs: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Whole runs: those with a bracket of any method that leaves out where its means begin to fail."""
    simulated = Simulated()
    truth = {method: simulated.failure(method) for method in simulated.methods}
    rows = []
    for tails in TAILS:
        wrong, widths, tokens = [], [], []
        for _ in range(runs):
            brackets, read = simulated.run(tails, rng)
            tokens.append(read)
            wrong.append([not _holds(brackets[method], truth[method]) for method in simulated.methods])
            after, high = brackets["origin"]
            widths.append(np.nan if high is None or after is None else high - after)
        each = dict(zip(simulated.methods, np.mean(wrong, axis=0).tolist(), strict=True))
        rows.append(
            {
                "tails": tails,
                "runs": runs,
                "any wrong": np.any(wrong, axis=1).mean(),
                "wrong": each,
                "width of Origin's": float(np.nanmedian(widths)),
                "tokens": float(np.mean(tokens)),
            }
        )
    return rows


def _holds(bracket: tuple[int | None, int | None], truth: int | None) -> bool:
    """Whether a bracket allows the truth: after the one end, and at most at the other, or none."""
    after, high = bracket
    if truth is None:
        return high is None
    return after is not None and truth > after and (high is None or truth <= high)


def markdown(results: dict[str, list[dict[str, object]]], runs: int) -> str:
    """The results as a page."""
    lines = [
        "# False decisions of a run in stages",
        "",
        f"{runs:,} simulated runs a row but for whole runs; see [README](README.md).",
        "",
    ]
    heads = {
        "at the threshold": "One cell (method, length), by how far its mean lies from the threshold (nats/token): "
        "false and right decisions, and texts measured.",
        "on curves": "All 31 cells of the shipped model decided in each run, at the demo's means.",
        "whole runs": "Runs through all stages, lengths chosen by them; wrong: brackets that leave the truth out.",
    }
    for name, about in heads.items():
        rows = results[name]
        lines += [f"## {name.capitalize()}", "", about, "", f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
        lines += [f"| {' | '.join(_cell(value) for value in row.values())} |" for row in rows] + [""]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {share:.1%}" for name, share in value.items())
    if isinstance(value, float) and value > 30:
        return f"{value:,.0f}"
    return f"{value:z.4f}" if isinstance(value, float) else str(value)


def main() -> None:
    """Writes results.json and results.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--whole", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    results = {
        "at the threshold": at_threshold(args.runs, rng),
        "on curves": on_curves(args.runs, rng),
        "whole runs": whole_runs(args.whole, rng),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(results, indent=1, default=float) + "\n")
    (args.out / "results.md").write_text(markdown(results, args.runs))


if __name__ == "__main__":
    main()
