"""`python research/shipped_models/run.py`: trains the shipped model, or a sibling of it, anew."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa_lens.arguments import MinutesOptions, ThreadOptions, add_options
from mesa_lens.cli import Parser, main
from research.shipped_models.config import RECIPES, TrainConfig, TrainOptions


def parser() -> Parser:
    """The script's parser."""
    command = Parser(
        prog="python research/shipped_models/run.py",
        example="python research/shipped_models/run.py --out runs/model",
        description=__doc__,
    )
    add_options(command, TrainOptions, MinutesOptions, ThreadOptions)
    command.set_defaults(run=run)
    return command


def run(args: argparse.Namespace) -> int:
    """Trains, or goes on training, into a folder that holds no finished model; measures it and writes its card."""
    from probe.experiment.lock import owned
    from probe.experiment.threads import check_threads, computing
    from research.shipped_models.state import STATE

    check_threads(args.threads)
    if (args.out / "config.json").exists() and not (args.out / STATE).exists():
        raise FileExistsError(f"--out {args.out} already holds a model; name another folder")
    with owned(args.out, option="folder"), computing(args.threads):
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
    from research.shipped_models import card, train
    from research.shipped_models.state import STATE

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
    from probe.experiment.estimate import format_range

    left = (config.steps - step) * config.tokens_per_step
    return (
        f"{config.steps - step:,} of {config.steps:,} steps are left, {left:,} tokens: "
        f"{format_range(left / fast, left / slow)} at {slow:,.0f} to {fast:,.0f} tokens/s, "
        "if this machine stays so busy"
    )


if __name__ == "__main__":
    sys.exit(main(build=parser))
