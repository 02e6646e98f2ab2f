"""`make mechanism`: what results.md shows of the shipped model, from the runs to its map and tables.

`python research/mechanism/run.py RUNS` runs `RUNNING` into RUNS; interrupted, it continues. Then it copies
their tables to research/mechanism/results, draws docs/mechanism-map.png from them and writes the table of shares in
results.md anew. With --draw it runs nothing and takes what is there.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import xarray as xr

import mesa
from mesa_lens.cli import main
from probe.commands.anatomy import AnatomyRequest
from probe.commands.anatomy.run import by_span, plan
from probe.options import head_name
from probe.store.result_file import percent
from research.mechanism.rankings import rankings
from research.phases import unmet_share
from research.pictures import ROOT, draw_recovery_map

METHODS = "--methods rerope,mesa,dynamic-ntk --samples 6"
RUNNING = {  # what is run, in this order, and its folder
    "anatomy": ("mechanism", ""),
    "locate": (
        "mechanism",
        f"{METHODS} --lengths 512,1024,2048 --try patch,clamp,smallest",
    ),
    "locate passkeys": (
        "mechanism-passkey",
        f"{METHODS} --lengths 1024 --measure passkey --try patch,smallest",
    ),
    "locate masks": (
        "mechanism-mask",
        "--methods lm-infinite,streaming-llm --samples 6 --lengths 1024 --try patch",
    ),
}
TABLES = {  # table in a run's folder: its name in research/mechanism/results
    "mechanism/anatomy": {name: name for name in ("all_heads", "heads", "retrieval_heads")},
    "mechanism/locate": {name: name for name in ("effects", "loss_gaps", "smallest")},
    "mechanism-passkey/locate": {"effects": "effects-passkey", "smallest": "smallest-passkey"},
    "mechanism-mask/locate": {"effects": "effects-mask"},
}
HEADS = ((0, 7), (2, 0))
"""The heads that have columns beside the layers."""


def run(runs: Path) -> None:
    """Runs everything, or what is left of it, and prints the CPU time of each step; ends where a command fails."""
    for name, (folder, options) in RUNNING.items():
        begun = time.process_time()
        code = main([name.split()[0], "--out", str(runs / folder), *options.split()])
        if code:
            raise SystemExit(code)
        print(f"{name}: {(time.process_time() - begun) / 60:z.1f} CPU minutes")


def draw(runs: Path, root: Path) -> None:
    """Copies the tables, draws the pictures and writes the table of shares into results.md, of what was run."""
    here = root / "research" / "mechanism"
    results = here / "results"
    for folder, tables in TABLES.items():
        for table, name in tables.items():
            if (path := runs / folder / f"{table}.csv").is_file():
                shutil.copyfile(path, results / f"{name}.csv")
    draw_recovery_map(root / "docs" / "mechanism-map.png")
    summary = json.loads((runs / "mechanism/locate/summary.json").read_text(encoding="utf-8"))
    if (measured := runs / "mechanism/anatomy/summary.json").is_file():
        anatomy = json.loads(measured.read_text(encoding="utf-8"))
        write_rankings(summary, anatomy | {"unmet": unmet_by_head(anatomy)}, results / "agreement.csv")
    page = here / "results.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), share_table(summary)), encoding="utf-8")


def unmet_by_head(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By head of the shipped model: the share of unmet rotary phases under Origin beyond M, at each measured length.

    On the texts that `mesa-lens anatomy` reads; rows as in its summary, without intervals.
    """
    lengths = tuple(length for length in summary["lengths"] if length > summary["trained_length"])
    planned, model = plan(AnatomyRequest(methods="origin", parts=("heads",), lengths=lengths)), mesa.load().model
    rows = []
    for length, texts in planned.texts.items():
        measured = [by_span(unmet_share(model, ids.tolist(), planned.methods["origin"])) for ids in texts]
        means = xr.concat(measured, "prompt").sel(span="beyond M").mean("prompt")
        for layer, head in product(means["layer"].values.tolist(), means["head"].values.tolist()):
            values = {name: [float(means[name].sel(layer=layer, head=head))] for name in ("norms", "attention")}
            labels = {"method": "origin", "length": length, "span": "beyond M", "layer": layer, "head": head}
            rows.append(labels | values)
    return rows


def write_rankings(summary: Mapping[str, Any], anatomy: Mapping[str, Any], table: Path) -> None:
    """Writes the rank correlations of heads, by method, length and measure."""
    rows = []
    for gap in summary["loss_gaps"]:
        labels = {name: gap[name] for name in ("method", "length", "measure")}
        effects = [row for row in summary["effects"] if labels.items() <= row.items()]
        rows += [labels | row for row in rankings(effects, gap["length"], anatomy)]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def with_table(page: str, lines: list[str]) -> str:
    """The page with these lines in place of its table that begins as they do."""
    before, after = page.split(lines[0].partition(" excess loss,")[0], 1)
    return before + "\n".join(lines) + "\n\n" + after.split("\n\n", 1)[1]


def share_table(summary: Mapping[str, Any]) -> list[str]:
    """Every method's excess loss by length, and what the method in one layer or one of `HEADS` alone recovers of it."""
    places = [*((layer, None) for layer in summary["layers"]), *HEADS]
    heads = [f"layer {layer}" if head is None else head_name(layer, head) for layer, head in places]
    lines = [f"| length | method | excess loss, nats/token | {' | '.join(heads)} |", "|" + "---|" * (3 + len(heads))]
    alone = {
        (row["length"], row["method"], row["layer"], row["head"]): row
        for row in summary["effects"]
        if (row["kind"], row["way"]) == ("patch", "only")
    }
    for gap in summary["loss_gaps"]:
        here = gap["length"], gap["method"]
        lost = f"{gap['baseline'] - gap['patched']:z.2f} [{gap['low']:z.2f}, {gap['high']:z.2f}]"
        shares = [
            percent(*(alone[*here, *place][name] for name in ("share", "low", "high")))
            if (*here, *place) in alone
            else ""
            for place in places
        ]
        lines.append(f"| {here[0]} | `{here[1]}` | {lost} | {' | '.join(shares)} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--draw", action="store_true", help="run nothing, draw what is there")
    args = parser.parse_args()
    if not args.draw:
        run(args.runs)
    draw(args.runs, ROOT)
