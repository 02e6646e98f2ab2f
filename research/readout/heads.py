"""Do the two heads of docs/mechanism.md restore a probe as they restore the loss? rule.md; 3 minutes on one core.

python research/readout/heads.py        # writes results/default-heads.csv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.methods import Method
from probe.commands.readout import ReadoutRequest
from probe.commands.readout.plan import RESAMPLES, fit_probe, plan
from research.collapse.run import states
from research.script import load_options, make_parser, run

PROPERTY, TIMES, PAIRS = "previous-1", 4, 20


def main(args: argparse.Namespace) -> None:
    """Measures every config on the test texts, and writes a row each."""
    loaded = mesa.load(args.model, **load_options(args))
    planned = plan(ReadoutRequest(model=args.model, properties=(PROPERTY,), trained_length=args.trained_length))
    trained, labels, training = planned.trained_length, planned.labels[PROPERTY], planned.training
    length, texts = TIMES * trained, range(len(planned.windows))
    pair = [tuple(map(int, name[1:].split("H"))) for name in args.heads.split(",")]
    inside, _ = states(
        loaded.model, mesa.Origin(trained_length=trained), [planned.prompt(text, trained) for text in texts], trained
    )
    known, groups = labels.known[:training], np.arange(training)
    probe = fit_probe(
        inside[args.layer, :training][known], labels.values[:training][known],
        np.broadcast_to(groups[:, None], known.shape)[known],
    )  # fmt: skip
    test = [planned.prompt(text, length) for text in texts[training:]]
    known, groups = labels.known[training:], np.arange(training, len(texts))
    groups = np.broadcast_to(groups[:, None], known.shape)[known]
    sums, losses = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, method in configs(loaded.model.config, trained, pair).items():
        seen, loss = states(loaded.model, method, test, trained)
        sums[name] = probe.score(seen[args.layer][known], labels.values[training:][known], groups).sums
        losses[name] = loss
        print(name, np.round([sums[name][:, 0].sum() / sums[name][:, 1].sum(), loss.mean()], 3), flush=True)
    weights = np.random.default_rng(0).multinomial(len(test), np.full(len(test), 1 / len(test)), RESAMPLES)
    weights = np.concatenate([np.ones((1, len(test)), int), weights])
    accuracy = {name: (weights @ each[:, 0]) / (weights @ each[:, 1]) for name, each in sums.items()}
    loss = {name: weights @ each / weights.sum(1) for name, each in losses.items()}
    rows = []
    for name in sums:
        of_probe, of_loss = (
            (each[name] - each["origin"]) / (each["rerope"] - each["origin"]) for each in (accuracy, loss)
        )
        row: dict[str, Any] = {"config": name, "accuracy": accuracy[name][0], "loss": loss[name][0]}
        for what, share in {"of_probe": of_probe, "of_loss": of_loss, "difference": of_probe - of_loss}.items():
            low, high = np.quantile(share[1:], [0.025, 0.975])
            row |= {what: share[0], f"{what}_low": low, f"{what}_high": high}
        rows.append(row)
    table = pd.DataFrame(rows)
    table.to_csv(
        Path(__file__).parent / "results" / f"{Path(args.model).name}-heads.csv", index=False, float_format="%.4f"
    )
    print(table.round(3).to_string())


def configs(config: Any, trained: int, pair: list[tuple[int, ...]]) -> dict[str, Method]:
    """Origin, ReRoPE, ReRoPE in the pair alone, in all other heads, and in random pairs of these."""
    every = [(layer, head) for layer in range(config.num_hidden_layers) for head in range(config.num_attention_heads)]
    others = [head for head in every if head not in pair]
    rng = np.random.default_rng(0)
    drawn = [[others[at] for at in rng.choice(len(others), len(pair), replace=False)] for _ in range(PAIRS)]
    some = {"pair": pair, "all but the pair": others} | {f"random {number}": each for number, each in enumerate(drawn)}
    methods: dict[str, Method] = {
        "origin": mesa.Origin(trained_length=trained),
        "rerope": mesa.ReRoPE(trained_length=trained),
    }
    for name, heads in some.items():
        by_layer: dict[int, tuple[int, ...]] = {}
        for layer, head in sorted(heads):
            by_layer[layer] = (*by_layer.get(layer, ()), head)
        methods[name] = mesa.ReRoPE(trained_length=trained, heads=by_layer)
    return methods


if __name__ == "__main__":
    top = make_parser(__doc__, "runs/readout", "readout")
    top.add_argument("--heads", default="L0H7,L2H0", help="the pair")
    top.add_argument("--layer", type=int, default=2, help="whose states are probed")
    run(main, top)
