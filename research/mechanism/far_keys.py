"""Which heads carry the harm of a few far keys at fixed length: estimates by gradients first, then passes.

    python research/mechanism/far_keys.py    # SmolLM2; results/far_keys.jsonl, which the same command continues

Prompts and moved keys are those of research/law/sparse.py: 640 tokens, 16 keys of the first half moved by the largest
G. Heads are chosen by stretches of the first text; passes are judged by those of the second. Writes far_keys.csv (a row
a set of heads), far_keys_estimates.csv (a row a head), and far_keys_half.csv: the pairs on the second text, all keys of
the first half moved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.decoder import layers_of
from mesa.methods import Method, Origin
from mesa.models import Loaded, load
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import Moved
from probe.commands.predict.run import plan
from probe.eval_tasks.score import nll
from probe.options import parse_lengths
from probe.statistics import fieller
from research.law.sparse import MOST, others, sizes, stretches
from research.script import Journal, deadline, run

RESULTS = Path(__file__).parent / "results"
EACH, KEYS, PATCHED, RANDOM = 4, 16, 20, 5
"""Stretches of a text, moved keys, heads that are patched one by one, random sets of as many."""
PAIRS = ("16:0;19:3", "16:0;11:1")
Head = tuple[int, int]
Chosen = Mapping[int, Sequence[int]]
"""Heads by layer."""


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


def estimates(model: Any, ids: np.ndarray, scored: int, method: Method, other: Method) -> np.ndarray:
    """What `other` in one head alone would change of the loss under `method`, to first order (layer, head), nats/token.

    The gradient of the loss with respect to what the head gives, times what `other` changes of it in the layer's own
    input.
    """
    layers: list[Any] = list(layers_of(model))
    projections = [layer.self_attn.o_proj for layer in layers]
    inputs: list[Any] = []
    given: list[Any] = []
    changed: list[Any] = []

    def keep(_: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given.append(args[0].detach().requires_grad_() if not given else args[0])
        if given[-1].requires_grad:
            given[-1].retain_grad()
        return (given[-1], *args[1:]), kwargs

    with mesa.applied(model, method, executor="dense"):
        with before(layers, lambda _, args, kwargs: inputs.append(args[0].detach())), before(projections, keep):
            tokens = torch.tensor(ids)[None]
            logits = model(tokens, use_cache=False, logits_to_keep=scored + 1).logits[0, :-1]
        torch.nn.functional.cross_entropy(logits, tokens[0, -scored:]).backward()
    with (
        torch.no_grad(),
        mesa.applied(model, other, executor="dense"),
        before(layers, lambda layer, args, kwargs: ((inputs[layer], *args[1:]), kwargs)),
        before(projections, lambda _, args, kwargs: changed.append(args[0])),
    ):
        model.get_decoder()(tokens, use_cache=False)
    heads = model.config.num_attention_heads
    each = [own.grad * (new - own.detach()) for own, new in zip(given, changed, strict=True)]
    return np.array([part[0].unflatten(1, (heads, -1)).sum((0, 2), dtype=torch.float64).numpy() for part in each])


def by_layer(heads: Iterable[Head]) -> dict[int, tuple[int, ...]]:
    """Heads by layer, in rising order."""
    layers: dict[int, list[int]] = {}
    for layer, head in sorted(heads):
        layers.setdefault(layer, []).append(head)
    return {layer: tuple(numbers) for layer, numbers in layers.items()}


def named(heads: Chosen) -> str:
    """As `--heads` takes them."""
    return ";".join(f"{layer}:{','.join(map(str, numbers))}" for layer, numbers in heads.items())


def choose(alone: np.ndarray, undone: np.ndarray, count: int) -> list[Head]:
    """`count` heads, in turn the next highest of either estimate (layer, head)."""
    ranked = [np.argsort(-values, axis=None) for values in (alone, undone)]
    order = dict.fromkeys(int(number) for both in zip(*ranked, strict=True) for number in both)
    return [(number // alone.shape[1], number % alone.shape[1]) for number in [*order][:count]]


def sets_of(chosen: Sequence[Head], shape: tuple[int, int]) -> dict[str, Chosen]:
    """What is patched, by label: pairs of earlier studies, the first ones together, random ones, each alone."""
    sets: dict[str, Chosen] = {f"pair {text}": dict(Origin(trained_length=2, heads=text).heads) for text in PAIRS}
    sets |= {f"first {count}": by_layer(chosen[:count]) for count in (5, 10, PATCHED)}
    rest = [place for place in np.ndindex(*shape) if place not in chosen]
    rng = np.random.default_rng(0)
    for number in range(RANDOM):
        sets[f"random {number}"] = by_layer(rest[at] for at in rng.permutation(len(rest))[: len(chosen)])
    return sets | {f"head {layer}.{head}": by_layer([(layer, head)]) for layer, head in chosen}


def main(args: argparse.Namespace) -> None:
    """Measures what the journal lacks, and writes the tables."""
    lengths = parse_lengths(args.lengths) if args.lengths else None
    planned = plan(PredictRequest(model=args.model, methods="origin", lengths=lengths, samples=2))
    trained, longest = planned.trained_length, planned.longest
    tokens = min(trained, MOST)
    scored, gap = tokens // 4, sizes(trained, longest, tokens)[-1]
    texts = stretches(planned.texts, tokens, longest, 2 * EACH)
    settings = {**planned.settings, "tokens": tokens, "keys": KEYS, "gap": gap, "texts": len(texts)}
    journal, over = Journal(RESULTS / "far_keys.jsonl", settings), deadline(args.minutes)
    loaded: Loaded = load(args.model)
    model = loaded.model.requires_grad_(False)
    moved = Moved(trained_length=trained, half=tokens // 2, count=KEYS, gap=gap)
    plain = Origin(trained_length=trained)
    for text in range(EACH):
        for kind, method, other in (("alone", plain, moved), ("undone", moved, plain)):
            if ("estimate", kind, text) not in journal.rows and not over():
                values = estimates(model, texts[text], scored, method, other).round(5).tolist()
                journal.add(("estimate", kind, text), {"nll": values})
    if any(("estimate", "undone", text) not in journal.rows for text in range(EACH)):
        return
    alone, undone = (
        sign * np.mean([journal.rows["estimate", kind, text]["nll"] for text in range(EACH)], axis=0)
        for kind, sign in (("alone", 1), ("undone", -1))
    )
    sets = sets_of(choose(alone, undone, PATCHED), alone.shape)
    cells: list[tuple[str, str]] = [("none", ""), ("all", "")]
    cells += [(place, named(heads)) for heads in sets.values() for place in ("in", "not in")]
    pairs = {label: named(heads) for label, heads in sets.items() if label.startswith("pair ")}
    half = [("half all", ""), *((f"half {place}", heads) for heads in pairs.values() for place in ("in", "not in"))]
    for text in [*range(EACH, 2 * EACH), *range(EACH)]:  # the judged ones first
        for place, label in [*cells, *half] if text >= EACH else cells:
            if (place, label, text) in journal.rows or over():
                continue
            method = plain if place == "none" else moved
            if place.startswith("half "):
                method = replace(moved, count=tokens // 2)
            if label:
                heads = dict(Origin(trained_length=2, heads=label).heads)
                method = replace(method, heads=others(loaded, heads) if place.endswith("not in") else heads)
            with torch.no_grad(), mesa.applied(model, method, executor="dense"):
                journal.add((place, label, text), {"nll": round(float(nll(model, texts[text], scored).mean()), 4)})
        print(f"text {text}", flush=True)
    write_tables(journal, sets, alone, undone)
    write_half(journal, pairs, tokens // 2)


def write_half(journal: Journal, pairs: Mapping[str, str], keys: int) -> None:
    """The pairs' shares of what all heads cost with the first half moved, on the stretches that have every pass."""
    rows = []
    for label, heads in pairs.items():
        for place in ("in", "not in"):
            cells = (("none", ""), ("half all", ""), (f"half {place}", heads))
            texts = [text for text in range(EACH, 2 * EACH) if all((*cell, text) in journal.rows for cell in cells)]
            if texts:
                plain, full, own = np.array([[journal.rows[(*cell, text)]["nll"] for text in texts] for cell in cells])
                low, high = fieller((own - plain).tolist(), (full - plain).tolist())
                cost, whole = (own - plain).mean(), (full - plain).mean()
                values = {"cost": cost, "all": whole, "share": cost / whole, "low": low, "high": high}
                rows.append({"set": label, "place": place, "keys": keys, "count": len(texts)} | values)
    pd.DataFrame(rows).round(4).to_csv(RESULTS / "far_keys_half.csv", index=False)


