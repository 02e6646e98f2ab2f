"""The verification's command line: `python -m theory`, and `mesa-lens verify` over the same two functions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from theory.recovery import KINDS
from theory.verdicts import summary

if TYPE_CHECKING:
    from theory.claims import Claim, Settings


def add_arguments(parser: argparse.ArgumentParser, folder: Callable[[str], Path] = Path) -> None:
    """Adds the options of the verification to `parser`; `folder` reads that of --out."""
    parser.add_argument(
        "task",
        nargs="?",
        default="claims",
        choices=["claims", "table", "plots"],
        help="claims (default): check them; table: the (N, M, E) table as CSV and plot; plots: the figures as PNG",
    )
    parser.add_argument("--claim", metavar="NAME", help="check this claim only, with those named NAME-...")
    parser.add_argument("--M", type=int, help="the window, in tokens (default: each claim's own grid)")
    parser.add_argument("--N", type=int, help="the weave's window, in tokens")
    parser.add_argument("--E", type=int, help="the stair's width, in tokens")
    parser.add_argument("--H", type=float, default=0.5, help="the threshold (default: %(default)s)")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the free weights (default: %(default)s)")
    recoveries = [*KINDS, "log"]
    parser.add_argument("--recovery", choices=recoveries, default="steps", help="position MLP (default: %(default)s)")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="shorter inputs: under 20 seconds")
    extent.add_argument("--full", action="store_true", help="the longest inputs, too: of docs/theory.md's numbers")
    parser.add_argument("--json", action="store_true", help="print the claims as JSON")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="PATH",
        help="write the report there too (.html is added), and the claims beside it (.json)",
    )
    parser.add_argument("--out", type=folder, default=Path(), metavar="DIR", help="where table and plots are written")


def run(args: argparse.Namespace) -> int:
    """Does what `args` say. Returns 0 if everything that must hold holds, 1 if not, 2 for misuse."""
    from theory.claims import Settings  # loads torch

    try:
        settings = Settings(args.M, args.N, args.E, args.H, args.dtype, args.seed, args.recovery, args.quick, args.full)
        if args.task == "claims":
            return _verify(args, settings)
        args.out.mkdir(parents=True, exist_ok=True)
        return _write_table(args.out, settings) if args.task == "table" else _write_plots(args.out, settings)
    except (ValueError, OSError) as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2


def _verify(args: argparse.Namespace, settings: Settings) -> int:
    """Checks the claims and prints them."""
    from theory.claims import selected

    checks = selected(args.claim)
    unsuited = settings.unsuited(checks)
    checks = {name: check for name, check in checks.items() if name not in unsuited}
    if not checks or args.claim in unsuited:
        raise ValueError(next(iter(unsuited.values())))
    path = args.html
    if path is not None and path.suffix != ".html":
        path = path.with_name(path.name + ".html")
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"--html {path}: there is no directory {path.parent}; make it first")
    with _progress(checks.values(), "claims") as bar:
        claims = [check(settings) for check in bar]
    for name, reason in unsuited.items():
        sys.stderr.write(f"[not checked] {name}: {reason}\n")
    _print_claims(claims, args.json)
    if path is not None:
        from theory.report import write_report

        write_report(claims, settings, path)
        path.with_suffix(".json").write_text(_as_json(claims) + "\n")
        sys.stderr.write(f"report: {path}, its claims: {path.with_suffix('.json')}\n")
    return 0 if all(claim.ok for claim in claims) else 1


def _print_claims(claims: list[Claim], as_json: bool) -> None:
    if as_json:
        text = _as_json(claims)
    else:
        total = summary((claim.name, claim.verdict) for claim in claims)
        text = "\n".join([*(claim.line() for claim in claims), total])
    sys.stdout.write(text + "\n")


def _as_json(claims: list[Claim]) -> str:
    return json.dumps([claim.as_dict() for claim in claims], indent=2)


def _write_table(folder: Path, settings: Settings) -> int:
    """Writes theory_table.csv and theory_table.png."""
    from theory.plots import save, table_plot
    from theory.table import left_out, measure, rows, write_csv

    cases = rows(settings)
    if not cases:
        raise ValueError(f"every T* exceeds the {settings.longest_run} tokens that are run; take a smaller N or M")
    with _progress(measure(settings), "cases", len(cases)) as bar:
        table = list(bar)
    write_csv(table, folder / "theory_table.csv")
    save(table_plot(table), folder / "theory_table.png")
    sys.stdout.write(f"{folder / 'theory_table.csv'}\n{folder / 'theory_table.png'}\n")
    if omitted := left_out(settings):
        sys.stderr.write(f"{omitted}\n")
    early = [row for row in table if row.measured is not None and row.measured < row.reach]
    return 1 if early else 0


def _write_plots(folder: Path, settings: Settings) -> int:
    """Writes the figures of docs/theory.md, but for the table's."""
    from theory.curves import Example, curves, recovery_errors
    from theory.plots import crossing_plot, position_plot, recovery_plot, save

    data = curves(Example.of(settings))
    ranges = {"float32": np.arange(2, 121, 2), "float64": np.arange(4, 801, 12)}
    figures = {
        "crossing": crossing_plot(data),
        "position": position_plot(data),
        "recovery": recovery_plot([recovery_errors(dtype, positions) for dtype, positions in ranges.items()]),
    }
    for name, figure in figures.items():
        save(figure, folder / f"theory_{name}.png")
        sys.stdout.write(f"{folder / f'theory_{name}.png'}\n")
    return 0


@contextmanager
def _progress(items: Any, unit: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a progress bar on stderr once they take more than two seconds; gone before an error is told."""
    with tqdm(items, total=total, unit=f" {unit}", file=sys.stderr, delay=2, leave=False) as bar:
        yield bar
