"""The rule on SmolLM2, whose passes are long: one pass a text and config leaves the windows of every length.

mesa-lens fetch smollm2
python research/collapse/smollm2.py             # results/smollm2.csv; an hour and a half on two cores; resumable
mkdir -p runs/collapse && cp -r research/collapse/results/smollm2 runs/collapse  # before it: goes on from its journal
python research/collapse/smollm2.py --evaluate  # the stored numbers again

Losses are less Origin's at M of the same tokens, distances over Origin's there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.decoder import layers_of, removed
from mesa.methods import Method, make
from mesa.plan import relative_positions
from probe.commands.predict.formula import Law
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids, nll
from probe.thresholds.state_distance import StateReference
from research.collapse.run import DILUTION, RESULTS, TEXTS, WITHIN, evaluate, methods_of
from research.script import Journal, deadline, load_options, make_parser, run

M = 8192
TIMES = (1, 1.25, 1.5, 1.75, 2)
"""Lengths in M."""
FITTED = ("_pydecimal", "turtle", "typing")
"""Files of the standard library: the distribution and the scale."""
EVALUATED, LEAST = TEXTS[:4], 2
CONFIGS = (
    "leaky-rerope:k=1.2,log_n=false",
    "leaky-rerope:k=1.3,log_n=false",
    "self-extend:group=2",
    "pi:factor=2",
    "yarn:factor=2",
    "cope",
)
POWER, SCALE_POWER = 4.0, 0.2  # of the law as published for SmolLM2
CURVE = Path(__file__).parents[1] / "law" / "results" / "smollm2-twelve.json"
BLOCK = 512
"""Tokens of a mean in the journal."""


def main(args: argparse.Namespace) -> None:
    """Measures what is not there, then evaluates."""
    if args.model != "smollm2" or args.trained_length not in (None, M):
        raise ValueError("this script measures SmolLM2 at its M alone; run.py takes other models")
    if not args.evaluate:
        table = measure(args)
        texts = table[table.config == "origin"].groupby("texts")["text"].nunique() if len(table) else {}
        if texts.get("scale", 0) < len(FITTED) or texts.get("evaluated", 0) < LEAST:
            print("too few texts have all their passes; the same command continues")
            return
        table.to_csv(RESULTS / "smollm2.csv", index=False, float_format="%.4f")
    law = Law(M, np.array(json.loads(CURVE.read_text(encoding="utf-8"))["curve"]["excess"]), POWER, SCALE_POWER)
    evaluate(pd.read_csv(RESULTS / "smollm2.csv"), "smollm2", law)


def measure(args: argparse.Namespace) -> Any:
    """A row a set of texts, config, length and text, as run.py's, of the texts that have every pass."""
    loaded = mesa.load(args.model, **load_options(args))
    model, trained = loaded.model, M
    journal = Journal(args.out / "journal.jsonl", {"model": args.model, "M": trained}, overwrite=args.overwrite)
    for path in args.out.glob("inside-*.npz") if args.overwrite else ():
        path.unlink()
    over, first, longest = deadline(args.minutes), first_ids(loaded.tokenizer), int(TIMES[-1] * trained)
    folder = Path(find_spec("sklearn").origin).parent  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
    files = [Path(str(find_spec(name).origin)) for name in FITTED]  # pyright: ignore[reportOptionalMemberAccess]
    files += [folder / f"{name}.py" for name in EVALUATED]
    texts = heldout_ids(loaded.tokenizer, [path.read_text(encoding="utf-8") for path in files])
    texts = [np.array([*first, *ids])[:longest] for ids in texts]
    assert min(map(len, texts)) == longest, [len(ids) for ids in texts]
    starts = [int(times * trained) - trained for times in TIMES]
    prompts = [
        {start: np.array([*first, *ids[start + len(first) : start + trained]]) for start in starts} for ids in texts
    ]
    kept = []
    for number, each in enumerate(prompts[: len(FITTED)]):
        path = args.out / f"inside-{number}.npz"
        if over() and not path.exists():
            return pd.DataFrame()
        kept.append(in_window_states(model, each, path))
    fitted = np.stack([np.concatenate([states[:, ::2] for states, _ in each.values()], 1) for each in kept], 1)
    everywhere = [StateReference.fit(of_layer) for of_layer in fitted]
    methods = methods_of(trained, ("origin", DILUTION, *CONFIGS))
    assert all(reads_prefixes(method, trained, longest) for method in methods.values())
    for text, ids in enumerate(texts):
        scale, fits = text < len(FITTED), everywhere
        if scale:
            fits = [StateReference.fit(np.delete(of_layer, text, 0)) for of_layer in fitted]
        passes = [("origin", start) for start in starts[1:]]
        passes += [(name, 0) for name in (("origin", DILUTION) if scale else ("origin", *CONFIGS))]
        for name, start in passes:
            if (text, name, start) in journal.rows:
                continue
            if over():
                return table_of(journal, starts, trained)
            if scale and start:
                states, loss = kept[text][start]
            else:
                prompt = prompts[text][start] if start else ids
                states, loss = last_states(model, methods[name], prompt, len(prompt) - trained // 4)
            distance = np.stack([fit.distances(of_layer) for fit, of_layer in zip(fits, states, strict=True)])
            by_block = [each.reshape(*each.shape[:-1], -1, BLOCK).mean(-1).round(4) for each in (loss, distance)]
            journal.add((text, name, start), {"loss": by_block[0].tolist(), "distance": by_block[1].tolist()})
            print(text, name, start, by_block[0].round(2), by_block[1][-1].round(2), flush=True)
    return table_of(journal, starts, trained)


def in_window_states(
    model: Any, prompts: dict[int, np.ndarray], path: Path
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Origin's states (layer, token, dim) of the last M/4 tokens of prompts of M, and losses; kept in a file."""
    if not path.exists():
        passes: dict[str, np.ndarray] = {}
        for start, ids in prompts.items():
            states, loss = last_states(model, make("origin", len(ids)), ids, len(ids) // 4)
            passes |= {f"states {start}": states, f"loss {start}": loss}
            print(path.stem, start, round(float(loss.mean()), 2), flush=True)
        np.savez(part := path.with_suffix(".part.npz"), **passes)  # pyright: ignore[reportArgumentType]
        part.replace(path)
    read = np.load(path)
    return {start: (read[f"states {start}"], read[f"loss {start}"]) for start in prompts}


def reads_prefixes(method: Method, trained: int, longest: int) -> bool:
    """Whether M tokens have the same relative positions alone and as the first of a longer prompt, at fixed angles."""
    place, plans = np.arange(0, trained, 64), [method.plan(length) for length in (trained, longest)]
    scales = [plan.frequency_scale(np.arange(32), 32, 1e5) if plan.frequency_scale else np.ones(32) for plan in plans]
    positions = [relative_positions(plan, place, place) for plan in plans]
    return bool(np.array_equal(*scales) and np.array_equal(*positions, equal_nan=True))


@torch.no_grad()
def last_states(model: Any, method: Method, ids: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """States of the last tokens (layer, token, dim), and the loss at each (token,)."""
    kept = list[np.ndarray]()

    def keep(module: Any, args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        kept.append(tensor[0, -tokens:].float().cpu().numpy().copy())

    with mesa.applied(model, method), removed([layer.register_forward_hook(keep) for layer in layers_of(model)]):
        loss = nll(model, ids, tokens).numpy()
    return np.stack(kept), loss


def table_of(journal: Journal, starts: Sequence[int], trained: int) -> Any:
    """run.py's table: losses less Origin's at M of the same tokens, distances over its there."""
    rows = list[dict[str, Any]]()
    count, quarter = len(FITTED) + len(EVALUATED), trained // 4 // BLOCK
    for text in range(count):
        names = ("origin", DILUTION) if text < len(FITTED) else ("origin", *CONFIGS)
        if any((text, name, 0) not in journal.rows for name in names):
            continue
        kind = "scale" if text < len(FITTED) else "evaluated"
        cells = {
            (name, start): {key: np.array(values) for key, values in journal.rows[text, name, start].items()}
            for name, start in [*((name, 0) for name in names), *(("origin", start) for start in starts[1:])]
        }

        def window(name: str, start: int, end: int, cells: Any = cells) -> tuple[float, np.ndarray]:
            loss, distance = cells[name, start]["loss"], cells[name, start]["distance"]
            last = len(loss) - ((start + trained if start else 2 * trained) - end) // BLOCK
            blocks = slice(last - quarter, last)
            return float(loss[blocks].mean()), distance[:, blocks].mean(1)

        def row(name: str, length: int, start: int, end: int, text: int = text, kind: str = kind) -> dict[str, Any]:
            (loss, distance), (level, inside) = window(name, start, end), window("origin", end - trained, end)
            layers = {f"layer {layer}": value for layer, value in enumerate(distance / inside)}
            return {"texts": kind, "config": name, "length": length, "text": text, "loss": loss - level} | layers

        rows += [row(name, start + trained, 0, start + trained) for name in names for start in starts]
        if kind == "evaluated":  # windows of the prompts of M tokens, which another reads at M
            within = [int(times * trained) for times in WITHIN]
            ends = [start + trained for start in starts]
            rows += [
                row("origin", length, end - length, end) for length in within for end in ends if end - length in starts
            ]
    return pd.DataFrame(rows)


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/collapse/smollm2", "collapse")
    top.prog = "python research/collapse/smollm2.py"
    top.set_defaults(model="smollm2")
    top.add_argument("--evaluate", action="store_true", help="measure nothing")
    return top


if __name__ == "__main__":
    run(main, parser())
