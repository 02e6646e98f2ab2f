"""What a method in one head alone would restore, for all heads, to first order.

    python research/mechanism/attribution.py --model smollm2 --lengths 12k --samples 2 --out runs/attribution

Of each text: the gradient of Origin's loss with respect to what a head gives (its output before the output projection),
times what the method would change of it in the layer's own input under Origin. Three passes and a gradient; heads are
not intervened on. Writes attribution.csv: a row a text and head, nats/token restored.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.decoder import layers_of
from mesa.methods import Method
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import Item
from probe.commands.locate.run import plan
from probe.options import parse_lengths
from research.script import make_parser, run

Hook = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def before(modules: Sequence[Any], hook: Hook) -> Iterator[None]:
    """Calls hook(number, args, kwargs) before each module; what it returns, if not None, replaces both."""
    handles = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs, number=number: hook(number, args, kwargs), with_kwargs=True
        )
        for number, module in enumerate(modules)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def restored(model: Any, item: Item, method: Method) -> np.ndarray:
    """Nats/token that the method in each head alone would restore, to first order (layer, head)."""
    layers: list[Any] = list(layers_of(model))
    heads = model.config.num_attention_heads
    projections = [layer.self_attn.o_proj for layer in layers]
    ids = torch.tensor([item.ids], device=model.device)
    inputs, options, changed = [], [], []
    with torch.no_grad():
        with before(layers, lambda _, args, kwargs: inputs.append(args[0]) or options.append(kwargs)):
            model.get_decoder()(ids, use_cache=False)
        states = layers[-1](inputs[-1], **options[-1])
        with (
            mesa.applied(model, method),
            before(layers, lambda layer, args, kwargs: ((inputs[layer], *args[1:]), kwargs)),
            before(projections, lambda _, args, kwargs: changed.append(args[0])),
        ):
            model.get_decoder()(ids, use_cache=False)
    states.requires_grad_()
    logits = model.lm_head(model.get_decoder().norm(states[:, -item.scored - 1 : -1]))[0]
    torch.nn.functional.cross_entropy(logits, ids[0, -item.scored :]).backward()
    estimates = []
    for layer, projection, kwargs in zip(reversed(layers), reversed(projections), reversed(options), strict=True):
        gradient, states, kept = states.grad, inputs.pop().requires_grad_(), []
        with before([projection], lambda _, args, kwargs, kept=kept: args[0].retain_grad() or kept.append(args[0])):
            layer(states, **kwargs).backward(gradient)
        (output,) = kept
        change = output.grad * (changed.pop() - output.detach())
        estimates.append(-change[0].unflatten(1, (heads, -1)).sum((0, 2), dtype=torch.float64).numpy())
    return np.array(estimates[::-1])


def main(args: argparse.Namespace) -> None:
    """Writes attribution.csv, text by text."""
    request = LocateRequest(
        model=args.model, methods=args.method, lengths=tuple(parse_lengths(args.lengths)), samples=args.samples
    )
    planned = plan(request)
    ((group, items),) = planned.items.items()
    (name,) = planned.compared
    model = mesa.load(args.model).model.requires_grad_(False)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "attribution.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "method", "length", "text", "layer", "head", "restored"))
        for text in range(len(items)) if args.texts is None else map(int, args.texts.split(",")):
            for place, value in np.ndenumerate(restored(model, items[text], planned.methods[name])):
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
