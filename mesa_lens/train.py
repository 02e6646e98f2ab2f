"""`mesa-lens train-default`: trains the shipped model anew."""

from __future__ import annotations

import argparse
from typing import Any

from mesa_lens.model import add_device
from mesa_lens.options import add_seed
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
    command.add_argument("--out", type=folder, required=True, help="folder for checkpoint, tokenizer and card")
    command.add_argument("--tokens", type=whole(LEAST), default=24_000_000, help="training tokens (default 24 million)")
    add_seed(command)
    add_device(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Trains into a folder that must not hold a model yet, measures the result and writes its card."""
    from probe.ownership import owned

    with owned(args.out):
        if (args.out / "config.json").exists():
            raise FileExistsError(f"--out {args.out} already holds a model; name another folder")
        _train(args)
    print(f"wrote {args.out}; use it with --model {args.out}")
    return 0


def _train(args: argparse.Namespace) -> None:
    from mesa.models import check_placement, load
    from mesa_lens.training import card
    from mesa_lens.training.train import TrainConfig, train

    check_placement({"device": args.device})
    try:
        train(TrainConfig(tokens=args.tokens, seed=args.seed), args.out, device=args.device)
        card.write_card(args.out, card.measure(load(str(args.out))))
    except BaseException as error:
        if (args.out / "config.json").exists():
            error.add_note(f"the newest checkpoint is kept in {args.out}")
        raise
