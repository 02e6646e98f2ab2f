"""Does the drift of hidden states beyond M cost the loss where it is put into a pass inside M, and which dims of it?

    python research/mechanism/inject.py --out runs/inject

Decided beforehand in README.md. Journals losses by text and layer, and writes inject.csv: a row a layer and edit.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.engine.bridge import bridge as bridge_to
from mesa.methods import Method
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import BASELINE, PATCHED, Clamp, Edit, Item, RunPair, blocks, clamped_dims
from probe.commands.locate.run import ORIGIN, PairedLosses, plan
from probe.eval_tasks.retrieval import repeated_word
from research.script import Journal, make_parser, run

RANDOM, QUARTER = 10, 64
"""Random sets of each number of dims; dims of the larger sets."""
WHOLE, MEAN, CLAMPED, CLAMP, METHOD = (
    "whole drift",
    "mean drift",
    "whole drift, clamped",
    "clamp alone",
    "rerope's states",
)
Change = Callable[[Tensor], Tensor]


@dataclass
class Text:
    """The runs of one text: beyond M under Origin and the method, and inside M on its first and last M - 1 tokens."""

    beyond: RunPair
    inside: RunPair

    @classmethod
    def of(cls, bridge: Any, item: Item, methods: Mapping[str, Method]) -> Text:
        """Of an item of more than M tokens."""
        origin = methods[ORIGIN]
        short = Item(item.ids[:1] + item.ids[1 - origin.trained_length :], item.scored)
        (other,) = (method for name, method in methods.items() if name != ORIGIN)
        return cls(
            RunPair(bridge, item, {BASELINE: origin, PATCHED: other}),
            RunPair(bridge, short, {BASELINE: origin, PATCHED: origin}),
        )

    def states(self, layer: int) -> Tensor:
        """After a layer, inside, without the first token (token, dim)."""
        return self.inside.states_after(BASELINE, layer)[1:]

    def drift(self, layer: int, of: str = BASELINE) -> Tensor:
        """States of the run beyond less those inside, of the same tokens (token, dim)."""
        inside = self.states(layer)
        return self.beyond.states_after(of, layer)[-len(inside) :] - inside

    def losses(self, layer: int, change: Change) -> list[float]:
        """By block, inside, with the states after a layer (token, dim) changed, but the first token's."""

        def edit(states: Tensor) -> Tensor:
            states[1:] = change(states[1:])
            return states

        return losses_of(self.inside.run(BASELINE, layer, [Edit(("resid_post", layer), edit)]))


def losses_of(outcome: Any) -> list[float]:
    """By block of scored tokens."""
    return blocks("nll", outcome.losses.double().numpy())


def dim_sets(word: Mapping[int, Sequence[int]], moved: np.ndarray, layer: int) -> dict[str, list[int]]:
    """Sets of dims of a layer by label; moved: mean drift in standard deviations (layer, dim)."""
    order, width = np.argsort(-np.abs(moved[layer]), kind="stable"), moved.shape[1]
    sets = {f"text, {count} dims": order[:count].tolist() for count in {len(word.get(layer, ())), QUARTER} - {0}}
    if layer in word:
        sets[f"word, {len(word[layer])} dims"] = list(word[layer])
    rng = np.random.default_rng(layer)
    for count in sorted({len(dims) for dims in sets.values()}):
        sets |= {f"random {n}, {count} dims": sorted(rng.permutation(width)[:count].tolist()) for n in range(RANDOM)}
    return sets


