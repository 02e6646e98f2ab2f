"""Is a method's failure predicted by one curve? Fits p and q on half of the texts, judges on the others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa_lens.cli import main as mesa_lens
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import Losses
from probe.commands.predict.run import FOLDER, JOURNAL, PredictPlan, losses_of, plan
from probe.experiment.journal import read_journal
from probe.experiment.pool import Key
from probe.files import JsonObject, write_json
from probe.options import parse_lengths
from research.law.judge import judge
from research.script import add_executor, run

CONFIGS = {
    "default": (
        *(f"leaky-rerope:k={k},log_n=false" for k in (1.2, 2, 3, 6, 16)),
        *(f"leaky-rerope:k={k}" for k in (1.2, 1.5, 4, 8)),
        "leaky-rerope:k=3,log_n=false,window=128",
        "leaky-rerope:k=2,window=128",
        *(f"self-extend:group={group}" for group in (2, 4)),
        *(f"self-extend:group={group},log_n=true" for group in (3, 8)),
        "stair:width=2",
        *(f"stair:width={width},log_n=false" for width in (4, 10)),
        "rerope:window=32",
        "rerope:window=128,log_n=false",
    ),
    "untried": (
        *(f"leaky-rerope:k={k},log_n=false" for k in (2, 2.5, 5)),
        "leaky-rerope:k=10,window=16",
        "self-extend:group=6",
        "self-extend:group=3,window=32",
        "stair:width=3,log_n=false",
        "stair:width=6",
        "string:window=85",
        "lampe:window=32",
    ),
    "trained": (
        *(f"leaky-rerope:k={k},log_n=false" for k in (1.2, 1.5, 2.5, 3, 6)),
        *(f"leaky-rerope:k={k}" for k in (1.5, 4)),
        *(f"self-extend:group={group}" for group in (2, 4)),
        "self-extend:group=3,log_n=true",
        "stair:width=2",
        "stair:width=4,log_n=false",
    ),
    "smollm2": (
        "leaky-rerope:k=1.3,log_n=false",
        "leaky-rerope:k=1.3",
        "leaky-rerope:k=1.7,log_n=false",
        "self-extend:group=2",
    ),
}
CONFIGS["twelve"] = (  # of SmolLM2
    *CONFIGS["smollm2"],
    *(f"leaky-rerope:k={k}{log_n}" for k in (1.2, 1.5) for log_n in (",log_n=false", "")),
    "self-extend:group=2,window=4096",
    "self-extend:group=3,window=6144,log_n=true",
    "stair:width=2",
    "stair:width=2,window=4096,log_n=false",
)
FITTED = "leaky-rerope:k=2,log_n=false"
RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/law/run.py", description=__doc__)
    top.add_argument("--model", default="default", help="default, nope, alibi, smollm2, or a folder")
    top.add_argument("--configs", choices=CONFIGS, help="those that are judged (None: the model's)")
    top.add_argument("--lengths", help="tokens, as for `mesa-lens predict`")
    top.add_argument("--samples", type=int, default=16, help="texts")
    top.add_argument("--text", help="text file or folder")
    top.add_argument("--minutes", help="stop after this; the same command continues")
    add_executor(top)
    top.add_argument("--out", type=Path, help="folder of the journal (None: runs/law/MODEL); its name is the results'")
    top.add_argument("--fitted-on", type=Path, help="folder of another run, from whose even texts p and q are taken")
    add_stored(top)
    return top


def add_stored(top: argparse.ArgumentParser) -> None:
    """Adds what judges the stored passes of several runs."""
    top.add_argument(
        "--stored",
        nargs="+",
        type=Path,
        help="folders of runs, the first with a pass gives it; measures nothing",
    )
    top.add_argument("--judged", choices=("odd", "even"), default="odd", help="texts that judge --stored; others: p, q")


def main(args: argparse.Namespace) -> None:
    """Runs every pass, then judges."""
    name = Path(args.model).name
    out = args.out or Path("runs/law") / name
    configs = CONFIGS[args.configs or (name if name in CONFIGS else "default")]
    if not args.stored:
        measure(args, out, configs)
    lengths = parse_lengths(args.lengths) if args.lengths else None
    request = PredictRequest(
        model=args.model, methods="origin", configs=configs, check=True, lengths=lengths, samples=args.samples,
        text=args.text,
    )  # fmt: skip
    planned = plan(request)
    if args.stored:
        planned, others, losses = stored_halves(planned, args.stored, args.judged)
    else:
        rows = read_journal(out / FOLDER / JOURNAL).rows
        texts = range(len(planned.texts))
        finished = sum(all((*key, text) in rows for key in planned.passes) for text in texts)  # they run text by text
        if not finished:
            print("no text has all its passes yet; the same command continues")
            return
        planned = replace(planned, texts=planned.texts[:finished])
        losses = losses_of(planned, rows)
        others = fitted_losses(args.fitted_on / FOLDER / JOURNAL, planned) if args.fitted_on else None
    result: dict[str, Any] = judge(planned, losses, FITTED, others)
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{out.name}.json", result)
    if "rules" in result:
        scores = [
            {"rule": rule, "score": score, **dict(zip(("value", "low", "high"), values[score], strict=True))}
            for rule, values in {**result["rules"], "less arithmetic": result["less_arithmetic"]}.items()
            for score in values
            if isinstance(values[score], list)
        ]
        pd.DataFrame(scores).to_csv(RESULTS / f"{out.name}-rules.csv", index=False)
    print(json.dumps(result.get("rules", result), indent=1))


def measure(args: argparse.Namespace, out: Path, configs: Sequence[str]) -> None:
    """Runs the passes that the journal of `out` lacks."""
    words = ["predict", "--model", args.model, "--methods", "origin", "--check", "--out", str(out)]
    words += ["--executor", args.executor]
    words += [word for config in configs for word in ("--config", config)]
    if args.device != "cpu":
        words += ["--device", args.device, "--dtype", "float32"]
    for flag in ("lengths", "samples", "text", "minutes"):
        if value := getattr(args, flag):
            words += [f"--{flag}", str(value)]
    if mesa_lens(words):
        raise RuntimeError(f"mesa-lens {' '.join(words)} failed")


def fitted_losses(path: Path, planned: PredictPlan) -> Losses:
    """Losses of a journal's even texts, of the passes that a plan has too. KeyError for one that the journal lacks."""
    rows = read_journal(path).rows
    texts = sorted({text for *_, text in rows})[::2]
    return {key: np.array([rows[(*key, text)]["nll"] for text in texts]) for key in planned.passes}


