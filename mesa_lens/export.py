"""`mesa-lens export`: figures of a run, and the numbers in them, as files; needs no model."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from mesa.settings import ALL
from mesa_lens.arguments import JsonOptions, add_options
from mesa_lens.report import RuleOptions
from probe.options import (
    MAX_TOKENS,
    REQUIRED,
    InputPath,
    Lengths,
    Names,
    Number,
    OutputFolder,
    Place,
    RangeList,
    RangeText,
    Text,
    Tokens,
    Whole,
    Window,
    option,
)

if TYPE_CHECKING:
    import xarray as xr

    from probe.figures.export import Export
    from probe.store.reader import Run


def _pairs(text: Any) -> tuple[tuple[int, int], ...]:
    """Pairs (layer, dim) from e.g. '1:234,2:17'."""
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", f"{layer}:{dim}") for layer, _, dim in pairs):
        raise ValueError(f"{text!r} is no list of layer:dim; write e.g. 1:234,2:17")
    return tuple((int(layer), int(dim)) for layer, _, dim in pairs)


Pairs = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_pairs)]
Positive = Annotated[Number, Field(ge=0)]
_CROSSING = "what counts as a crossing"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What every kind of export takes."""

    format: Names = option(("png",), "html, png, svg, pdf, npz, csv; several with commas")
    out: OutputFolder | None = option(None, "folder for the files", unset="exports, beside the store")
    renderer: Text = option("matplotlib", "of png, svg, pdf: matplotlib or kaleido (Chrome)")
    methods: Names = option(("all",), "names, separated by commas, or all")


@dataclass(frozen=True, kw_only=True)
class StoreOptions(ExportOptions):
    """What the exports of a store take."""

    store: Place = option(
        REQUIRED,
        "the folder that `mesa-lens probe` wrote, or its store; or the URL of either",
        positional=True,
        metavar="STORE",
    )
    hook: Text | None = option(None, "e.g. resid_post", unset="the first captured")
    prompt: Text | None = option(None, "e.g. text-0", unset="the first captured")
    trained_length: Window | None = option(None, "trained window M in tokens", unset="the run's")


@dataclass(frozen=True)
class HeatmapOptions(StoreOptions):
    """Hidden states by layer, dim and position, methods side by side."""

    layers: RangeList = option(None, "e.g. 0-10, ends included", unset="all")
    dims: RangeList = option(None, "e.g. 0-639", unset="all")
    positions: RangeText | None = option(
        None, "e.g. 4000-5000,7000-8000, side by side", unset="around M and the last M"
    )
    minus: Text | None = option(None, "show differences to this method", metavar="METHOD")
    limit: Annotated[Number, Field(gt=0)] | None = option(
        None, "end of the colour scales", unset="each layer's 99% quantile"
    )
    pool: Tokens = option(300_000, "most values in a figure", metavar="VALUES")
    native: bool = option(False, "a png a method, one pixel a value; npz, csv unpooled")


@dataclass(frozen=True)
class DriftOptions(StoreOptions):
    """How far a layer's states are from what they did inside the window, by position."""

    layers: RangeText | None = option(None, "e.g. 3,7", unset="the first, and where drift begins")


@dataclass(frozen=True)
class CrossingOptions(StoreOptions):
    """Those of `probe.thresholds.CrossingRule`, which stays unloaded until the command runs."""

    smoothing: Tokens | None = option(None, "tokens a value is the mean of", unset="M/64", group=_CROSSING)
    sustained: Tokens | None = option(None, "positions a crossing must hold for", unset="M/16", group=_CROSSING)
    warm_up: Annotated[Whole, Field(ge=0, le=MAX_TOKENS)] | None = option(
        None, "first position of the in-window reference", unset="M/4", group=_CROSSING
    )
    margin: Positive | None = option(
        None, "spreads beyond the threshold that count as passed; 0: the paper's rule", unset="3", group=_CROSSING
    )
    minimum_score: Positive | None = option(None, "least score of a threshold dim", unset="6", group=_CROSSING)
    share: Annotated[Number, Field(gt=0, le=1)] | None = option(
        None, "of positions a threshold dim keeps its side", unset="0.95", group=_CROSSING
    )
    floor: Positive | None = option(
        None, "least in-window spread, of the layer's magnitude", unset="0.01", group=_CROSSING
    )


