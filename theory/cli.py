"""The verification's command line: `python -m theory`, and `mesa-lens verify` over the same two functions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from theory.claim import SAFETY, Claim, summary
from theory.recovery import KINDS

if TYPE_CHECKING:
    from theory.claims import Settings


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
    claims = _all_of((check(settings) for check in checks.values()), "claims", len(checks))
    for name, reason in unsuited.items():
        sys.stderr.write(f"[not checked] {name}: {reason}\n")
    as_json = json.dumps([claim.as_dict() for claim in claims], indent=2) + "\n"
    as_text = "".join(f"{claim.line()}\n" for claim in claims) + _summary(claims) + "\n"
    sys.stdout.write(as_json if args.json else as_text)
    if path is not None:
        write_report(claims, settings, path)
        path.with_suffix(".json").write_text(as_json)
        sys.stderr.write(f"report: {path}, its claims: {path.with_suffix('.json')}\n")
    return 0 if all(claim.ok for claim in claims) else 1


def _summary(claims: Sequence[Claim]) -> str:
    return summary((claim.name, claim.verdict) for claim in claims)


def _all_of(items: Iterable[Any], unit: str, total: int) -> list[Any]:
    """All items, with a progress bar on stderr once they take more than two seconds; gone before any error."""
    with tqdm(items, total=total, unit=f" {unit}", file=sys.stderr, delay=2, leave=False) as bar:
        return list(bar)


def write_report(claims: Sequence[Claim], settings: Settings, path: Path) -> None:
    """Writes the HTML report, plotly.js included (about 5 MB). Raises OSError where `path` cannot be written."""
    import jinja2
    from markupsafe import Markup

    from theory.curves import Example, curves, head_output_by_dimension
    from theory.figures import attention_figure, dimension_figure, excess_figure, position_figure

    example = Example.of(settings)
    data, output = curves(example), head_output_by_dimension(example)
    drawn = [excess_figure(data), position_figure(data), attention_figure(data), dimension_figure(output)]
    figures = [
        Markup(figure.to_html(full_html=False, include_plotlyjs=place == 0)) for place, figure in enumerate(drawn)
    ]
    template = jinja2.Environment(autoescape=True).from_string(files("theory").joinpath("report.html").read_text())
    values = {"claims": claims, "summary": _summary(claims), "settings": settings, "example": example}
    path.write_text(template.render(**values, figures=figures, safety=SAFETY))


def _write_table(folder: Path, settings: Settings) -> int:
    """Writes theory_table.csv and theory_table.png."""
    from theory.curves import as_table, table_cases, table_row
    from theory.figures import save, table_plot

    cases, omitted = table_cases(settings)
    if not cases:
        raise ValueError(f"every T* exceeds the {settings.longest_run} tokens that are run; take a smaller N or M")
    table = as_table(_all_of((table_row(case, settings) for case in cases), "cases", len(cases)))
    table.to_csv(folder / "theory_table.csv", index=False, float_format="%.6g")
    save(table_plot(table), folder / "theory_table.png")
    sys.stdout.write(f"{folder / 'theory_table.csv'}\n{folder / 'theory_table.png'}\n")
    sys.stderr.write(omitted and f"{omitted}\n")
    return 1 if (table.measured < table.reach).fillna(False).any() else 0


def _write_plots(folder: Path, settings: Settings) -> int:
    """Writes the figures of docs/theory.md, but for the table's."""
    from theory.curves import Example, curves, recovery_errors
    from theory.figures import crossing_plot, position_plot, recovery_plot, save

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