def stored_halves(
    planned: PredictPlan, folders: Sequence[Path], judged: Literal["odd", "even"]
) -> tuple[PredictPlan, Losses, Losses]:
    """The plan of the configs that all judged texts have, and the losses of the texts that fit and of those that judge.

    ValueError for the journal of another model or other texts.
    """
    rows: dict[Key, JsonObject] = {}
    for folder in folders:
        journal = read_journal(folder / FOLDER / JOURNAL)
        for name in ("documents", "weights", "trained_length", "longest"):
            if (journal.settings or {}).get(name) != planned.settings[name]:
                raise ValueError(f"{folder} holds a run with other {name}")
        rows = {**journal.rows, **rows}
    halves = [range(begin, len(planned.texts), 2) for begin in ((0, 1) if judged == "odd" else (1, 0))]
    fit, test = (
        {
            key: np.array([rows[(*key, text)]["nll"] for text in half])
            for key in planned.passes
            if all((*key, text) in rows for text in half)
        }
        for half in halves
    )
    lacking = {name for name, length in planned.passes if name in planned.methods and (name, length) not in test}
    if lacking:
        print(f"without {', '.join(sorted(lacking))}: some passes were not run")
    methods = {name: method for name, method in planned.methods.items() if name not in lacking}
    texts = tuple(planned.texts[text] for text in halves[1])
    return replace(planned, methods=methods, texts=texts), fit, test


if __name__ == "__main__":
    run(main, parser())
