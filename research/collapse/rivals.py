"""Do drift and thresholds give the failure lengths that rule A gives? rule.md; 5 minutes a model on one core.

python research/collapse/rivals.py --model default    # adds to results/rivals.csv and rivals-lengths.csv
python research/collapse/rivals.py --evaluate         # of all stored models: exact lengths of the configs that fail
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.methods import Method
from mesa.support import trained_length
from probe.eval_tasks.retrieval import first_ids, repeated_ids
from probe.eval_tasks.score import heldout_ids, text_windows
from probe.eval_tasks.tasks import tail_prompts
from probe.thresholds.drift import find_drift
from probe.thresholds.onset import drift_onsets, threshold_onsets
from probe.thresholds.search import CrossingRule, search
from research.collapse.run import A_FILE, RESULTS, TIMES, methods_of, scored, states
from research.script import load_options, make_parser, run

SAME = 0.02  # nats/token; weights trained again are the stored ones' if no loss differs by that
RULES = ("A", "drift, repeated", "thresholds, repeated", "drift, text", "thresholds, text", "law", "arithmetic")


MODELS = ("default", "seed1", "seed2", "gqa", "small", "M-128", "M-512", "base-500000", "wide")


def main(args: argparse.Namespace) -> None:
    """Reads every config once a prompt, and scores the onsets with the stored measured lengths."""
    if args.evaluate:
        print(of_failing().to_string())
        return
    name = Path(args.model).name
    stored, by_config = pd.read_csv(RESULTS / f"{name}.csv"), pd.read_csv(RESULTS / f"{name}-lengths.csv")
    loaded = mesa.load(args.model, **load_options(args))
    trained = args.trained_length or trained_length(loaded.model.config)
    lengths, first = [int(times * trained) for times in TIMES], first_ids(loaded.tokenizer)
    methods = methods_of(trained, ["origin", *by_config.config.unique()])
    windows = [
        window
        for ids in heldout_ids(loaded.tokenizer)
        for window in text_windows([ids], lengths[-1], A_FILE, trained // 4)
    ]
    origin = stored[(stored.texts == "scale") & (stored.config == "origin")].groupby("length").loss.mean()
    for length in (trained, 2 * trained, 4 * trained):
        loss = states(loaded.model, methods["origin"], tail_prompts(windows, first, length), trained)[1].mean()
        if abs(loss - origin[length]) >= SAME:
            raise ValueError(f"{args.model} has a loss of {loss:z.3f} at {length}; stored: {origin[length]:z.3f}")
    word = loaded.tokenizer(" hello", add_special_tokens=False)["input_ids"]
    repeated = [np.array(repeated_ids(loaded.tokenizer, word, lengths[-1])[0])]
    tables = [by_config]
    for kind, prompts in (("repeated", repeated), ("text", tail_prompts(windows, first, lengths[-1]))):
        hidden = mean_states(loaded.model, methods, prompts, trained)
        plans = {config: method.plan(lengths[-1]) for config, method in methods.items()}
        onsets = {
            "drift": drift_onsets(find_drift(hidden, trained, plans=plans)),
            "thresholds": threshold_onsets(search(hidden, trained, CrossingRule.scaled(trained))),
        }
        for rule, of_methods in onsets.items():
            rows = [
                {"config": onset.method, "rule": f"{rule}, {kind}", "length": on_grid(onset.length, lengths)}
                | {"onset": onset.length, "says": str(onset)}
                for onset in of_methods
                if onset.method != "origin"
            ]
            tables.append(pd.DataFrame(rows).merge(by_config[["config", "far"]].drop_duplicates()))
    every = pd.concat(tables)[["config", "far", "rule", "length", "onset", "says"]]
    add(name, every[every.rule.isin(RULES[1:5])], "rivals-lengths.csv")
    scores = pd.DataFrame(scored(every, trained, RULES))
    add(name, scores, "rivals.csv")
    print(scores[scores.configs == "all"].round(3).to_string())


def of_failing() -> Any:
    """By model and rule the exact lengths among the configs that fail, of how many; NaN: not read by that rule."""
    onsets, table = pd.read_csv(RESULTS / "rivals-lengths.csv"), dict[str, dict[str, float]]()
    for name in MODELS:
        lengths = pd.read_csv(RESULTS / f"{name}-lengths.csv")
        wide = pd.concat([lengths, onsets[onsets.model == name]]).pivot(index="config", columns="rule", values="length")
        fail = wide[wide.measured > 0]
        table[name] = {rule: float((fail[rule] == fail.measured).sum()) for rule in RULES if rule in fail}
        table[name]["fail"] = len(fail)
    return pd.DataFrame(table).T[["fail", *RULES]]


def mean_states(model: Any, methods: Mapping[str, Method], prompts: Sequence[np.ndarray], trained: int) -> xr.DataArray:
    """States (method, layer, position, dim) after every layer, means over the prompts; the first token is left out."""
    last = len(prompts[0]) - 1
    values = np.stack(
        [
            np.mean([states(model, method, [ids], trained, last)[0][:, 0] for ids in prompts], axis=0)
            for method in tqdm(methods.values(), desc="capturing hidden states", unit="config")
        ]
    )
    coords = {"method": [*methods], "layer": range(values.shape[1]), "position": range(1, last + 1)}
    return xr.DataArray(values, coords, [*coords, "dim"], name="resid_post").assign_coords(dim=range(values.shape[3]))


def on_grid(onset: int | None, lengths: Sequence[int]) -> int:
    """The first of the lengths at or above the onset; 0: none."""
    return next((length for length in lengths if onset is not None and length >= onset), 0)


def add(name: str, table: Any, file: str) -> None:
    """Puts a model's rows into a file of results, in place of those it has there."""
    known = pd.read_csv(RESULTS / file) if (RESULTS / file).exists() else pd.DataFrame()
    table.insert(0, "model", name)
    rows = pd.concat([known[known.model != name], table]) if len(known) else table
    rows.to_csv(RESULTS / file, index=False, float_format="%.4g")


if __name__ == "__main__":
    top = make_parser(__doc__, "runs/collapse", "collapse")
    top.add_argument("--evaluate", action="store_true", help="measure nothing")
    run(main, top)
