"""`make mechanism`: what docs/mechanism.md shows of the shipped model, from the runs to its pictures and tables.

`python research/mechanism/run.py RUNS` runs `RUNNING` into RUNS; interrupted, it continues. Then it copies
their tables to research/mechanism/results, draws docs/mechanism-*.png and writes the table of shares in
docs/mechanism.md anew. With --draw it runs nothing and takes what is there.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa_lens.cli import main
from probe.store.results import percent
from research.mechanism.rankings import rankings
from research.pictures import EXPORTS, ROOT, export

METHODS = "--methods rerope,mesa,dynamic-ntk --samples 6"
RUNNING = {  # what is run, in this order, and its folder
    "anatomy": ("mechanism", ""),
    "locate": (
        "mechanism",
        f"{METHODS} --lengths 512,1024,2048 --ways only,without,mend --try weave,patch,clamp,attribution,smallest",
    ),
    "locate passkeys": (
        "mechanism-passkey",
        f"{METHODS} --lengths 1024 --measure passkey --try weave,smallest --ways only,without",
    ),
    "locate masks": (
        "mechanism-mask",
        "--methods lm-infinite,streaming-llm --samples 6 --lengths 1024 --try weave --ways only,without",
    ),
}
TABLES = {  # table in a run's folder: its name in research/mechanism/results
    "mechanism/anatomy": {name: name for name in ("all_heads", "heads", "lens_differs", "retrieval_heads", "unmet")},
    "mechanism/locate": {name: name for name in ("agreement", "attribution", "effects", "gaps", "smallest")},
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


def draw(runs: Path, docs: Path, results: Path) -> None:
    """Copies the tables, draws the pictures and writes the table of shares into mechanism.md, of what was run."""
    for folder, tables in TABLES.items():
        for table, name in tables.items():
            if (path := runs / folder / f"{table}.csv").is_file():
                shutil.copyfile(path, results / f"{name}.csv")
    for stayed in export("mechanism", EXPORTS["mechanism"], runs, docs):
        print(stayed)
    summary = json.loads((runs / "mechanism/locate/summary.json").read_text(encoding="utf-8"))
    add_rankings(summary, runs / "mechanism/anatomy/summary.json", results / "agreement.csv")
    page = docs / "mechanism.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), share_table(summary)), encoding="utf-8")


def add_rankings(summary: Mapping[str, Any], anatomy: Path, table: Path) -> None:
    """Appends the rank correlations of heads to the table of agreements, where attention was analysed."""
    if not anatomy.is_file():
        return
    measured = json.loads(anatomy.read_text(encoding="utf-8"))
    with table.open("r+", newline="", encoding="utf-8") as file:
        columns = next(csv.reader(file))
        file.seek(0, 2)
        writer = csv.DictWriter(file, columns)
        for gap in summary["gaps"]:
            labels = {name: gap[name] for name in ("method", "length", "measure")}
            effects = [row for row in summary["effects"] if labels.items() <= row.items()]
            for row in rankings(effects, gap["length"], measured, None):
                writer.writerow(labels | row)


def with_table(page: str, lines: list[str]) -> str:
    """The page with these lines in place of its table that begins as they do."""
    before, after = page.split(lines[0].partition(" gap,")[0], 1)
    return before + "\n".join(lines) + "\n\n" + after.split("\n\n", 1)[1]


def share_table(summary: Mapping[str, Any]) -> list[str]:
    """The gap of every method and length, and what the method in one layer, or one of `HEADS`, alone restores of it."""
    places = [*((layer, None) for layer in summary["layers"]), *HEADS]
    heads = [f"layer {layer}" if head is None else f"head {layer}.{head}" for layer, head in places]
    lines = [f"| length | method | gap, nats/token | {' | '.join(heads)} |", "|" + "---|" * (3 + len(heads))]
    alone = {
        (row["length"], row["method"], row["layer"], row["head"]): row
        for row in summary["effects"]
        if (row["kind"], row["way"]) == ("weave", "only")
    }
    for gap in summary["gaps"]:
        here = gap["length"], gap["method"]
        lost = f"{gap['broken'] - gap['mended']:z.2f} [{gap['low']:z.2f}, {gap['high']:z.2f}]"
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
    draw(args.runs, ROOT / "docs", Path(__file__).parent / "results")
