"""`mesa-lens export`: figures of a run, and the numbers in them, as files; needs no model."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesa.settings import ALL
from mesa_lens.values import MOST_TOKENS, listed, number, output, path, place, tokens, whole, window

if TYPE_CHECKING:
    import xarray as xr

    from probe.figures.export import Export
    from probe.store.reader import Run
    from probe.thresholds.search import CrossingRule

_SAYS = {
    "heatmap": "hidden states by layer, dim and position, methods side by side",
    "drift": "how far a layer's states are from what they did inside the window, by position",
    "thresholds": "values of (layer, dim) pairs over position, with threshold and crossings",
    "curves": "tail NLL and passkey accuracy by length, with predicted failures",
    "locate": "what methods, patches and clamps in one place restore, by layer and head",
    "anatomy": "heads, unmet phases, logit lens and positional vectors under each method",
}
_EXAMPLES = {
    "heatmap": "mesa-lens export heatmap runs/demo --minus origin --layers 1-3 --format svg,npz",
    "drift": "mesa-lens export drift runs/demo --format svg,csv",
    "thresholds": "mesa-lens export thresholds runs/demo --pairs 3:150 --format pdf,csv",
    "curves": "mesa-lens export curves runs/demo --format svg,csv",
    "locate": "mesa-lens export locate runs/demo --format svg,csv",
    "anatomy": "mesa-lens export anatomy runs/demo --format svg,csv",
}
_BESIDE = ("locate", "anatomy")
"""Kinds that need no store."""
_RULE = {  # of probe.thresholds.CrossingRule, which stays unloaded until the command runs
    "smoothing": (tokens, "tokens a value is the mean of (None: M/64)"),
    "sustained": (tokens, "positions a crossing must hold for (None: M/16)"),
    "burn_in": (whole(0, MOST_TOKENS), "first position of the in-window reference (None: M/4)"),
    "margin": (number(0), "spreads beyond the threshold that count as passed; 0: the paper's rule (None: 3)"),
    "minimum_score": (number(0), "least score of an observable dim (None: 6)"),
    "share": (number(0, 1, above=True), "of positions an observable dim keeps its side (None: 0.95)"),
    "floor": (number(0), "least in-window spread, of the layer's magnitude (None: 0.01)"),
}


def add(commands: Any) -> None:
    """Adds the subcommand, with one of its own for each kind of export."""
    command = commands.add_parser(
        "export", example=_EXAMPLES["drift"], help="write a run's figures and numbers as files", description=__doc__
    )
    kinds = command.add_subparsers(title="kinds", required=True, metavar="KIND", dest="kind")
    made = {kind: _kind(kinds, kind) for kind in _SAYS}
    heatmap = made["heatmap"]
    heatmap.add_argument("--layers", default="all", help="e.g. 0-10, ends included")
    heatmap.add_argument("--dims", default="all", help="e.g. 0-639")
    heatmap.add_argument("--positions", help="e.g. 4000-5000,7000-8000, side by side (None: around M and the last M)")
    heatmap.add_argument("--minus", metavar="METHOD", help="show differences to this method")
    heatmap.add_argument(
        "--limit", type=number(0, above=True), help="end of the colour scales (None: each layer's 99%% quantile)"
    )
    heatmap.add_argument("--pool", type=tokens, default=300_000, metavar="CELLS", help="most values kept in a figure")
    heatmap.add_argument("--native", action="store_true", help="a png a method, one pixel a value; npz, csv unpooled")
    made["drift"].add_argument("--layers", help="e.g. 3,7 (None: the first, and where drift begins)")
    made["curves"].add_argument(
        "--rule", default="drift", choices=("drift", "paper"), help="what the marked failures are predicted by"
    )
    for kind in _BESIDE:
        made[kind].add_argument("--lengths", help="in tokens, e.g. 512,1024 (None: all)")
    made["anatomy"].add_argument(
        "--layers", help="e.g. 0-3, ends included (None: all; of positional vectors the first, middle and last)"
    )
    made["locate"].add_argument("--measures", help="nll, passkey (None: all)")
    thresholds = made["thresholds"]
    thresholds.add_argument("--pairs", metavar="LAYER:DIM,...", help="e.g. 1:234,2:17 (None: the best)")
    thresholds.add_argument("--top", type=tokens, default=4, help="how many of the best observable dims")
    for kind in ("thresholds", "curves"):
        rule = made[kind].add_argument_group("what counts as a crossing")
        for name, (of, says) in _RULE.items():
            rule.add_argument(f"--{name.replace('_', '-')}", type=of, metavar="NUMBER", help=says)


def _kind(kinds: Any, kind: str) -> Any:
    command = kinds.add_parser(
        kind,
        example=_EXAMPLES[kind],
        help=_SAYS[kind],
        description=_SAYS[kind],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    beside = kind in _BESIDE
    wrote = (
        f"the folder that `mesa-lens {kind}` wrote to"
        if beside
        else "the folder that `mesa-lens probe` wrote, or its store; or the URL of either"
    )
    command.add_argument("store", type=path if beside else place, metavar="RUN" if beside else "STORE", help=wrote)
    command.add_argument(
        "--format", type=listed, default="png", help="html, png, svg, pdf, npz, csv; several with commas"
    )
    command.add_argument("--out", type=output, help="folder for the files (None: exports, beside the store)")
    command.add_argument("--renderer", default="matplotlib", help="of png, svg, pdf: matplotlib or kaleido (Chrome)")
    command.add_argument("--methods", type=listed, default="all", help="names, separated by commas, or all")
    if not beside:
        command.add_argument("--hook", help="e.g. resid_post (None: the first captured)")
        command.add_argument("--prompt", help="e.g. text-0 (None: the first captured)")
        command.add_argument("--trained-length", type=window, help="trained window M in tokens (None: the run's)")
    command.add_argument("--json", action="store_true", help="print the paths as JSON")
    command.set_defaults(run=run)
    return command


def run(args: argparse.Namespace) -> int:
    """Checks, exports, and prints the path of every file written."""
    from tqdm import tqdm

    from probe.figures.export import check_format
    from probe.figures.render import check_renderer
    from probe.files import write

    forms = list(dict.fromkeys(form.strip() for form in args.format.split(",")))
    for form in forms:
        check_format(args.kind, form, getattr(args, "native", False))
    check_renderer(args.renderer)
    beside, make = {"locate": _located, "anatomy": _anatomy}.get(args.kind, _stored)(args)
    into = beside / "exports" if args.out is None else args.out
    export = make()
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for form in tqdm(forms, desc="writing files", unit="format"):
        for name, content in export.files(form, args.renderer):
            write(into / name, content)
            written.append(str(into / name))
    print(json.dumps(written, indent=1) if args.json else "\n".join(written))
    return 0


def _stored(args: argparse.Namespace) -> tuple[Path, Callable[[], Export]]:
    """The folder of a run's store, and what makes its export."""
    from probe.store.place import Remote
    from probe.store.reader import open_run

    opened = open_run(args.store)
    made = {"heatmap": _heatmap, "drift": _drift, "thresholds": _thresholds, "curves": _curves}[args.kind]
    beside = Path() if isinstance(opened.folder, Remote) else opened.folder
    return beside, lambda: made(args, opened)