@dataclass(frozen=True)
class ThresholdOptions(CrossingOptions):
    """Values of (layer, dim) pairs over position, with threshold and crossings."""

    pairs: Pairs | None = option(None, "e.g. 1:234,2:17", unset="the best", metavar="LAYER:DIM,...")
    top: Tokens = option(4, "how many of the best threshold dims")


@dataclass(frozen=True)
class CurveOptions(CrossingOptions, RuleOptions):
    """Tail NLL and passkey accuracy by length, with predicted failures."""


@dataclass(frozen=True, kw_only=True)
class FolderOptions(ExportOptions):
    """What the exports that need no store take."""

    store: InputPath = option(
        REQUIRED, "the folder that the command of this name wrote to", positional=True, metavar="RUN"
    )
    lengths: Lengths | None = option(None, "in tokens, e.g. 512,1024", unset="all")


@dataclass(frozen=True)
class LocateOptions(FolderOptions):
    """What methods, patches and clamps in one place restore, by layer and head."""

    measures: Names | None = option(None, "nll, passkey", unset="all")


@dataclass(frozen=True)
class AnatomyOptions(FolderOptions):
    """Heads, unmet phases, logit lens and positional vectors under each method."""

    layers: RangeText | None = option(
        None, "e.g. 0-3, ends included", unset="all; of positional vectors the first, middle and last"
    )


KINDS = {
    "heatmap": (HeatmapOptions, "mesa-lens export heatmap runs/demo --minus origin --layers 1-3 --format svg,npz"),
    "drift": (DriftOptions, "mesa-lens export drift runs/demo --format svg,csv"),
    "thresholds": (ThresholdOptions, "mesa-lens export thresholds runs/demo --pairs 3:150 --format pdf,csv"),
    "curves": (CurveOptions, "mesa-lens export curves runs/demo --format svg,csv"),
    "locate": (LocateOptions, "mesa-lens export locate runs/demo --format svg,csv"),
    "anatomy": (AnatomyOptions, "mesa-lens export anatomy runs/demo --format svg,csv"),
}
"""The options of each kind, whose docstring says what it shows, and an example."""


def add(commands: Any) -> None:
    """Adds the subcommand, with one for each kind of export."""
    command = commands.add_parser(
        "export", example=KINDS["drift"][1], help="write a run's figures and numbers as files", description=__doc__
    )
    kinds = command.add_subparsers(title="kinds", required=True, metavar="KIND", dest="kind")
    for name, (declared, example) in KINDS.items():
        about = str(declared.__doc__)
        kind = kinds.add_parser(name, example=example, help=about, description=about)
        add_options(kind, declared, JsonOptions)
        kind.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks, exports, and prints the path of every file written."""
    from tqdm import tqdm

    from probe.figures.export import check_format
    from probe.figures.render import check_renderer
    from probe.files import write

    for form in args.format:
        check_format(args.kind, form, getattr(args, "native", False))
    check_renderer(args.renderer)
    beside, make = {"locate": _located, "anatomy": _anatomy}.get(args.kind, _stored)(args)
    into = beside / "exports" if args.out is None else args.out
    export = make()
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for form in tqdm(args.format, desc="writing files", unit="format"):
        for name, content in export.files(form, args.renderer):
            write(into / name, content)
            written.append(str(into / name))
    print(json.dumps(written, indent=1) if args.json else "\n".join(written))
    return 0


def _stored(args: argparse.Namespace) -> tuple[Path, Callable[[], Export]]:
    """The folder of a run's store, and what makes its export."""
    from probe.store.location import Remote
    from probe.store.reader import open_run

    opened = open_run(args.store)
    made = {"heatmap": _heatmap, "drift": _drift, "thresholds": _thresholds, "curves": _curves}[args.kind]
    beside = Path() if isinstance(opened.folder, Remote) else opened.folder
    return beside, lambda: made(args, opened)


