"""Judges the rules of rule.md on the configs of run.py: results/rules.csv (by rule) and rules.json (by config).

python research/law/rules.py --model default --out runs/law/default      # after run.py and sparse.py
python research/law/rules.py --model default --configs untried --out runs/law/untried
python research/law/rules.py --model smollm2 --samples 2 --lengths 10240,12288,14336,16384 --out RUN
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.plan import query_scales, relative_positions
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import (
    LOG_N,
    ORIGIN,
    QUERIES,
    REFERENCE,
    SCALE_POWERS,
    Calibration,
    Losses,
    Moved,
    excess_curve,
    failure_length,
    window_means,
)
from probe.commands.predict.run import FOLDER, JOURNAL, PredictPlan, losses_of, plan
from probe.experiment.journal import read_journal
from probe.files import write_json
from probe.options import parse_lengths
from research.law.run import CONFIGS, FITTED, add_stored, stored_halves
from research.law.sparse import RESULTS as SPARSE
from research.law.weights import Rotary, Seen, candidates
from research.script import run

RESULTS = Path(__file__).parent / "results"
LAW, RULE, COUNT, LARGEST = "the law, p by gaps", "exp(a u) - 1", "count (p = 0)", "largest distance"
DRAWS = 2000


@dataclass(frozen=True)
class Sparse:
    """The design's passes without the first token: what they see, and what they cost (nats/token)."""

    seen: list[Seen]
    costs: np.ndarray
    counts: np.ndarray
    gaps: np.ndarray
    tokens: int
    texts: int

    @classmethod
    def of(cls, name: str, trained: int) -> Sparse:
        """From the journal, of the texts that have all passes."""
        lines = [*map(json.loads, (SPARSE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())]
        tokens = lines[0]["settings"]["tokens"]
        rows = {tuple(line["cell"]): float(np.mean(line["nll"])) for line in lines[1:]}
        cells = [cell for cell in dict.fromkeys(key[:4] for key in rows) if cell[0] == "all" and not cell[2]]
        texts = [text for text in sorted({key[4] for key in rows}) if all((*cell, text) in rows for cell in cells)]
        moved = [cell for cell in cells if cell[3] >= 0]
        costs = [
            np.mean(
                [
                    rows[(*cell, text)] - (rows["none", 0, 0, 0, text] + rows["all", cell[1], 0, -1, text]) / 2
                    for text in texts
                ]
            )
            for cell in moved
        ]
        methods = [
            Moved(trained_length=trained, half=tokens // 2, count=count, first=False, gap=gap)
            for _, count, _, gap in moved
        ]
        seen = [Seen.of(method, tokens, tokens) for method in methods]
        counts, gaps = np.array([cell[1] for cell in moved]), np.array([cell[3] for cell in moved])
        return cls(seen, np.array(costs), counts, gaps, tokens, len(texts))

    def saturating(self, trained: int, longest: int) -> np.ndarray:
        """Weights -log(1 - h(d)) by distance: h from the counts at each size, between sizes linear."""
        most, tried = self.costs.max() * 1.001, np.concatenate([[0.0], np.geomspace(1e-7, 0.9999, 400)])
        levels = []
        for gap in sorted({*self.gaps.tolist()}):
            own = self.gaps == gap
            fits = most * (1 - (1 - tried[:, None]) ** self.counts[own]) - self.costs[own]
            levels.append(tried[(fits**2).sum(1).argmin()])
        middle = np.array(sorted({*self.gaps.tolist()})) + 0.625 * self.tokens  # from the scored to the moved keys
        distances = np.arange(longest + 1.0)
        h = np.interp(distances, [trained - 1, *middle], [0.0, *levels])
        return np.where(distances >= trained, -np.log1p(-h), 0.0)


class Curve:
    """Origin's excess by position, and what a rule's Z makes of it."""

    def __init__(self, excess: np.ndarray, trained: int) -> None:
        self.excess, self.trained = excess, trained

    def at(self, seen: Seen, weights: np.ndarray | None, q: float = 0.0) -> float:
        """The mean over queries; weights None: by the largest distance."""
        scale = seen.scales**-q
        if weights is None:
            far = np.maximum(seen.largest() - self.trained + 1, 0) * scale
            return float(np.interp(far, np.arange(len(self.excess)), self.excess).mean())
        far = weights[self.trained : self.trained + len(self.excess) - 1]
        unit = max(float(far.max(initial=0.0)), 1e-300)
        origin = np.concatenate([[0.0], np.cumsum(far / unit)])
        return float(np.interp(seen.sums(weights / unit) * scale, origin, self.excess).mean())


def weights_of(sparse: Sparse, rotary: Rotary, longest: int, power: float, curve: Curve) -> dict[str, Any]:
    """Of each rule: its weights by distance (None: the largest distance) and its parameter."""
    tables = candidates(rotary, longest)
    make_power = tables["power"][0]
    rules: dict[str, Any] = {LAW: (make_power(power), power)}
    labels = {
        "unmet angle, exponential": RULE,
        "unmet angle, power": "u^s",
        "power": "power of distance",
        "exponential": "exp of distance",
    }
    for key, label in labels.items():
        make, tried = tables[key]

        def squares(value: float, make: Callable[[float], np.ndarray] = make) -> float:
            weights = make(value)
            got = np.array([curve.at(seen, weights) for seen in sparse.seen])
            return float(((got - sparse.costs) ** 2).sum())

        best = float(min(tried, key=squares))
        rules[label] = (make(best), best)
    rules["saturating count"] = (sparse.saturating(rotary.trained_length, longest), None)
    rules["u"] = (tables["unmet angle"][0](1.0), None)
    rules["share of unmet phases"] = (tables["unmet share"][0](1.0), None)
    rules[COUNT] = (make_power(0.0), 0.0)
    rules[LARGEST] = (None, None)
    return rules


def fit_scale(planned: PredictPlan, losses: Any, weights: Any, curve: Curve) -> float:
    """q by Origin with log n, as in the present law; 0 where it was not run."""
    if (LOG_N, planned.longest) not in losses:
        return 0.0
    calibration = Calibration.of(planned.trained_length, planned.gap_tokens, planned.longest, losses)
    measured = (losses[LOG_N, planned.longest] - losses[REFERENCE, planned.longest]).mean(0)
    plan_ = planned.passes[LOG_N, planned.longest].method.plan(planned.longest)
    parts = []
    for begin, end in calibration.log_n_spans:
        queries = np.unique(np.linspace(begin, end, QUERIES).astype(int))
        far = relative_positions(plan_, queries, np.arange(planned.longest))
        parts.append((Seen(far, query_scales(plan_)[queries]), measured[begin:end].mean()))
    return float(
        min(SCALE_POWERS, key=lambda q: sum((curve.at(seen, weights, float(q)) - cost) ** 2 for seen, cost in parts))
    )


def judge(planned: PredictPlan, fit: Losses, test: Losses, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row a rule; predicted and measured of each config. fit, test: losses of the texts that fit, and that judge."""
    trained, lengths, longest = planned.trained_length, planned.lengths, planned.longest
    parameters = planned.config.rope_parameters
    dims = getattr(planned.config, "head_dim", None) or planned.config.hidden_size // planned.config.num_attention_heads
    rotary = Rotary.of(parameters["rope_theta"], dims, trained)

    def curve_of(half: Any, counts: np.ndarray | None = None) -> Curve:
        differences = half[ORIGIN, longest] - half[REFERENCE, longest]
        return Curve(excess_curve(np.average(differences, axis=0, weights=counts), trained), trained)

    own, sparse = curve_of(fit), Sparse.of(name, trained)
    power = Calibration.of(trained, planned.gap_tokens, longest, fit).law(np.ones(len(fit[ORIGIN, longest]))).power
    rules = weights_of(sparse, rotary, longest, power, own)
    names = [text for text in planned.methods if text not in (ORIGIN, FITTED)]
    texts = len(test[ORIGIN, longest])
    measured = np.array([_measured(planned, test, text) for text in names])  # (config, text, length)
    inside = {text: window_means(test[text, trained], trained, trained, trained) for text in (ORIGIN, *names)}
    costs = np.array([inside[text] - inside[ORIGIN] for text in names])
    seen = {(text, at): Seen.of(planned.methods[text], at, trained) for text in names for at in lengths}
    rng = np.random.default_rng(0)
    draws = [np.ones(texts)] + [rng.multinomial(texts, np.full(texts, 1 / texts)).astype(float) for _ in range(40)]
    truth = np.array([np.average(measured, axis=1, weights=counts) for counts in draws])
    rows, errors, by_config = [], {}, {}
    for rule, (weights, parameter) in rules.items():
        q = fit_scale(planned, fit, weights, own)
        predicted = []
        for counts in draws:
            curve = curve_of(test, counts)
            values = np.array([[curve.at(seen[text, at], weights, q) for at in lengths] for text in names])
            predicted.append(values + np.average(costs, axis=1, weights=counts)[:, None])
        errors[rule] = ((np.array(predicted) - truth) ** 2).mean(2)  # (draw, config)
        first = predicted[0]
        design = np.array([own.at(one, weights) for one in sparse.seen])
        exact = sum(
            failure_length(lengths, one) == failure_length(lengths, other)
            for one, other in zip(first, truth[0], strict=True)
        )
        rows.append({"model": name, "rule": rule, "parameter": parameter, "q": q, "configs": len(names)})
        rows[-1] |= {"design": np.sqrt(((design - sparse.costs) ** 2).mean()), "design_texts": sparse.texts}
        rows[-1] |= {"exact": exact, "rms": np.sqrt(errors[rule][0].mean())}
        by_config[rule] = {text: values.round(4).tolist() for text, values in zip(names, first, strict=True)}
    chosen = rng.integers(0, len(names), (DRAWS, len(names)))
    texts_drawn = rng.integers(1, len(draws), DRAWS)

    def resampled(rule: str) -> np.ndarray:
        return np.sqrt(errors[rule][texts_drawn[:, None], chosen].mean(1))

    for row in rows:
        for word, other in (("law", LAW), ("largest", LARGEST), ("count", COUNT), ("u", "u")):
            row[f"less_{word}"] = row["rms"] - np.sqrt(errors[other][0].mean())
            row[f"less_{word}_low"], row[f"less_{word}_high"] = np.quantile(
                resampled(row["rule"]) - resampled(other), (0.025, 0.975)
            )
    by_config["measured"] = {text: values.round(4).tolist() for text, values in zip(names, truth[0], strict=True)}
    return rows, by_config


def _measured(planned: PredictPlan, losses: Any, name: str) -> np.ndarray:
    values = []
    for length in planned.lengths:
        prompt = length if (name, length) in losses else planned.longest
        both = ((name, prompt), (REFERENCE, planned.longest))
        own, reference = (window_means(losses[key], key[1], length, planned.trained_length) for key in both)
        values.append(own - reference)
    return np.array(values).T


def main(args: argparse.Namespace) -> None:
    """Adds a model's rows to the tables."""
    name = Path(args.model).name
    chosen: Sequence[str] = CONFIGS[args.configs or (name if name in CONFIGS else "default")]
    lengths = parse_lengths(args.lengths) if args.lengths else None
    planned = plan(
        PredictRequest(
            model=args.model, methods="origin", configs=tuple(chosen), check=True, lengths=lengths, samples=args.samples
        )
    )
    if args.stored:
        planned, fit, test = stored_halves(planned, args.stored, args.judged)
    else:
        stored = read_journal(args.out / FOLDER / JOURNAL).rows
        configs = [key for key in planned.passes if key[0] in planned.methods]  # older journals lack the kind's passes
        finished = sum(all((*key, text) in stored for key in configs) for text in range(len(planned.texts)))
        losses = losses_of(replace(planned, texts=planned.texts[:finished]), stored)
        step = min(2, finished)
        fit, test = ({key: values[begin % step :: step] for key, values in losses.items()} for begin in (0, 1))
    label = f"{name} {args.configs}" if args.configs in ("untried", "twelve") else name
    label += ", even texts" if args.stored and args.judged == "even" else ""
    rows, by_config = judge(planned, fit, test, name)
    table = pd.DataFrame(rows).assign(model=label).round(4)
    path = RESULTS / "rules.csv"
    if path.exists():
        old = pd.read_csv(path)
        table = pd.concat([old[old["model"] != label], table])
    table.to_csv(path, index=False)
    written = RESULTS / "rules.json"
    everything = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    write_json(written, {**everything, label: {"lengths": list(planned.lengths), **by_config}})
    print(pd.DataFrame(rows).round(4).to_string(index=False))


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/law/rules.py", description=__doc__)
    top.add_argument("--model", default="default", help="default, smollm2, or a folder")
    top.add_argument("--configs", choices=CONFIGS, help="those that are judged (None: the model's)")
    top.add_argument("--lengths", help="tokens, as for `mesa-lens predict`")
    top.add_argument("--samples", type=int, default=16, help="texts")
    top.add_argument("--out", type=Path, help="folder of run.py's journal, unless --stored names several")
    add_stored(top)
    return top


if __name__ == "__main__":
    run(main, parser())
