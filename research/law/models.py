"""Trains small models that differ in one thing each, for the sparse design; the same command continues.

    python research/law/models.py              # runs/law-models/NAME; weights are not in the repository
    python research/law/models.py --float32    # 5 minutes a model, not 60, on cores without bfloat16

Half the shipped model's width, three of its four layers, a tenth of its tokens, text alone.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from research.script import add_device, deadline, run
from research.shipped_models import train

SMALL = train.TrainConfig(
    tokens=3_000_000,
    tokens_per_step=1536,
    hidden=128,
    intermediate=320,
    layers=3,
    heads=4,
    warmup_steps=60,
    curriculum=0.2,
    text_only=True,
)
MODELS = {
    "small": SMALL,
    "base-500000": replace(SMALL, base=500_000.0),
    "M-128": replace(SMALL, trained_length=128),
    "M-512": replace(SMALL, trained_length=512),
    "gqa": replace(SMALL, key_value_heads=1),
    "wide": replace(SMALL, hidden=256, intermediate=640, heads=8),
}


def main(args: argparse.Namespace) -> None:
    """Trains what is not there, in this order."""
    over = deadline(args.minutes)
    for name, config in MODELS.items():
        if args.only not in (None, name):
            continue
        out = args.out / name
        if (out / "config.json").exists() and not (out / train.STATE).exists():
            continue
        training = train.begin(config, args.device)
        if (out / train.STATE).exists():
            training.restore(out, config)
        mixture, about = train.read_corpus(config)
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as patches:
            if args.float32:
                patches.enter_context(patch.object(torch, "autocast", partial(torch.autocast, enabled=False)))
                patches.enter_context(patch.object(torch.Tensor, "bfloat16", torch.Tensor.float))  # in torch's Muon
            if not train.train(config, out, training, mixture, about, over):
                return
        (out / train.STATE).unlink()
        print(f"{name}: loss {training.log[-1]['loss']:z.2f}, {training.seconds:.0f} s", flush=True)


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/law/models.py", description=__doc__)
    top.add_argument("--out", type=Path, default=Path("runs/law-models"), help="folder of the models")
    top.add_argument("--only", help="one of the models, by name", choices=MODELS)
    top.add_argument("--float32", action="store_true", help="train in float32, not bfloat16: other rounding")
    add_device(top)
    top.add_argument("--minutes", type=float, help="stop after this; the same command continues")
    return top


if __name__ == "__main__":
    run(main, parser())
