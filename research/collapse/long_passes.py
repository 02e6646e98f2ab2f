"""The rule on models whose passes are long: one pass a text and config leaves the windows of every length.

mesa-lens fetch smollm2    # or gemma3-270m
python research/collapse/long_passes.py --model smollm2             # results/smollm2.csv; hours; resumable
mkdir -p runs/collapse && cp -r research/collapse/results/smollm2 runs/collapse  # before it: goes on from its journal
python research/collapse/long_passes.py --model smollm2 --evaluate  # the stored numbers again

Losses are less Origin's at M of the same tokens, distances over Origin's there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.decoder import decoder_of, layers_of, removed
from mesa.methods import Method, make
from mesa.plan import relative_positions
from probe.commands.predict.formula import Law, stored_law
from probe.commands.predict.result import PREDICTION
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids
from probe.thresholds.state_distance import StateReference
from research.collapse.run import DILUTION, RESULTS, TEXTS, WITHIN, evaluate, methods_of
from research.script import Journal, deadline, load_options, make_parser, run

LEAST = 2
"""Evaluated texts."""
BLOCK = 512
"""Tokens of a mean in the journal."""
LOGITS = 1024
"""Tokens whose logits are computed at once."""
RESEARCH = Path(__file__).parents[1]

Passed = tuple[np.ndarray, np.ndarray]
"""States (layer, token, dim), and losses (token,)."""


@dataclass(frozen=True)
class Study:
    """What is measured of a model.

    trained: M, in tokens. times: lengths, in M. fitted: modules for the distribution and the scale. evaluated: modules.
    configs: what is evaluated. scale: what gives it. curve: the file of the law's curve, with its p and q in power and
    scale_power; or, without a power, the folder of a prediction, which holds all three. every: the loss is measured at
    one of `every` tokens. from_start: the distribution is fitted to the first M tokens of a text too.
    """

    trained: int
    times: tuple[float, ...]
    fitted: tuple[str, ...]
    evaluated: tuple[str, ...]
    configs: tuple[str, ...]
    scale: tuple[str, ...]
    curve: Path
    power: float | None = None
    scale_power: float = 0.0
    every: int = 1
    from_start: bool = True

    @property
    def starts(self) -> list[int]:
        """Where the prompts of M tokens begin, whose ends are those of the lengths."""
        return [int(times * self.trained) - self.trained for times in self.times]

    def law(self) -> Law:
        """The law as published for the model."""
        if self.power is None:
            return stored_law(PREDICTION.read(self.curve).law, self.trained)
        excess = json.loads(self.curve.read_text(encoding="utf-8"))["curve"]["excess"]
        return Law(self.trained, np.array(excess), self.power, self.scale_power)


STUDIES = {
    "smollm2": Study(
        trained=8192,
        times=(1, 1.25, 1.5, 1.75, 2),
        fitted=("_pydecimal", "turtle", "typing"),
        evaluated=tuple(f"sklearn.{name.replace('/', '.')}" for name in TEXTS[:4]),
        configs=(
            "leaky-rerope:k=1.2,log_n=false",
            "leaky-rerope:k=1.3,log_n=false",
            "self-extend:group=2",
            "pi:factor=2",
            "yarn:factor=2",
            "cope",
        ),
        scale=("origin", DILUTION),
        curve=RESEARCH / "law" / "results" / "smollm2-twelve.json",
        power=4.0,
        scale_power=0.2,
    ),
    "gemma3-270m": Study(
        trained=32768,
        times=(1, 1.25, 1.5),
        fitted=("torch._refs", "torch._inductor.scheduler"),
        evaluated=("scipy.stats._stats_py", "pandas.core.frame"),
        configs=("leaky-rerope:k=1.1,log_n=false", "self-extend:group=2", "cope"),
        scale=("origin",),
        curve=RESEARCH / "gemma3" / "results",
        every=8,
        from_start=False,
    ),
}


def main(args: argparse.Namespace) -> None:
    """Measures what is not there, then evaluates."""
    study = STUDIES.get(args.model)
    if study is None or args.trained_length not in (None, study.trained):
        raise ValueError(f"this script measures {' and '.join(STUDIES)} at their M; run.py takes other models")
    path = RESULTS / f"{args.model}.csv"
    if not args.evaluate:
        table = measure(args, study)
        texts = table[table.config == "origin"].groupby("texts")["text"].nunique() if len(table) else {}
        if texts.get("scale", 0) < len(study.fitted) or texts.get("evaluated", 0) < LEAST:
            print("too few texts have all their passes; the same command continues")
            return
        table.to_csv(path, index=False, float_format="%.4f")
    evaluate(pd.read_csv(path), args.model, study.law())


def measure(args: argparse.Namespace, study: Study) -> Any:
    """A row a set of texts, config, length and text, as run.py's, of the texts that have every pass."""
    loaded = mesa.load(args.model, **load_options(args))
    trained, starts, model = study.trained, study.starts, loaded.model
    out = args.out or Path("runs/collapse") / args.model
    journal = Journal(out / "journal.jsonl", {"model": args.model, "M": trained}, overwrite=args.overwrite)
    for path in out.glob("inside-*.npz") if args.overwrite else ():
        path.unlink()
    over, first, longest = deadline(args.minutes), first_ids(loaded.tokenizer), int(study.times[-1] * trained)
    names = (*study.fitted, *study.evaluated)
    files = [Path(str(find_spec(name).origin)) for name in names]  # pyright: ignore[reportOptionalMemberAccess]
    texts = heldout_ids(loaded.tokenizer, [path.read_text(encoding="utf-8") for path in files])
    texts = [np.array([*first, *ids])[:longest] for ids in texts]
    assert min(map(len, texts)) == longest, [len(ids) for ids in texts]
    prompts = [
        {start: np.array([*first, *ids[start + len(first) : start + trained]]) for start in starts} for ids in texts
    ]
    states_of, kept = partial(last_states, model, every=study.every), []
    for number, each in enumerate(prompts[: len(study.fitted)]):
        path = out / f"inside-{number}.npz"
        if over() and not path.exists():
            return pd.DataFrame()
        inside = {start: ids for start, ids in each.items() if start or study.from_start}
        kept.append(in_window_states(states_of, inside, path))
    fitted = np.stack([np.concatenate([states[:, ::2] for states, _ in each.values()], 1) for each in kept], 1)
    everywhere = [StateReference.fit(of_layer) for of_layer in fitted]
    methods = methods_of(trained, (*study.scale, *study.configs))
    assert all(reads_prefixes(method, trained, longest) for method in methods.values())
    for text, ids in enumerate(texts):
        scale, fits = text < len(study.fitted), everywhere
        if scale:
            fits = [StateReference.fit(np.delete(of_layer, text, 0)) for of_layer in fitted]
        passes = [("origin", start) for start in starts[1:]]
        passes += [(name, 0) for name in (study.scale if scale else ("origin", *study.configs))]
        for name, start in passes:
            if (text, name, start) in journal.rows:
                continue
            if over():
                return table_of(journal, study)
            if scale and start:
                states, loss = kept[text][start]
            else:
                prompt = prompts[text][start] if start else ids
                states, loss = states_of(methods[name], prompt, len(prompt) - trained // 4)
            distance = np.stack([fit.distances(of_layer) for fit, of_layer in zip(fits, states, strict=True)])
            by_block = [means_of_blocks(loss, BLOCK // study.every), means_of_blocks(distance, BLOCK)]
            journal.add((text, name, start), {"loss": by_block[0].tolist(), "distance": by_block[1].tolist()})
            print(text, name, start, by_block[0].round(2), by_block[1][-1].round(2), flush=True)
    return table_of(journal, study)


def means_of_blocks(values: np.ndarray, block: int) -> np.ndarray:
    """Means (..., block) of values (..., token)."""
    return values.reshape(*values.shape[:-1], -1, block).mean(-1).round(4)


def in_window_states(states_of: Callable[..., Passed], prompts: dict[int, np.ndarray], path: Path) -> dict[int, Passed]:
    """Of the last M/4 tokens of prompts of M under Origin, by where they begin; kept in a file."""
    if not path.exists():
        passes: dict[str, np.ndarray] = {}
        for start, ids in prompts.items():
            states, loss = states_of(make("origin", len(ids)), ids, len(ids) // 4)
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
def last_states(model: Any, method: Method, ids: np.ndarray, tokens: int, *, every: int) -> Passed:
    """States of the last tokens (layer, token, dim), and the loss at one of `every` of them (token,)."""
    kept, losses = list[np.ndarray](), list[np.ndarray]()

    def keep(module: Any, args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        kept.append(tensor[0, -tokens:].float().cpu().numpy().copy())

    prompt = torch.tensor(ids, device=model.device)
    with mesa.applied(model, method), removed([layer.register_forward_hook(keep) for layer in layers_of(model)]):
        last = decoder_of(model)(prompt[None], use_cache=False).last_hidden_state[0]
    for scored in torch.arange(len(ids) - tokens, len(ids), every).split(LOGITS):
        logits = model.get_output_embeddings()(last[scored - 1]).float()
        losses.append(cross_entropy(logits, prompt[scored], reduction="none").cpu().numpy())
    return np.stack(kept), np.concatenate(losses)


def table_of(journal: Journal, study: Study) -> Any:
    """run.py's table: losses less Origin's at M of the same tokens, distances over its there."""
    rows, trained, starts = list[dict[str, Any]](), study.trained, study.starts
    count, quarter, longest = len(study.fitted) + len(study.evaluated), trained // 4 // BLOCK, starts[-1] + trained
    for text in range(count):
        names = study.scale if text < len(study.fitted) else ("origin", *study.configs)
        if any((text, name, 0) not in journal.rows for name in names):
            continue
        kind = "scale" if text < len(study.fitted) else "evaluated"
        cells = {
            (name, start): {key: np.array(values) for key, values in journal.rows[text, name, start].items()}
            for name, start in [*((name, 0) for name in names), *(("origin", start) for start in starts[1:])]
        }

        def window(name: str, start: int, end: int, cells: Any = cells) -> tuple[float, np.ndarray]:
            loss, distance = cells[name, start]["loss"], cells[name, start]["distance"]
            last = len(loss) - ((start + trained if start else longest) - end) // BLOCK
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
    top = make_parser(__doc__, "runs/collapse/MODEL", "collapse")
    top.prog = "python research/collapse/long_passes.py"
    top.set_defaults(model="smollm2", out=None)
    top.add_argument("--evaluate", action="store_true", help="measure nothing")
    return top


if __name__ == "__main__":
    run(main, parser())
