"""Does the distance of hidden states to the in-window distribution give a failure length? rule.md, evaluated.

python research/collapse/run.py                      # half an hour on one core; the same command continues
python research/collapse/run.py --evaluate           # the stored numbers again, in a second
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.decoder import layers_of, removed
from mesa.methods import Method, make
from mesa.plan import relative_positions
from mesa.settings import read_config
from mesa.support import trained_length
from probe.commands.predict.formula import Law, excess_curve, failure_length, far_keys_by_length, scored_queries
from probe.commands.predict.run import auc
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids, nll, text_windows
from probe.eval_tasks.tasks import tail_prompts
from probe.statistics import wilson
from probe.thresholds.state_distance import StateReference, text_distances
from probe.thresholds.stated_window import NATS_ABOVE
from research.law.run import CONFIGS as LAW
from research.script import Journal, deadline, load_options, make_parser, run

RESULTS = Path(__file__).parent / "results"
TIMES = (1, 1.25, 1.5, 2, 3, 4, 6)
WITHIN = (0.5, 0.75)
"""Lengths in M."""
A_FILE, BATCH, QUERIES = 2, 8, 16
POWER, SCALE_POWER = 0.6, 2.4  # of the law as published for the shipped model
TEXTS = (
    "linear_model/_ridge cluster/_kmeans ensemble/_forest preprocessing/_data metrics/_ranking tree/_classes "
    "model_selection/_search pipeline"
).split()
"""Files of scikit-learn that are evaluated."""
DILUTION = "rerope:window=224,log_n=false"
ADDED = (
    *(f"rerope:window={window},log_n=false" for window in (16, 64, 160, 240)),
    *(f"rerope:window={window}" for window in (8, 64)),
    *("dca", "mesa", "lm-infinite:window=64", "streaming-llm", "crop"),
    *("dynamic-ntk:factor=2", "ntk-mixed", "yarn", "cope", "pi:factor=2"),
)
CONFIGS = ("origin", *ADDED, *LAW["default"])


def main(args: argparse.Namespace) -> None:
    """Measures what is not there, then evaluates."""
    name = Path(args.model).name
    if not args.evaluate:
        table = measure(args)
        RESULTS.mkdir(exist_ok=True)
        table.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.4f")
    table = pd.read_csv(RESULTS / f"{name}.csv")
    curve = pd.read_csv(RESULTS / f"{name}-curve.csv")["excess"].to_numpy()
    evaluate(table, name, Law(trained_in(table), curve, POWER, SCALE_POWER))


def methods_of(trained: int, texts: Sequence[str] = CONFIGS) -> dict[str, Method]:
    """By config, in the law's notation; windows are those of M = 256, scaled to `trained`."""
    return {text: _method(text, trained) for text in dict.fromkeys(texts)}


