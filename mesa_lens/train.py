"""`mesa-lens train-default`: trains the shipped model, or a sibling of it, anew."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

from mesa_lens.model import add_device
from mesa_lens.options import add_minutes, add_seed
from mesa_lens.training.config import RECIPES, TrainConfig
from mesa_lens.values import folder, whole

LEAST = 3072
"""Tokens of one step of `mesa_lens.training.train`."""


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "train-default",
        example="mesa-lens train-default --out runs/model",
        help="train the shipped default model anew",
        description=__doc__,
    )
    says = "folder for checkpoint, tokenizer and card; an interrupted training goes on in it"
    command.add_argument("--out", type=folder, required=True, help=says)
    says = "the shipped model, or a sibling without positions (nope) or with ALiBi (alibi)"
    command.add_argument("--recipe", choices=list(RECIPES), default="default", help=says)
    recipes = ", ".join(f"{name} {recipe.tokens / 1e6:g} million" for name, recipe in RECIPES.items())
    says = f"training tokens (None: the recipe's: {recipes})"
    command.add_argument("--tokens", type=whole(LEAST), help=says)
    add_seed(command)
    add_minutes(command)
    command.add_argument("--estimate", action="store_true", help="print the steps and time it takes, and stop")
    add_device(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Trains, or goes on training, into a folder that holds no finished model; measures it and writes its card."""
    from mesa_lens.training.state import STATE
    from probe.cells.threads import check_threads, computing
    from probe.ownership import owned

    check_threads(args.threads)
    if (args.out / "config.json").exists() and not (args.out / STATE).exists():
        raise FileExistsError(f"--out {args.out} already holds a model; name another folder")
    with owned(args.out), computing(args.threads):
        try:
            told = _train(args)
        except BaseException as error:
            if (args.out / STATE).exists():
                error.add_note(f"the same command goes on; the newest checkpoint is kept in {args.out}")
            raise
    print(told)
    return 0


def _train(args: argparse.Namespace) -> str:
    """What to say at the end."""
    from mesa.models import check_placement, load
    from mesa_lens.training import card, train
    from mesa_lens.training.state import STATE

    ends = time.time() + 60 * args.minutes if args.minutes else float("inf")
    check_placement({"device": args.device})
    recipe = RECIPES[args.recipe]
    config = replace(recipe, tokens=args.tokens or recipe.tokens, seed=args.seed)
    training = train.begin(config, args.device)
    if (args.out / STATE).exists():
        training.restore(args.out, config)
    mixture, about = train.read_corpus(config)
    if training.step < config.steps:
        print(_estimate(config, training.step, *train.tokens_a_second(config, mixture, args.device)), flush=True)
    if args.estimate:
        return "nothing was trained (--estimate)"
    if not train.train(config, args.out, training, mixture, about, ends=ends):
        return f"stopped after {training.step:,} of {config.steps:,} steps; the same command goes on in {args.out}"
    card.write_card(args.out, card.measure(load(str(args.out))))
    (args.out / STATE).unlink()
    return f"wrote {args.out}; use it with --model {args.out}"


def _estimate(config: TrainConfig, step: int, slow: float, fast: float) -> str:
    """What is left to do, in words. slow, fast: tokens a second."""
    from probe.evaluation.pace import spoken

    left = (config.steps - step) * config.tokens_per_step
    return (
        f"{config.steps - step:,} of {config.steps:,} steps are left, {left:,} tokens: "
        f"{spoken(left / fast, left / slow)} at {slow:,.0f} to {fast:,.0f} tokens/s, if this machine stays so busy"
    )
