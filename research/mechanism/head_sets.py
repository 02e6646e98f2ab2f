"""How much of the loss a method restores in chosen sets of heads alone.

    python research/mechanism/head_sets.py --model nope --method mesa --table HEADS.csv --random 20 --out runs/sets-nope

The two sharpest local heads of a table of `mesa-lens anatomy`, random pairs beside them, and the sets of --sets. Losses
are rows of `mesa-lens locate`'s journal, in its folder; the same command continues. Writes sets.csv there: a row a set.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.methods import Origin
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import BASELINE, PATCHED, Head, Heads, PatchedHeads, Plain, by_layer
from probe.commands.locate.run import ORIGIN, ItemGroup, Locate, PairedLosses, paired, plan, set_key
from probe.experiment.pool import Task
from probe.options import parse_lengths
from research.script import make_parser, run

NEAR = 0.8
"""Attention to the last 32 tokens, inside M, of a local head."""


def sharpest(rows: Sequence[dict[str, Any]], length: int) -> list[Head]:
    """The two heads of least attention entropy inside M, of those that give `NEAR` to the last 32 tokens there."""
    inside = [row for row in rows if (row["method"], row["span"], int(row["length"])) == (ORIGIN, "inside M", length)]
    local = [row for row in inside if float(row["mass_near"]) >= NEAR]
    return [(int(row["layer"]), int(row["head"])) for row in sorted(local, key=lambda row: float(row["entropy"]))[:2]]


def pairs(heads: Sequence[Head], count: int) -> list[Heads]:
    """`count` pairs of `heads`, seeded; all where there are no more."""
    every = list(combinations(heads, 2))
    chosen = np.random.default_rng(0).permutation(len(every))[:count]
    return [by_layer(every[number]) for number in chosen]


def chosen_sets(args: argparse.Namespace, everywhere: Sequence[Head], length: int) -> dict[str, Heads]:
    """Head sets by label."""
    named = [Origin(trained_length=2, heads=text).heads for text in args.sets]
    sets: dict[str, Heads] = {f"named {number}": dict(heads) for number, heads in enumerate(named)}
    if args.table:
        with args.table.open(encoding="utf-8") as file:
            two = sharpest([*csv.DictReader(file)], length)
        if len(two) < 2:
            raise ValueError(f"{args.table} has {len(two)} local heads, two are needed")
        others = [head for head in everywhere if head not in two]
        same = [head for head in others if head[0] in dict(two)]
        sets["sharpest"] = by_layer(two)
        sets |= {f"others {n}": heads for n, heads in enumerate(pairs(others, args.random))}
        sets |= {f"same layers {n}": heads for n, heads in enumerate(pairs(same, args.random))}
    elif args.random:
        outside = [head for head in everywhere if head[0] not in sets["named 0"]]
        sets |= {f"others {n}": heads for n, heads in enumerate(pairs(outside, args.random))}
    return sets


def main(args: argparse.Namespace) -> None:
    """Measures what the journal lacks, and writes the table."""
    request = LocateRequest(
        model=args.model,
        methods=args.method,
        method_settings=tuple(args.settings),
        measures=(args.measure,),
        lengths=tuple(parse_lengths(args.lengths)) if args.lengths else None,
        samples=args.samples,
        trained_length=args.trained_length,
        heads="all",
    )
    planned = plan(request)
    ((group, prompts),) = planned.items.items()
    numbers = [int(number) for number in args.items.split(",")] if args.items else [*range(len(prompts))]
    sets = chosen_sets(args, planned.heads, group[1])
    experiment, (name,) = Locate(planned), planned.compared
    journal = experiment.open_journal(args.out)
    measure = None
    for number in numbers:
        plain = [(of, (*group, of, number, "run"), tried) for of, tried in _plain(name)]
        wanted = plain + [
            (name, set_key(group, name, number, heads), PatchedHeads.of(heads)) for heads in sets.values()
        ]
        for of, key, tried in wanted:
            if key not in journal.rows:
                measure = measure or experiment.worker.start()
                task = Task("sets", (*group, of, number, *tried.key), inputs=(tried,))
                experiment.record(journal, task, measure(task))
                print(*key, flush=True)
    rows = table(planned, journal.rows, group, name, sets, numbers)
    with (args.out / "sets.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*row.values())


def _plain(name: str) -> list[tuple[str, Plain]]:
    return [(ORIGIN, Plain(BASELINE)), (name, Plain(PATCHED))]


def table(
    planned: Any, rows: Any, group: ItemGroup, name: str, sets: dict[str, Heads], numbers: Sequence[int]
) -> list[dict[str, Any]]:
    """A row a set: the share of the gap that it restores with its 95% interval, and the gap."""
    judge: PairedLosses = paired(planned, rows, group, name, numbers)
    labels = {"model": planned.request.model, "method": name, "measure": group[0], "length": group[1]}
    labels |= {"items": len(numbers), "gap": judge.gap.size, "gap_low": judge.gap.low, "gap_high": judge.gap.high}
    result = []
    for label, heads in sets.items():
        share = judge.share([rows[set_key(group, name, number, heads)]["nll"] for number in numbers])
        _, text = PatchedHeads.of(heads).key
        values = {"share": share.share, "low": share.low, "high": share.high}
        result.append(labels | {"set": label, "heads": text} | values)
    return [{key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in result]


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/head-sets", "mechanism")
    top.prog = "python research/mechanism/head_sets.py"
    top.add_argument("--method", default="rerope", help="what is applied in the heads")
    top.add_argument("--set", dest="settings", action="append", default=[], help="e.g. rerope.log_n=false")
    top.add_argument("--measure", default="nll", help="nll or passkey")
    top.add_argument("--lengths", help="one length, tokens (None: 4 M)")
    top.add_argument("--samples", type=int, default=8, help="prompts")
    top.add_argument("--items", help="numbers of the prompts that are tried, e.g. 1 (None: all)")
    top.add_argument(
        "--table", type=Path, help="heads.csv of `mesa-lens anatomy`: the two sharpest local heads are tried"
    )
    top.add_argument("--sets", nargs="*", default=[], help="sets of heads, e.g. '16:1-8' '16:0;19:3'")
    top.add_argument(
        "--random",
        type=int,
        default=0,
        help="random pairs of other heads and of others of their layers; with --sets: outside the first's layers",
    )
    return top


if __name__ == "__main__":
    run(main, parser())