def _method(text: str, trained: int) -> Method:
    if ":" not in text:
        return make(text, trained)
    return read_config(re.sub(r"(?<=window=)\d+", lambda size: str(int(size[0]) * trained // 256), text), trained)


def measure(args: argparse.Namespace) -> Any:
    """A row a set of texts, config, length and text: loss, and the mean distance by layer; of what was measured."""
    loaded = mesa.load(args.model, **load_options(args))
    trained = args.trained_length or trained_length(loaded.model.config)
    lengths = [int(times * trained) for times in (*WITHIN, *TIMES)]
    folder = Path(find_spec("sklearn").origin).parent  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
    read = heldout_ids(loaded.tokenizer, [(folder / f"{name}.py").read_text(encoding="utf-8") for name in TEXTS])
    sets = {"scale": heldout_ids(loaded.tokenizer), "evaluated": read}
    first, over = first_ids(loaded.tokenizer), deadline(args.minutes)
    journal = Journal(args.out / "journal.jsonl", {"model": args.model, "M": trained}, overwrite=args.overwrite)
    inside, fitted, rows = None, [], list[dict[str, Any]]()
    for kind, documents in sets.items():
        windows, files = [], []
        for number, ids in enumerate(documents):
            of_file = text_windows([ids], max(lengths), A_FILE, trained // 4)
            windows, files = windows + of_file, files + [number] * len(of_file)
        if inside is None:
            inside = states(loaded.model, make("origin", trained), tail_prompts(windows, first, trained), trained)[0]
            fitted = [StateReference.fit(of_layer) for of_layer in inside]
        for name, method in methods_of(trained, CONFIGS if kind == "evaluated" else ("origin", DILUTION)).items():
            for length in lengths if name == "origin" else lengths[len(WITHIN) :]:
                cell = (kind, name, length)
                if cell not in journal.rows:
                    if over():
                        continue
                    seen, loss = states(loaded.model, method, tail_prompts(windows, first, length), trained)
                    distance = [
                        text_distances(within, [layer], documents=files)[0] if kind == "scale" else fit.distances(layer)
                        for within, fit, layer in zip(inside, fitted, seen, strict=True)
                    ]
                    by_text = np.mean(distance, axis=2).T.round(5).tolist()
                    journal.add(cell, {"loss": loss.round(5).tolist(), "distance": by_text})
                    print(kind, name, length, np.round([loss.mean(), *np.mean(by_text, 0)], 2), flush=True)
                row = journal.rows[cell]
                for text, (loss, by_layer) in enumerate(zip(row["loss"], row["distance"], strict=True)):
                    layers = {f"layer {layer}": value for layer, value in enumerate(by_layer)}
                    rows.append({"texts": kind, "config": name, "length": length, "text": text, "loss": loss, **layers})
        if kind == "scale" and ("curve",) not in journal.rows:
            journal.add(
                ("curve",), {"excess": origin_curve(loaded.model, tail_prompts(windows, first, max(lengths)), trained)}
            )
    pd.DataFrame({"excess": journal.rows["curve",]["excess"]}).to_csv(RESULTS / f"{Path(args.model).name}-curve.csv")
    return pd.DataFrame(rows)


@torch.no_grad()
def states(
    model: Any, method: Method, prompts: Sequence[np.ndarray], trained: int, last: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """States of the last tokens of prompts of one length (layer, text, token, dim), and their mean loss (text,).

    last: how many; default M/4, at most all but the first.
    """
    last, parts, losses = last or trained // 4, list[np.ndarray](), list[np.ndarray]()
    for begin in range(0, len(prompts), BATCH):
        ids, kept = torch.tensor(np.stack(prompts[begin : begin + BATCH]), device=model.device), list[np.ndarray]()

        def keep(module: Any, args: Any, output: Any, kept: list[np.ndarray] = kept) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            kept.append(tensor[:, -last:].float().cpu().numpy())

        with mesa.applied(model, method), removed([layer.register_forward_hook(keep) for layer in layers_of(model)]):
            logits = model(ids, use_cache=False).logits[:, -last - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), ids[:, -last:], reduction="none")
        losses.append(loss.mean(1).cpu().numpy())
        parts.append(np.stack(kept))
    return np.concatenate(parts, axis=1), np.concatenate(losses)


def origin_curve(model: Any, prompts: Sequence[np.ndarray], trained: int) -> list[float]:
    """Origin's excess loss over LM-Infinite's by position from M - 1 on, mean over texts: the law's curve."""
    means = []
    for name in ("origin", "lm-infinite"):
        with mesa.applied(model, make(name, trained)):
            means.append(np.mean([nll(model, ids, len(ids) - 1).numpy() for ids in prompts], axis=0))
    return excess_curve(means[0] - means[1], trained).round(4).tolist()


def scale_of(table: Any, config: str, layer: str) -> tuple[np.ndarray, np.ndarray]:
    """|ln ratio| (rising from 0) and the excess loss over the config's own at M there: f or g of rule.md."""
    means = table[(table.texts == "scale") & (table.config == config)].groupby("length")[["loss", layer]].mean()
    means = means.sort_index()
    means = means[means.index >= table.attrs["M"]]
    moved = np.abs(np.log(means[layer] / means[layer].iloc[0])).to_numpy()
    order = np.argsort(moved, kind="stable")
    return moved[order], np.maximum(isotonic_regression((means.loss - means.loss.iloc[0]).to_numpy()[order]).x, 0)


def layer_of(table: Any) -> str:
    """The layer in which |ln ratio| follows Origin's excess loss best, over its (text, length) pairs from M on."""
    origin = table[(table.texts == "scale") & (table.config == "origin") & (table.length >= table.attrs["M"])]
    at = origin[origin.length == table.attrs["M"]].set_index("text")
    excess = origin.loss.to_numpy() - at.loss[origin.text].to_numpy()
    names = [name for name in table if str(name).startswith("layer")]
    scores = {
        name: spearmanr(np.abs(np.log(origin[name].to_numpy() / at[name][origin.text].to_numpy())), excess).statistic
        for name in names
    }
    print({name: round(float(score), 3) for name, score in scores.items()})
    return str(max(scores, key=lambda name: np.nan_to_num(scores[name], nan=-1)))  # NaN: below all that see too far


def trained_in(table: Any) -> int:
    """M of a table of measured texts."""
    return int(table[table.config == "origin"].length.min() / WITHIN[0])


def evaluate(table: Any, name: str, law: Law) -> None:
    """Writes predicted and measured lengths (NAME-lengths.csv) and scores (NAME-scores.csv)."""
    trained = table.attrs["M"] = law.trained_length
    layer = layer_of(table)
    measured = set(table.config[table.texts == "scale"])
    scales = {config: scale_of(table, config, layer) for config in ("origin", DILUTION) if config in measured}
    seen = table[table.texts == "evaluated"]
    origin = seen[seen.config == "origin"]
    level, lowest = origin[origin.length == trained].loss.mean(), origin[origin.length == trained][layer].quantile(0.05)
    lengths = sorted(int(length) for length in seen.length.unique() if length >= trained)
    pairs, methods = list[dict[str, Any]](), methods_of(trained, seen.config.unique())
    counts = seen.groupby("config")["length"].nunique()
    for config in [config for config in methods if config != "origin" and counts.get(config, 0) == len(lengths)]:
        means = seen[seen.config == config].groupby("length")[["loss", *layers_in(table)]].mean().loc[lengths]
        plans = [methods[config].plan(length) for length in lengths]
        far = [
            max(relative_positions(plan, scored_queries(n, trained, QUERIES), np.arange(n)).max(), 0) >= trained
            for plan, n in zip(plans, lengths, strict=True)
        ]
        changed = any(plan.frequency_scale is not None for plan in plans)
        cost = means.loss.iloc[0] - level
        moved = np.abs(np.log(means[layer] / means[layer].iloc[0])).to_numpy()
        diluted = DILUTION if changed or not any(far) else "origin"
        by_law = cost + law.at(far_keys_by_length(methods[config], lengths, QUERIES))
        rules = {
            "measured": means.loss.to_numpy() - level,
            "A": cost + np.interp(moved, *scales["origin"]),
            "B": cost + np.interp(moved, *scales.get(diluted, scales["origin"])),
            "law": np.full(len(lengths), cost) if changed else by_law,
            "naive cut": np.where(means[layer] < lowest, 1.0, 0.0),
            "arithmetic": np.where(far, 1.0, 0.0),
        }
        if DILUTION not in scales:
            del rules["B"]
        if lowest == 1:  # of ratios to Origin's distance, which have no spread at M
            del rules["naive cut"]
        for rule, excess in rules.items():
            length = failure_length(lengths, excess)
            pairs.append(
                {"config": config, "far": any(far) and not changed, "rule": rule, "length": length or 0}
                | {f"{n}": round(float(value), 3) for n, value in zip(lengths, excess, strict=True)}
            )
    by_config = pd.DataFrame(pairs)
    by_config.to_csv(RESULTS / f"{name}-lengths.csv", index=False)
    scores = pd.DataFrame([*scored(by_config, trained), *others(table, layer, scales["origin"])])
    scores.insert(0, "layer", layer)
    scores.to_csv(RESULTS / f"{name}-scores.csv", index=False, float_format="%.4g")
    print(scores.to_string())


def layers_in(table: Any) -> list[str]:
    """The columns of layers."""
    return [str(column) for column in table if str(column).startswith("layer")]


def scored(
    by_config: Any, trained: int, rules: Sequence[str] = ("A", "B", "law", "arithmetic", "naive cut")
) -> list[dict[str, Any]]:
    """Rows of scores by rule, over all configs, those with far keys and the others."""
    wide = by_config.pivot(index=["config", "far"], columns="rule", values="length").reset_index()
    rows = []
    for kind, part in (("all", wide), ("far keys", wide[wide.far]), ("no far keys", wide[~wide.far])):
        truth, count = part["measured"].to_numpy(), len(part)
        for rule in [rule for rule in rules if rule in part]:
            length, rng = part[rule].to_numpy(), np.random.default_rng(0)
            ranks = [np.where(values > 0, values, 12 * trained) for values in (length, truth)]
            drawn = rng.integers(0, count, (1000, count))
            ends = np.nanquantile([rank(ranks[0][draw], ranks[1][draw]) for draw in drawn], [0.025, 0.975])
            exact, both = int((length == truth).sum()), (length > 0) & (truth > 0)
            ratio = truth[both] / length[both] if both.any() else np.array([np.nan])
            rows.append(
                {"configs": kind, "rule": rule, "count": count, "fail": int((truth > 0).sum()), "exact": exact}
                | dict(zip(("exact_low", "exact_high"), wilson(exact, count), strict=True))
                | {
                    "false": int(((length > 0) & (truth == 0)).sum()),
                    "missed": int(((length == 0) & (truth > 0)).sum()),
                }
                | {"spearman": rank(*ranks), "low": ends[0], "high": ends[1]}
                | {"ratio": np.median(ratio), "least": ratio.min(), "largest": ratio.max()}
            )
    return rows


def others(table: Any, layer: str, scale: tuple[np.ndarray, np.ndarray]) -> list[dict[str, Any]]:
    """Rows: AUC of failing pairs (config, length) beyond M by layer; Origin's single texts within M said to fail."""
    trained, seen = table.attrs["M"], table[table.texts == "evaluated"]
    means = seen.groupby(["config", "length"])[["loss", *layers_in(table)]].mean()
    at, rows = means.xs(trained, level="length"), []
    beyond = means[means.index.get_level_values("length") > trained]
    failed = (beyond.loss - at.loss["origin"] >= NATS_ABOVE).to_numpy()
    for name in layers_in(table):
        ratio = beyond[name] / at[name].loc[beyond.index.get_level_values("config")].to_numpy()
        rows.append({"configs": "pairs", "rule": f"AUC, {name}", "count": len(ratio), "fail": int(failed.sum())})
        rows[-1]["spearman"] = spearmanr(ratio, beyond.loss).statistic
        rows[-1]["auc"], rows[-1]["auc_of_distance"] = (
            auc(-ratio.to_numpy(), failed),
            auc(-beyond[name].to_numpy(), failed),
        )
    origin = seen[seen.config == "origin"]
    for length in (*(int(times * trained) for times in WITHIN), trained):
        moved = np.abs(np.log(origin[origin.length == length][layer] / at[layer]["origin"]))
        false = int((np.interp(moved, *scale) >= NATS_ABOVE).sum())
        rows.append({"configs": f"texts at {length}", "rule": "A", "count": len(moved), "false": false})
    return rows


def rank(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's correlation; NaN where either is constant."""
    return float(spearmanr(first, second).statistic) if np.ptp(first) and np.ptp(second) else np.nan


if __name__ == "__main__":
    top = make_parser(__doc__, "runs/collapse/default", "collapse")
    top.add_argument("--evaluate", action="store_true", help="measure nothing")
    run(main, top)
