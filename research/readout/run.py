"""The runs of rule.md, resumable: `python research/readout/run.py --minutes 20`.

Writes results/NAME.csv, a row a property, method and length in the chosen layer; results/NAME-lens.csv; and
results/NAME-map.csv, the scores of what was read in every layer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.commands.readout import ReadoutRequest
from probe.commands.readout.plan import plan
from probe.commands.readout.result import READOUT, ProbeRead, Readout
from probe.commands.readout.run import run_and_report
from probe.experiment.pool import deadline
from probe.figures.export import csv_bytes, row_table
from probe.options import parse_lengths
from probe.store.result_file import having
from research.script import load_options, make_parser, names, run

PROPERTIES = "previous-1,previous-2,previous-4,open-line,open-string,position"
METHODS = "origin,rerope,dynamic-ntk,mesa"
_SCORES = (
    "inside",
    "control",
    "transfer",
    "refit",
    "control_refit",
    "by_reference",
    "selectivity",
    "moved",
    "lost",
    "returned",
)
_CLAIMS = ("is_read", "is_moved", "is_lost", "is_returned")


def main(args: argparse.Namespace) -> None:
    """Runs what the folder lacks, then writes both tables."""
    _, trained = ReadoutRequest(model=args.model, trained_length=args.trained_length).checked_model()
    lengths = tuple(parse_lengths(args.lengths) if args.lengths else (trained * times for times in (2, 4, 8)))
    request = request_of(args, lengths=lengths, text=args.text)
    out = args.out / (args.name or Path(args.model).name)
    done = run_and_report(plan(request), out, overwrite=args.overwrite, until=deadline(args.minutes))
    print(done.text)
    if not done.left:
        results = Path(__file__).parent / "results"
        results.mkdir(exist_ok=True)
        for name, rows in tables(READOUT.read(out)).items():
            (results / f"{out.name}{name}.csv").write_bytes(csv_bytes(row_table(rows)))


def request_of(args: argparse.Namespace, **more: Any) -> ReadoutRequest:
    """What the command line asks for."""
    return ReadoutRequest(
        model=args.model,
        load=load_options(args),
        trained_length=args.trained_length,
        methods=args.methods,
        properties=names(args.properties),
        samples=args.samples,
        layers=args.layers,
        **more,
    )


def tables(summary: Readout) -> dict[str, list[dict[str, Any]]]:
    """Rows by the end of a file's name: of probes in the judged layer, and of the lens."""
    probes = [
        row
        for name in summary.probed
        for row in having(summary.probes, probe=name, layer=judged_layer(summary, name))
        if row.length > summary.trained_length
    ]
    lens = [
        {"method": row.method, "length": row.length, "layer": row.layer, **_ends("loss", row.loss),
         **_ends("excess", row.excess), "is_above": row.is_above}
        for row in summary.lens
    ]  # fmt: skip
    kept = ("inside", "transfer", "refit", "by_reference", "control")
    by_layer = [
        {"probe": row.probe, "method": row.method, "length": row.length, "layer": row.layer}
        | {name: round(getattr(row, name).mean, 4) for name in kept}
        for row in summary.probes
    ]
    return {"": [_row(row) for row in probes], "-lens": lens, "-map": by_layer}


def judged_layer(summary: Readout, name: str) -> int:
    """That with the largest selectivity at M under Origin."""
    rows = having(summary.probes, probe=name, method="origin", length=summary.trained_length)
    return max(rows, key=lambda row: row.selectivity.mean).layer


def _row(row: ProbeRead) -> dict[str, Any]:
    labels = {key: getattr(row, key) for key in ("probe", "method", "length", "layer", "n", "tokens", "chance")}
    scores = [_ends(name, getattr(row, name)) for name in _SCORES]
    claims = {name: getattr(row, name) for name in _CLAIMS}
    return labels | {key: value for each in scores for key, value in each.items()} | claims


def _ends(name: str, value: Any) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), (round(part, 4) for part in value), strict=True))


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/readout", "readout")
    top.add_argument("--name", help="of the results (None: the model's)")
    top.add_argument("--text", help="a file or folder (None: the shipped held-out files)")
    top.add_argument("--properties", default=PROPERTIES, help="what is probed")
    top.add_argument("--methods", default=METHODS, help="names, Origin first")
    top.add_argument("--lengths", help="tokens (None: 2, 4 and 8 M)")
    top.add_argument("--samples", type=int, default=64, help="texts, half of them to train on")
    top.add_argument("--layers", default="all", help="e.g. 5,11,17-20")
    return top


if __name__ == "__main__":
    run(main, parser())
