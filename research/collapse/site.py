"""Does the first layer that collapses name the site that patching finds? rule.md; 3 minutes a model on one core.

python research/collapse/site.py --model runs/seeds/1 --name seed1    # adds to results/site.csv
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.support import trained_length
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids, text_windows
from probe.eval_tasks.tasks import tail_prompts
from probe.thresholds.state_distance import text_distances
from probe.thresholds.stated_window import NATS_ABOVE
from research.collapse.run import A_FILE, states
from research.script import load_options, make_parser, run

TABLE = Path(__file__).parent / "results/site.csv"
TIMES, LEVEL, RESAMPLES = (1.5, 2, 3, 4, 6), 0.9, 2000


def main(args: argparse.Namespace) -> None:
    """Measures one model, and writes its rows: a layer each."""
    loaded = mesa.load(args.model, **load_options(args))
    trained, config = args.trained_length or trained_length(loaded.model.config), loaded.model.config
    windows, files = [], []
    for number, ids in enumerate(heldout_ids(loaded.tokenizer)):
        of_file = text_windows([ids], int(max(TIMES) * trained), A_FILE, trained // 4)
        windows, files = windows + of_file, files + [number] * len(of_file)

    def read(length: float, layer: int | None = None, name: str = "origin") -> tuple[np.ndarray, np.ndarray]:
        heads = None if layer is None else {layer: tuple(range(config.num_attention_heads))}
        method = replace(mesa.METHODS[name](trained_length=trained), heads=heads)
        prompts = tail_prompts(windows, first_ids(loaded.tokenizer), int(length))
        return states(loaded.model, method, prompts, trained)

    inside, level = read(trained)
    length, seen, loss = float(trained), inside, level
    for times in TIMES:
        length = times * trained
        seen, loss = read(length)
        if loss.mean() - level.mean() >= NATS_ABOVE:
            break
    _, other = read(length, name=args.method)
    recovered = np.stack([loss - read(length, layer, args.method)[1] for layer in range(len(inside))])
    weights = np.random.default_rng(0).multinomial(len(loss), np.full(len(loss), 1 / len(loss)), RESAMPLES)
    weights = np.concatenate([np.ones((1, len(loss)), int), weights])  # (draw, text); the first: as they are
    share = (weights @ recovered.T) / (weights @ (loss - other))[:, None]
    best, second = np.argsort(-share[0])[:2]
    rows = list[dict[str, Any]]()
    for layer, (within, now) in enumerate(zip(inside, seen, strict=True)):
        at, away = (each.mean(1) for each in text_distances(within, [within, now], documents=files))
        ratio = (weights @ away) / (weights @ at)
        rows.append({"model": args.name or args.model, "length": int(length), "texts": len(loss), "layer": layer})
        for what, values in {
            "ratio": ratio,
            "share": share[:, layer],
            "ahead": share[:, best] - share[:, second],
        }.items():
            low, high = np.quantile(values[1:], [0.025, 0.975])
            rows[-1] |= {what: values[0], f"{what}_low": low, f"{what}_high": high}
        rows[-1]["excess"] = loss.mean() - level.mean()
    table = pd.DataFrame(rows)
    table.insert(3, "by_states", first_collapsed(table))
    table.insert(4, "by_patching", best)
    known = pd.read_csv(TABLE) if TABLE.exists() else table.iloc[:0]
    known = known[known.model != rows[0]["model"]]
    pd.concat([known, table] if len(known) else [table]).to_csv(TABLE, index=False, float_format="%.4f")
    print(table.round(3).to_string())


def first_collapsed(table: Any) -> int:
    """The lowest layer whose ratio is clearly outside [.9, 1/.9]; -1: none."""
    outside = (table.ratio < LEVEL) | (table.ratio > 1 / LEVEL)
    clear = table.layer[outside & ((table.ratio_high < 1) | (table.ratio_low > 1))]
    return int(clear.min()) if len(clear) else -1


if __name__ == "__main__":
    top = make_parser(__doc__, "runs/collapse", "collapse")
    top.add_argument("--name", help="of the model in the table")
    top.add_argument("--method", default="rerope", help="what is patched in; mesa for nope")
    run(main, top)
