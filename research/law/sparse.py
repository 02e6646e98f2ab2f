"""What a few far keys cost at fixed length: some keys of a short prompt are moved away, the others stay.

    python research/law/sparse.py                              # the shipped model: results/sparse/default.jsonl
    python research/law/sparse.py --model smollm2 --samples 2 --lengths 10240,12288,14336,16384

A journal of passes, which the same command continues; `--heads` adds passes that move keys in these heads alone, and in
all others. The design stands in README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.methods import Method, Origin
from mesa.models import Loaded, load
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import Moved
from probe.commands.predict.run import plan
from probe.eval_tasks.score import nll
from probe.options import parse_lengths
from probe.statistics import student
from research.script import Journal, add_device, deadline, on_device, run

RESULTS = Path(__file__).parent / "results" / "sparse"
COUNTS, SIZES, TEXTS = (1, 4, 16, 64, 320), 6, 8
MOST = 640  # tokens of a prompt
PARTS = 4  # of the scored tokens


def sizes(trained: int, longest: int, tokens: int) -> list[int]:
    """How far keys are moved, in tokens: from M on by equal factors, to distances that Origin has at the longest."""
    return np.geomspace(trained, longest - tokens, SIZES).round().astype(int).tolist()


def designs(trained: int, longest: int, tokens: int) -> Iterator[tuple[int, bool, int]]:
    """(count, first, gap), gap -1 for masked; at most half of the prompt is moved."""
    for count in dict.fromkeys(min(count, tokens // 2) for count in COUNTS):
        for first in (False, True):
            for gap in (-1, *sizes(trained, longest, tokens)):
                yield count, first, gap


def stretches(texts: Sequence[np.ndarray], tokens: int, longest: int, count: int) -> list[np.ndarray]:
    """`count` prompts of `tokens` tokens: a text's first token, then a stretch of it, as many of each text."""
    starts = np.linspace(0, longest - tokens, -(-count // len(texts))).astype(int)
    first = texts[0][:1]
    return [np.concatenate([first, text[1:][at : at + tokens - 1]]) for text in texts for at in starts][:count]


def others(loaded: Loaded, heads: Any) -> dict[int, tuple[int, ...]]:
    """All heads but these."""
    config = loaded.model.config
    left = {
        layer: tuple(head for head in range(config.num_attention_heads) if head not in dict(heads).get(layer, ()))
        for layer in range(config.num_hidden_layers)
    }
    return {layer: kept for layer, kept in left.items() if kept}


def main(args: argparse.Namespace) -> None:
    """Measures what the journal lacks."""
    lengths = parse_lengths(args.lengths) if args.lengths else None
    planned = plan(PredictRequest(model=args.model, methods="origin", lengths=lengths, samples=args.samples))
    trained, longest = planned.trained_length, planned.longest
    tokens = min(trained, MOST)
    texts = stretches(planned.texts[::2], tokens, longest, TEXTS)  # of those that p and q are fitted to
    name = args.name or Path(args.model).name
    settings = {**planned.settings, "tokens": tokens, "texts": TEXTS}
    journal, over = Journal(RESULTS / f"{name}.jsonl", settings), deadline(args.minutes)
    cells: list[tuple[Any, ...]] = [("none", 0, 0, 0)]
    cells += [("all", count, int(with_first), gap) for count, with_first, gap in designs(trained, longest, tokens)]
    for text in args.heads:
        for count in (min(16, tokens // 8), tokens // 2):
            gap = sizes(trained, longest, tokens)[-1]
            cells += [(place, count, 0, gap) for place in (f"in {text}", f"not in {text}")]
    left = [(*cell, text) for text in range(len(texts)) for cell in cells if (*cell, text) not in journal.rows]
    loaded: Any = load(args.model, dtype="float32", device=args.device) if left and not over() else None
    for number, (place, count, with_first, gap, text) in enumerate(left):
        if over():
            break
        heads = None
        if place not in ("none", "all"):
            heads = Origin(trained_length=2, heads=place.removeprefix("not ").removeprefix("in ")).heads
            heads = dict(heads) if place.startswith("in ") else others(loaded, heads)
        method: Method = Origin(trained_length=trained)
        if place != "none":
            method = Moved(
                trained_length=trained, half=tokens // 2, count=count, first=bool(with_first), gap=gap, heads=heads
            )
        with mesa.applied(loaded.model, method, executor="dense"):
            losses = nll(loaded.model, texts[text], tokens // 4).double().numpy()
        parts = [float(part.mean()) for part in np.array_split(losses, PARTS)]
        row = {"nll": [round(part, 4) for part in parts], **on_device(args)}
        journal.add((place, count, with_first, gap, text), row)
        if number % 50 == 0:
            print(f"{number} of {len(left)}", flush=True)
    write_table()


def write_table() -> None:
    """results/sparse.csv: what each design costs over no move, nats/token, of the texts that have all passes."""
    rows = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")][1:]
        losses = {tuple(line["cell"]): np.mean(line["nll"]) for line in lines}
        cells = dict.fromkeys(key[:4] for key in losses if key[0] != "none")
        texts = [text for text in sorted({key[4] for key in losses}) if all((*cell, text) in losses for cell in cells)]
        for cell in cells:
            cost = [float(losses[(*cell, text)] - losses["none", 0, 0, 0, text]) for text in texts]
            low, high = student(cost)
            values = {"cost": np.mean(cost), "low": low, "high": high, "texts": len(texts)}
            names = dict(zip(("place", "keys", "first", "gap"), cell, strict=True))
            rows.append({"model": path.stem, **names, **values})
    pd.DataFrame(rows).round(4).to_csv(RESULTS.with_suffix(".csv"), index=False)


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/law/sparse.py", description=__doc__)
    top.add_argument("--model", default="default", help="default, smollm2, or a folder")
    top.add_argument("--name", help="of the journal (None: the model's)")
    top.add_argument("--lengths", help="tokens, as for `mesa-lens predict`")
    top.add_argument("--samples", type=int, default=16, help="texts; every second one is used")
    top.add_argument("--heads", nargs="*", default=[], help="sets of heads, e.g. '16:0;19:3'")
    add_device(top)
    top.add_argument("--minutes", type=float, help="start nothing after this; the same command continues")
    return top


if __name__ == "__main__":
    run(main, parser())