def _located(args: argparse.Namespace) -> tuple[Path, Callable[[], Export]]:
    """The folder that `mesa-lens locate` wrote to, and what makes its export."""
    from probe.figures.mechanism_export import located_export
    from probe.store.located import read_located

    summary = read_located(args.store)
    measures = None if args.measures is None else _names(args.measures)
    methods, lengths = _methods_and_lengths(args)
    return args.store, lambda: located_export(summary, methods, lengths, measures)


def _anatomy(args: argparse.Namespace) -> tuple[Path, Callable[[], Export]]:
    """The folder that `mesa-lens anatomy` wrote to, and what makes its export."""
    from probe.figures.anatomy_export import anatomy_export
    from probe.options import parse_ranges
    from probe.store.anatomy import read_anatomy

    found = read_anatomy(args.store)
    layers = None
    if args.layers is not None:
        ranges = parse_ranges(args.layers, "--layers")
        whole = found.summary["layers"]
        layers = whole if ranges is None else [layer for start, stop in ranges for layer in range(start, stop)]
    methods, lengths = _methods_and_lengths(args)
    return args.store, lambda: anatomy_export(found, methods, lengths, layers)


def _methods_and_lengths(args: argparse.Namespace) -> tuple[list[str] | None, list[int] | None]:
    """What --methods and --lengths name; None for all."""
    lengths = None if args.lengths is None else _names(args.lengths)
    if lengths and not all(re.fullmatch("[0-9]{1,12}", length) for length in lengths):
        raise ValueError(f"--lengths {args.lengths!r} is no list of tokens; write e.g. 512,1024")
    methods = None if ALL in _names(args.methods) else _names(args.methods)
    return methods, None if lengths is None else [int(length) for length in lengths]


def _heatmap(args: argparse.Namespace, opened: Run) -> Export:
    import xarray as xr

    from probe.figures.export import heatmap_export
    from probe.figures.heatmap import default_regions, less, side_by_side
    from probe.figures.tables import check_rows
    from probe.options import parse_ranges
    from probe.store.positions import captured_ranges
    from probe.store.select import in_ranges

    hidden, trained = _hidden(args, opened), _trained_length(args, opened)
    for dim in ("layer", "dim"):
        hidden = in_ranges(hidden, dim, parse_ranges(getattr(args, f"{dim}s"), f"--{dim}s"))
    position = hidden["position"].values
    if args.positions is None:
        bounds = default_regions(position, trained)
    else:
        bounds = parse_ranges(args.positions, "--positions")
        in_ranges(hidden, "position", bounds)
        bounds = bounds or [(first, last + 1) for first, last in captured_ranges(position)]
    panel = side_by_side(hidden, bounds, _methods(args, hidden), args.minus)
    if "csv" in args.format:
        check_rows(panel.size if args.native else min(panel.size, args.pool))
    panel = less(panel, args.minus)
    limits = None if args.limit is None else xr.full_like(panel["layer"], args.limit, dtype=float)
    return heatmap_export(panel, trained, limits, args.pool, args.native)