def write_tables(journal: Journal, sets: Mapping[str, Chosen], alone: np.ndarray, undone: np.ndarray) -> None:
    """Shares of what all heads cost, by half of the texts; estimates beside the heads."""
    table = [
        {"layer": layer, "head": head, "alone": value, "undone": undone[layer, head]}
        for (layer, head), value in np.ndenumerate(alone)
    ]
    pd.DataFrame(table).round(5).to_csv(RESULTS / "far_keys_estimates.csv", index=False)
    rows = []
    for label, heads in sets.items():
        for half, texts in (("judged", range(EACH, 2 * EACH)), ("chosen by", range(EACH))):
            for place in ("in", "not in"):
                cells = [(journal.rows.get((place, named(heads), text)), text) for text in texts]
                done = [(row["nll"], text) for row, text in cells if row]
                if not done:
                    continue
                plain, full = ([journal.rows[of, "", text]["nll"] for _, text in done] for of in ("none", "all"))
                cost, whole = np.array([loss for loss, _ in done]) - plain, np.array(full) - plain
                low, high = fieller(cost.tolist(), whole.tolist())
                values = {"cost": cost.mean(), "all": whole.mean(), "share": cost.mean() / whole.mean()}
                names = {"set": label, "heads": named(heads), "place": place, "texts": half, "count": len(done)}
                rows.append(names | values | {"low": low, "high": high})
    pd.DataFrame(rows).round(4).to_csv(RESULTS / "far_keys.csv", index=False)


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/mechanism/far_keys.py", description=__doc__)
    top.add_argument("--model", default="smollm2", help="default, smollm2, or a folder")
    top.add_argument("--lengths", default="10240,12288,14336,16384", help="tokens, as for `mesa-lens predict`")
    top.add_argument("--minutes", type=float, help="start nothing after this; the same command continues")
    return top


if __name__ == "__main__":
    run(main, parser())
