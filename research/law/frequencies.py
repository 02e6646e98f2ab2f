"""Methods that change rotary frequencies: is their loss f at a Z of the distances met? The rule is in README.md."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.plan import query_scales
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import (
    ORIGIN,
    POWERS,
    QUERIES,
    REFERENCE,
    Calibration,
    FarKeys,
    excess_curve,
    failure_length,
    scored_queries,
    window_means,
)
from probe.commands.predict.run import FOLDER, JOURNAL, auc, losses_of, plan
from probe.thresholds.stated_window import NATS_ABOVE
from research.script import run

CONFIGS = (
    *(f"dynamic-ntk:factor={factor}" for factor in (1, 2, 4)),
    *(f"ntk-mixed:k={k}" for k in (2, 4, 12)),
    *(f"yarn:factor={factor}" for factor in (2, 4, 8)),
)
LOG_N = "leaky-rerope:k=4"
"""With log n, so that Origin is measured with it and q is fitted; not judged."""
RESULTS = Path(__file__).parent / "results"
RULES = ("slow pairs", "all pairs", "none", "Origin's Z")


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/law/frequencies.py", description=__doc__)
    top.add_argument("--out", type=Path, default=Path("runs/law/default"), help="folder of run.py's journal")
    return top


def main(args: argparse.Namespace) -> None:
    """Measures, then judges."""
    from mesa_lens.cli import main as mesa_lens
    from probe.eval_tasks.score import nll
    from probe.experiment.journal import read_journal
    from probe.files import write_json

    words = ["predict", "--methods", "origin", "--check", "--samples", "16", "--out", str(args.out)]
    if mesa_lens([*words, *(word for config in (*CONFIGS, LOG_N) for word in ("--config", config))]):
        raise RuntimeError("mesa-lens predict failed")
    planned = plan(PredictRequest(methods="origin", configs=(*CONFIGS, LOG_N), check=True, samples=16))
    losses = losses_of(planned, read_journal(args.out / FOLDER / JOURNAL).rows)
    trained, lengths = planned.trained_length, planned.lengths
    model, odd = mesa.load().model, planned.texts[1::2]
    fit, test = (
        Calibration.of(
            trained, planned.gap_tokens, planned.longest, {key: rows[begin::2] for key, rows in losses.items()}
        )
        for begin in (0, 1)
    )
    law = replace(fit.law(np.ones(fit.texts)), excess=excess_curve(test.differences().mean(0), trained))
    dims = model.config.head_dim
    configs = {}
    for name in CONFIGS:
        method = planned.methods[name]
        inside, excess = [], []
        for length in lengths:
            with mesa.applied(model, method, prompt_length=length):
                values = [nll(model, text[:trained], trained // 4).mean().item() for text in odd]
            inside.append(float(np.mean(values) - test.losses[ORIGIN, trained].mean()))
            prompt = length if (name, length) in losses else planned.longest
            pair = ((name, prompt), (REFERENCE, planned.longest))
            means = [window_means(test.losses[key], key[1], length, trained) for key in pair]
            excess.append(float((means[0] - means[1]).mean()))
        predicted = {
            rule: [
                float(law.at(keys_met(method, length, dims, rule))[0]) + cost
                for length, cost in zip(lengths, inside, strict=True)
            ]
            for rule in RULES
        }
        configs[name] = {"cost_inside": inside, "measured": excess, "predicted": predicted}
    measured = np.array([row["measured"] for row in configs.values()])
    rules = {}
    for rule in RULES:
        values = np.array([row["predicted"][rule] for row in configs.values()])
        steps = [[step(row, lengths) for row in side] for side in (values, measured)]
        rules[rule] = {
            "rms": float(np.sqrt(((values - measured) ** 2).mean())),
            "bias": float((values - measured).mean()),
            "auc": auc(values.ravel(), measured.ravel() >= NATS_ABOVE),
            "within_one_step": float((abs(np.array(steps[0]) - steps[1]) <= 1).mean()),
        }
    result = {
        "power": law.power,
        "scale_power": law.scale_power,
        "lengths": lengths,
        "rules": rules,
        "configs": configs,
    }
    write_json(RESULTS / "frequencies.json", json.loads(json.dumps(result), parse_float=lambda x: round(float(x), 4)))
    print(json.dumps(rules, indent=1))


def keys_met(method: mesa.Method, length: int, dims: int, rule: str) -> FarKeys:
    """The far keys of the scored queries, averaged over rotary pairs by the rule."""
    plan, trained = method.plan(length), method.trained_length
    queries = scored_queries(length, trained, QUERIES)
    number = np.arange(dims // 2)
    slow = 10000.0 ** (-2 * number / dims) * trained < 2 * math.pi
    factors = plan.frequency_scale(number, dims, 10000.0) if plan.frequency_scale else np.ones(len(number))
    chosen = {"slow pairs": factors[slow], "all pairs": factors, "none": np.zeros(1), "Origin's Z": np.ones(1)}[rule]
    distances = queries[:, None] - np.arange(length)
    sums = np.zeros((len(POWERS), len(queries)))
    for factor in chosen:
        beyond = np.maximum(distances * factor - trained + 1, 0.0)
        beyond = np.where(distances * factor >= trained, beyond, 0.0)
        far = beyond > 0
        for row, power in enumerate(POWERS):
            sums[row] += np.where(far, np.where(far, beyond, 1.0) ** power, 0.0).sum(1) / len(chosen)
    return FarKeys(sums, query_scales(plan)[queries])


def step(excess: np.ndarray, lengths: tuple[int, ...]) -> int:
    """Number of the failure length; one more than the last where there is none."""
    length = failure_length(lengths, excess)
    return len(lengths) if length is None else lengths.index(length)


if __name__ == "__main__":
    run(main, parser())
