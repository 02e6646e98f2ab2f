"""Trains the shipped model, or a sibling of it, anew; measures it and writes its card."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from research.script import deadline, run


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/shipped_models/run.py", description=__doc__)
    top.add_argument("--out", type=Path, required=True, help="folder of the checkpoint; an interrupted run continues")
    recipes = ("default", "nope", "alibi")
    top.add_argument("--recipe", choices=recipes, default="default", help="rotary, without positions, or ALiBi")
    top.add_argument("--tokens", type=int, help="training tokens (None: the recipe's 32 million, 16 for the siblings)")
    top.add_argument("--seed", type=int, default=0, help="of weights and rows")
    top.add_argument("--minutes", type=float, help="stop after this; the same command continues")
    top.add_argument("--device", default="cpu", help="e.g. cuda:0")
    top.add_argument("--stdlib", type=Path, help="standard library that is read (None: the running interpreter's)")
    top.add_argument("--no-card", action="store_true", help="stop once the weights are written; measure nothing")
    return top


def main(args: argparse.Namespace) -> None:
    """Trains on, into a folder that holds no finished model."""
    from mesa.models import load
    from research.shipped_models import card, train

    if (args.out / "config.json").exists() and not (args.out / train.STATE).exists():
        raise FileExistsError(f"--out {args.out} already holds a model; name another folder")
    recipe = train.RECIPES[args.recipe]
    config = replace(recipe, tokens=args.tokens or recipe.tokens, seed=args.seed)
    training = train.begin(config, args.device)
    if (args.out / train.STATE).exists():
        training.restore(args.out, config)
    mixture, about = train.read_corpus(config, args.stdlib)
    args.out.mkdir(parents=True, exist_ok=True)
    if not train.train(config, args.out, training, mixture, about, deadline(args.minutes)):
        print(f"stopped after {training.step:,} of {config.steps:,} steps; the same command continues in {args.out}")
        return
    if args.no_card:
        return
    card.write_card(args.out, card.measure(load(str(args.out), dtype="float32", device=args.device)))
    (args.out / train.STATE).unlink()
    print(f"wrote {args.out}; use it with --model {args.out}")


if __name__ == "__main__":
    run(main, parser())