def changes(text: Text, layer: int, mean: Tensor, sets: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, Change]]:
    """What is done to the states inside, by label."""
    drift, other, inside = text.drift(layer), text.drift(layer, PATCHED), text.states(layer)
    low, high = inside[len(inside) // 2 :].quantile(torch.tensor([0.05, 0.95]), dim=0)
    yield WHOLE, lambda states: states + drift
    yield MEAN, lambda states: states + mean
    yield CLAMPED, lambda states: (states + drift).clamp(low, high)
    yield CLAMP, lambda states: states.clamp(low, high)
    yield METHOD, lambda states: states + other
    for label, dims in sets.items():
        mask = torch.zeros(drift.shape[1])
        mask[list(dims)] = 1
        yield label, lambda states, mask=mask: states + drift * mask


@torch.no_grad()
def measure(journal: Journal, planned: Any) -> None:
    """Journals what is missing."""
    ((_, prompts),) = planned.items.items()
    cells = [("text", number) for number in range(1, len(prompts), 2)]
    if all(cell in journal.rows for cell in cells):
        return
    loaded = mesa.load(planned.request.model)
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    texts = [Text.of(bridge, item, planned.methods) for item in prompts]
    layers = range(texts[0].inside.depth)
    drifts = torch.stack([torch.cat([text.drift(layer) for text in texts[::2]]) for layer in layers])
    inside = torch.stack([torch.cat([text.states(layer) for text in texts[::2]]) for layer in layers])
    mean = drifts.mean(1)
    ids, _ = repeated_word(loaded.tokenizer, planned.request.word, len(prompts[0].ids))
    width, methods = mean.shape[1], [*planned.methods.values()]
    crossing = clamped_dims(bridge, ids, methods, width // 2)["paper"]
    word = {layer: dims for layer, dims, _ in crossing}
    moved = (mean / inside.std(1)).numpy()
    journal.add(("dims",), {"word": [[*row] for row in word.items()], "moved": moved.round(4).tolist()})
    every = tuple((layer, tuple(range(width))) for layer in layers)
    for cell in cells:
        text = texts[cell[1]]
        row: dict[str, Any] = {
            "inside": losses_of(text.inside.outcome(BASELINE)),
            "beyond": losses_of(text.beyond.outcome(BASELINE)),
            "clamped beyond": losses_of(Clamp("range", "all", "all", None, every).run(text.beyond)),
            "layers": [
                {label: text.losses(layer, change) for label, change in changes(text, layer, mean[layer], sets)}
                for layer, sets in ((layer, dim_sets(word, moved, layer)) for layer in layers)
            ],
        }
        journal.add(cell, row)


def table(journal: Journal) -> list[dict[str, Any]]:
    """A row a layer and edit: what it costs, as a share of the gap; of dims, also less the mean of random sets."""
    texts = [row for cell, row in journal.rows.items() if cell[0] == "text"]
    beyond, inside = ([row[name] for row in texts] for name in ("beyond", "inside"))
    judge = PairedLosses(beyond, inside)
    clamped = judge.share([row["clamped beyond"] for row in texts])
    rows = [{"layer": "all", "edit": "clamp beyond M restores", **_values("share", clamped)}]
    for layer in range(len(texts[0]["layers"])):
        losses = {label: [row["layers"][layer][label] for row in texts] for label in texts[0]["layers"][layer]}
        for label, array in losses.items():
            row = {"layer": layer, "edit": label, **_values("share", judge.share(array, again=True))}
            kind, _, count = label.partition(", ")
            random = [
                other for name, other in losses.items() if name.startswith("random") and name.endswith(f", {count}")
            ]
            if kind in ("word", "text"):
                less = judge.share((np.array(inside) + array - np.mean(random, axis=0)).tolist(), again=True)
                row |= _values("less_random", less)
            if label == CLAMPED:
                row |= _values("taken", PairedLosses(losses[WHOLE], inside).share(array))
            rows.append(row)
    gap = judge.gap
    rows.append(
        {"layer": "all", "edit": "gap, nats/token", "share": gap.size, "share_low": gap.low, "share_high": gap.high}
    )
    return [{key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in rows]


def _values(name: str, share: Any) -> dict[str, float]:
    return {name: share.share, f"{name}_low": share.low, f"{name}_high": share.high}


def main(args: argparse.Namespace) -> None:
    """Measures what is missing, and writes the table."""
    length = args.length or 4 * 256
    planned = plan(LocateRequest(model=args.model, lengths=(length,), samples=args.samples))
    journal = Journal(args.out / "journal.jsonl", planned.settings, overwrite=args.overwrite)
    measure(journal, planned)
    rows = table(journal)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (args.out / "inject.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*row.values())


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/inject", "mechanism")
    top.prog = "python research/mechanism/inject.py"
    top.add_argument("--length", type=int, help="tokens (None: 1024)")
    top.add_argument("--samples", type=int, default=16, help="texts; every second one chooses dims")
    return top


if __name__ == "__main__":
    run(main, parser())