def _drift(args: argparse.Namespace, opened: Run) -> Export:
    from probe.figures.export import drift_export
    from probe.options import parse_ranges
    from probe.store.select import in_ranges

    layers = None if args.layers is None else parse_ranges(args.layers, "--layers")
    name, found = _drifted(args, opened)
    shown = None if layers is None else in_ranges(found["layer"], "layer", layers).values.tolist()
    return drift_export(found, name, shown, _methods(args, found))


def _drifted(args: argparse.Namespace, opened: Run) -> tuple[str, xr.Dataset]:
    """The prompt asked for, or the first, and its `find_drift`."""
    from probe.store.select import hook_values, reference_method
    from probe.thresholds.analysis import drifts

    hidden = hook_values(opened, args.hook)
    reference = reference_method(hidden["method"].values.tolist())
    found = drifts(opened, hidden, reference, _trained_length(args, opened))
    name = next(iter(found)) if args.prompt is None else args.prompt
    if name not in found:
        raise ValueError(f"drift of prompt {name!r} is not judged; judged: {', '.join(found)}")
    return name, found[name]


def _thresholds(args: argparse.Namespace, opened: Run) -> Export:
    from probe.figures.export import threshold_export
    from probe.store.select import check_pairs
    from probe.thresholds.predict import best

    pairs = [] if args.pairs is None else _pairs(args.pairs)
    hidden = _hidden(args, opened)
    methods = _methods(args, hidden)
    check_pairs(hidden, pairs)
    found = _searched(args, opened, hidden)
    pairs = pairs or best(found, args.top)
    if not pairs:
        where = f"prompt {hidden['prompt'].item()!r} at M = {found.attrs['trained_length']}"
        raise ValueError(f"no observable dim on {where}; name some with --pairs, or lower --minimum-score")
    return threshold_export(hidden.sel({"method": methods}), found.sel({"method": methods}), pairs)


def _curves(args: argparse.Namespace, opened: Run) -> Export:
    from probe.figures.export import curves_export
    from probe.store.select import reference_method
    from probe.thresholds.analysis import TOP
    from probe.thresholds.calls import drift_calls
    from probe.thresholds.failure import measured_failure
    from probe.thresholds.predict import predict

    scores, trained = opened.evaluation, _trained_length(args, opened)
    if scores is None:
        raise ValueError(f"{opened.path} holds no scores by length; probe with --samples above 0")
    measured = measured_failure(scores, trained, reference_method(scores["method"].values.tolist()))
    methods = _methods(args, scores)
    if args.rule == "drift" and all(getattr(args, name) is None for name in _RULE):
        predictions = drift_calls(_drifted(args, opened)[1])
    else:
        predictions = predict(_searched(args, opened, _hidden(args, opened)), TOP)
    return curves_export(scores.sel({"method": methods}), measured, trained, predictions)


def _hidden(args: argparse.Namespace, opened: Run) -> xr.DataArray:
    from probe.store.select import hook_values, one_prompt

    return one_prompt(hook_values(opened, args.hook), args.prompt)


def _searched(args: argparse.Namespace, opened: Run, hidden: xr.DataArray) -> xr.Dataset:
    from tqdm import tqdm

    from probe.store.select import reference_method
    from probe.thresholds.search import check_positions, search

    trained, reference = _trained_length(args, opened), reference_method(hidden["method"].values.tolist())
    rule = _rule(args, trained)
    check_positions(hidden["position"].values.tolist(), trained, rule)
    with tqdm(total=1, desc="finding thresholds", unit="search") as bar:
        found = search(hidden, trained, rule, reference)
        bar.update()
    return found


def _rule(args: argparse.Namespace, trained_length: int) -> CrossingRule:
    from probe.thresholds.search import CrossingRule

    given = {each.name: getattr(args, each.name) for each in fields(CrossingRule)}
    changed = {name: value for name, value in given.items() if value is not None}
    return replace(CrossingRule.scaled(trained_length), **changed)


def _methods(args: argparse.Namespace, values: xr.DataArray | xr.Dataset) -> list[str]:
    from probe.store.select import check_labels

    named, there = _names(args.methods), values["method"].values.tolist()
    check_labels(values, "method", [name for name in named if name != ALL])
    others = [name for name in there if name not in named]
    return [each for name in named for each in (others if name == ALL else [name])]


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _trained_length(args: argparse.Namespace, opened: Run) -> int:
    return opened.trained_length if args.trained_length is None else args.trained_length


def _pairs(text: str) -> list[tuple[int, int]]:
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", f"{layer}:{dim}") for layer, _, dim in pairs):
        raise ValueError(f"--pairs {text!r} is no list of layer:dim; write e.g. 1:234,2:17")
    return [(int(layer), int(dim)) for layer, _, dim in pairs]
