"""What a method in one head alone would restore, for all heads, to first order.

    python research/mechanism/attribution.py --model smollm2 --lengths 12k --samples 2 --out runs/attribution

Of each text the estimates of `mesa-lens locate --try gradients`: the gradient of Origin's loss with respect to what a
head gives (its output before the output projection), times what the method would change of it in the layer's own input
under Origin. Heads are not intervened on. Writes attribution.csv: a row a text and head, nats/token restored.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import BASELINE, PATCHED, Gradients, RunPair
from probe.commands.locate.run import ORIGIN, plan
from probe.options import parse_lengths
from research.script import make_parser, run


def main(args: argparse.Namespace) -> None:
    """Writes attribution.csv, text by text."""
    request = LocateRequest(
        model=args.model, methods=args.method, lengths=tuple(parse_lengths(args.lengths)), samples=args.samples
    )
    planned = plan(request)
    ((group, items),) = planned.items.items()
    (name,) = planned.compared
    loaded = mesa.load(args.model)
    bridge = mesa.bridge(loaded.model, loaded.tokenizer)
    methods = {BASELINE: planned.methods[ORIGIN], PATCHED: planned.methods[name]}
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "attribution.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "method", "length", "text", "layer", "head", "restored"))
        for text in range(len(items)) if args.texts is None else map(int, args.texts.split(",")):
            with torch.no_grad():
                restored = Gradients().run(RunPair(bridge, items[text], methods))
            for place, value in np.ndenumerate(restored):
                writer.writerow((args.model, name, group[1], text, *place, f"{value:.6g}"))
            file.flush()


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/attribution", "mechanism")
    top.prog = "python research/mechanism/attribution.py"
    top.add_argument("--method", default="rerope", help="what is applied in the heads")
    top.add_argument("--lengths", default="1024", help="one length, tokens")
    top.add_argument("--samples", type=int, default=6, help="texts, as for `mesa-lens locate`")
    top.add_argument("--texts", help="numbers of those that are tried, e.g. 0 (None: all)")
    return top


if __name__ == "__main__":
    run(main, parser())