def _located(args: argparse.Namespace) -> tuple[Path, Callable[[], Export]]:
    """The folder that `mesa-lens locate` wrote to, and what makes its export."""
    from probe.figures.mechanism_export import located_export
    from probe.store.results import read_located

    summary = read_located(args.store)
    methods, lengths = _methods_and_lengths(args)
    return args.store, lambda: located_export(summary, methods, lengths, args.measures)


def _anatomy(args: argparse.Namespace) -> tuple[Path, Callable[[], Export]]:
    """The folder that `mesa-lens anatomy` wrote to, and what makes its export."""
    from probe.figures.mechanism_export import anatomy_export
    from probe.options import parse_ranges
    from probe.store.results import read_anatomy

    stored = read_anatomy(args.store)
    layers = None
    if args.layers is not None:
        ranges = parse_ranges(args.layers)
        every = stored.summary["layers"]
        layers = every if ranges is None else [layer for start, stop in ranges for layer in range(start, stop)]
    methods, lengths = _methods_and_lengths(args)
    return args.store, lambda: anatomy_export(stored, methods, lengths, layers)


def _methods_and_lengths(args: argparse.Namespace) -> tuple[list[str] | None, list[int] | None]:
    """What --methods and --lengths name; None for all."""
    methods = None if ALL in args.methods else list(args.methods)
    return methods, None if args.lengths is None else list(args.lengths)


def _heatmap(args: argparse.Namespace, opened: Run) -> Export:
    import xarray as xr

    from probe.figures.export import heatmap_export
    from probe.figures.heatmap import default_regions, less, side_by_side
    from probe.figures.tables import check_rows
    from probe.options import parse_ranges
    from probe.store.select import captured_ranges, in_ranges

    hidden, trained = _hidden(args, opened), _trained_length(args, opened)
    for dim in ("layer", "dim"):
        hidden = in_ranges(hidden, dim, getattr(args, f"{dim}s"))
    position = hidden["position"].values
    if args.positions is None:
        bounds = default_regions(position, trained)
    else:
        bounds = parse_ranges(args.positions)
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

    layers = None if args.layers is None else parse_ranges(args.layers)
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

    pairs = list(args.pairs or ())
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
    if args.rule == "drift" and not _rule_changes(args):
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
    from probe.thresholds.search import CrossingRule, check_positions, search

    trained, reference = _trained_length(args, opened), reference_method(hidden["method"].values.tolist())
    rule = replace(CrossingRule.scaled(trained), **_rule_changes(args))
    check_positions(hidden["position"].values.tolist(), trained, rule)
    with tqdm(total=1, desc="finding thresholds", unit="search") as bar:
        found = search(hidden, trained, rule, reference)
        bar.update()
    return found


def _rule_changes(args: argparse.Namespace) -> dict[str, Any]:
    """What of the rule is stated."""
    from probe.thresholds.search import CrossingRule

    values = {field.name: getattr(args, field.name) for field in fields(CrossingRule)}
    return {name: value for name, value in values.items() if value is not None}


def _methods(args: argparse.Namespace, values: xr.DataArray | xr.Dataset) -> list[str]:
    from probe.store.select import check_labels

    stored = values["method"].values.tolist()
    check_labels(values, "method", [name for name in args.methods if name != ALL])
    others = [name for name in stored if name not in args.methods]
    return [method for name in args.methods for method in (others if name == ALL else [name])]


def _trained_length(args: argparse.Namespace, opened: Run) -> int:
    return opened.trained_length if args.trained_length is None else args.trained_length
