"""How much of the loss does ReRoPE restore when only some rotary pairs of two heads see its capped distances?

    python research/mechanism/bands.py --out runs/bands

Decided beforehand in README.md. In the chosen heads a score is the sum over rotary pairs: those of a band at ReRoPE's
distances, the others at true ones. Journals losses by text, and writes bands.csv: a row a set of heads and a band.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.engine.attention import EXECUTORS, dense, scored
from mesa.engine.bridge import bridge as bridge_to
from mesa.engine.schedule import Schedule
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import Heads, blocks, run as run_pass
from probe.commands.locate.run import PairedLosses, plan
from research.script import Journal, make_parser, run

HEADS: dict[str, Heads] = {"0.7 and 2.0": {0: (7,), 2: (0,)}, "0.7": {0: (7,)}, "2.0": {2: (0,)}}
RANDOM = 5
"""Random halves of the pairs."""
M, LENGTH = 256, 1024
LOG_N = ("no log n", "log n")
LESS = (("slow half", "fast half"), ("middle third", "fast third"), ("middle third", "slow third"))
Band = tuple[int, ...]


def bands(pairs: int, slow: int) -> dict[str, Band]:
    """Bands of rotary pairs, 0 the fastest, by label; slow: the first that does not turn once in M tokens."""
    every, thirds = range(pairs), np.array_split(np.arange(pairs), 3)
    chosen: dict[str, Sequence[int]] = {"none": (), "all": every}
    chosen |= {"fast half": every[: pairs // 2], "slow half": every[pairs // 2 :]}
    chosen |= {f"{name} third": third.tolist() for name, third in zip(("fast", "middle", "slow"), thirds, strict=True)}
    chosen |= {
        f"all but {name} third": sorted({*every} - {*chosen[f"{name} third"]}) for name in ("fast", "middle", "slow")
    }
    chosen |= {"turn within M": every[:slow], "do not": every[slow:]}
    rng = np.random.default_rng(0)
    chosen |= {f"random half {n}": sorted(rng.permutation(pairs)[: pairs // 2].tolist()) for n in range(RANDOM)}
    chosen |= {f"pair {pair}": (pair,) for pair in every}
    return {name: tuple(band) for name, band in chosen.items()}


@contextmanager
def banded(band: Band, log_n: bool) -> Iterator[str]:
    """The name of an executor: `dense`, but ReRoPE's plan serves a band's pairs only, and true distances the others."""

    def execute(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if len(schedule.plan.regions) == 1:  # Origin's
            return dense(schedule, query, key, value, scale)
        origin = mesa.make("origin", M, log_n=log_n).plan(schedule.plan.length)
        capped = torch.zeros(query.shape[-1] // 2)
        capped[list(band)] = 1
        capped = capped.repeat(2)
        scores = scored(schedule, query * capped, key, scale)
        scores = scores + scored(replace(schedule, plan=origin), query * (1 - capped), key, scale)
        weights = scores.softmax(-1)
        return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1), weights

    EXECUTORS["banded"] = execute
    try:
        yield "banded"
    finally:
        del EXECUTORS["banded"]


def tried(chosen: dict[str, Band]) -> Iterator[tuple[str, str, str]]:
    """Heads, log n and band of every edit: with log n, and pair by pair, of both heads alone."""
    both = next(iter(HEADS))
    for heads in HEADS:
        for log_n in LOG_N[: 1 + (heads == both)]:
            for label in chosen:
                if not label.startswith("pair ") or (heads, log_n) == (both, LOG_N[0]):
                    yield heads, log_n, label


@torch.no_grad()
def measure(journal: Journal, planned: Any, chosen: dict[str, Band]) -> None:
    """Journals what is missing."""
    ((_, items),) = planned.items.items()
    loaded = mesa.load()
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    rerope = {log_n: mesa.make("rerope", M, log_n=log_n) for log_n in (False, True)}
    for number, item in enumerate(items):

        def add(cell: tuple[str | int, ...], method: mesa.Method, executor: str = "dense", item: Any = item) -> None:
            losses = run_pass(bridge, item, method, executor=executor).losses
            journal.add(cell, {"nll": blocks("nll", losses.double().numpy())})

        for name, method in (("origin", mesa.make("origin", M)), ("rerope", rerope[True])):
            if (name, number) not in journal.rows:
                add((name, number), method)
        for heads, log_n, label in tried(chosen):
            cell = (heads, log_n, label, number)
            if cell not in journal.rows:
                with banded(chosen[label], log_n == LOG_N[1]) as executor:
                    add(cell, replace(rerope[log_n == LOG_N[1]], heads=HEADS[heads]), executor)
        print(number, flush=True)


def table(journal: Journal, chosen: dict[str, Band], texts: int) -> list[dict[str, Any]]:
    """A row a set of heads and a band: the share restored with its 95% interval; and differences of two bands."""

    def losses(*cell: str | int) -> np.ndarray:
        return np.array([journal.rows[*cell, number]["nll"] for number in range(texts)])

    origin = losses("origin")
    judge = PairedLosses(origin.tolist(), losses("rerope").tolist())
    gap = judge.gap
    rows: list[dict[str, Any]] = [
        {"heads": "all", "log_n": "", "band": "gap, nats/token", "pairs": "", **_values((gap.size, gap.low, gap.high))}
    ]
    for heads, log_n, label in tried(chosen):
        share = judge.share(losses(heads, log_n, label).tolist())
        pairs = ",".join(map(str, chosen[label]))
        rows.append({"heads": heads, "log_n": log_n, "band": label, "pairs": pairs, **_values(share)})
    for heads, log_n in dict.fromkeys((heads, log_n) for heads, log_n, _ in tried(chosen)):
        for first, second in LESS:
            less = origin + losses(heads, log_n, first) - losses(heads, log_n, second)
            values = _values(judge.share(less.tolist()))
            rows.append({"heads": heads, "log_n": log_n, "band": f"{first} less {second}", **values})
    return rows


def _values(share: Sequence[float]) -> dict[str, str]:
    return {name: f"{value:.6g}" for name, value in zip(("share", "low", "high"), share, strict=True)}


def main(args: argparse.Namespace) -> None:
    """Measures what is missing, and writes the table."""
    planned = plan(LocateRequest(methods="rerope", lengths=(LENGTH,), samples=args.samples, heads="all"))
    pairs = planned.config.head_dim // 2
    periods = 2 * np.pi * planned.config.rope_parameters["rope_theta"] ** (np.arange(pairs) / pairs)
    chosen = bands(pairs, int((periods <= M).sum()))
    journal = Journal(args.out / "journal.jsonl", planned.settings, overwrite=args.overwrite)
    measure(journal, planned, chosen)
    rows = table(journal, chosen, args.samples)
    with (args.out / "bands.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*row.values())


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/bands", "mechanism")
    top.prog = "python research/mechanism/bands.py"
    top.add_argument("--samples", type=int, default=8, help="texts, as for `mesa-lens locate`")
    return top


if __name__ == "__main__":
    run(main, parser())
