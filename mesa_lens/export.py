"""`mesa-lens export`: figures of a run, and the numbers in them, as files; needs no model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field
from tqdm import tqdm

from mesa.settings import ALL
from mesa_lens.arguments import JsonOptions, add_command
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
    parse_ranges,
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
TokensOrZero = Annotated[Whole, Field(ge=0, le=MAX_TOKENS)]
Share = Annotated[Number, Field(gt=0, le=1)]
_RULE = "what counts as a crossing"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What every kind of export takes."""

    format: Names = option(("png",), "html, png, svg, pdf, npz, csv; several with commas")
    out: OutputFolder | None = option(None, "folder for the files", unset="exports, beside the store")
    renderer: Text = option("matplotlib", "of png, svg, pdf: matplotlib or kaleido (Chrome)")
    methods: Names = option(("all",), "names, separated by commas, or all")

    def export(self) -> Export:
        """The figures and their numbers."""
        raise NotImplementedError


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

    @cached_property
    def run(self) -> Run:
        """The captured run."""
        from probe.store.reader import open_run

        return open_run(self.store)

    @property
    def folder(self) -> Path:
        """The run's folder; the working directory for a URL."""
        from probe.store.location import Remote

        return Path() if isinstance(self.run.folder, Remote) else self.run.folder

    @property
    def window(self) -> int:
        """M in tokens."""
        return self.run.trained_length if self.trained_length is None else self.trained_length

    def hidden(self) -> xr.DataArray:
        """The hidden states of --hook on --prompt."""
        from probe.store.select import hook_values, one_prompt

        return one_prompt(hook_values(self.run, self.hook), self.prompt)

    def drift(self) -> tuple[str, xr.Dataset]:
        """The prompt, --prompt or the first, and its `find_drift`."""
        from probe.store.select import hook_values, reference_method
        from probe.thresholds.analysis import drifts

        hidden = hook_values(self.run, self.hook)
        by_prompt = drifts(self.run, hidden, reference_method(hidden["method"].values.tolist()), self.window)
        name = next(iter(by_prompt)) if self.prompt is None else self.prompt
        if name not in by_prompt:
            raise ValueError(f"drift of prompt {name!r} is not judged; judged: {', '.join(by_prompt)}")
        return name, by_prompt[name]

    def method_order(self, values: xr.DataArray | xr.Dataset) -> list[str]:
        """The methods of --methods, where 'all' stands for all others. Raises ValueError for one not captured."""
        from probe.store.select import check_labels

        check_labels(values, "method", [name for name in self.methods if name != ALL])
        others = [name for name in values["method"].values.tolist() if name not in self.methods]
        return [method for name in self.methods for method in (others if name == ALL else [name])]


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

    def export(self) -> Export:
        """The panels of all methods, or their differences to one."""
        import xarray as xr

        from probe.figures.export import heatmap_export
        from probe.figures.heatmap import default_regions, less, side_by_side
        from probe.figures.tables import check_rows
        from probe.store.select import captured_ranges, in_ranges

        hidden = in_ranges(in_ranges(self.hidden(), "layer", self.layers), "dim", self.dims)
        position = hidden["position"].values
        if self.positions is None:
            bounds = default_regions(position, self.window)
        else:
            ranges = parse_ranges(self.positions)
            in_ranges(hidden, "position", ranges)
            bounds = ranges or [(first, last + 1) for first, last in captured_ranges(position)]
        panel = side_by_side(hidden, bounds, self.method_order(hidden), self.minus)
        if "csv" in self.format:
            check_rows(panel.size if self.native else min(panel.size, self.pool))
        panel = less(panel, self.minus)
        limits = None if self.limit is None else xr.full_like(panel["layer"], self.limit, dtype=float)
        return heatmap_export(panel, self.window, limits, self.pool, self.native)


@dataclass(frozen=True)
class DriftOptions(StoreOptions):
    """How far a layer's states are from what they did inside the window, by position."""

    layers: RangeText | None = option(None, "e.g. 3,7", unset="the first, and where drift begins")

    def export(self) -> Export:
        """The drift of one prompt."""
        from probe.figures.export import drift_export
        from probe.store.select import in_ranges

        ranges = None if self.layers is None else parse_ranges(self.layers)
        prompt, drift = self.drift()
        layers = None if ranges is None else in_ranges(drift["layer"], "layer", ranges).values.tolist()
        return drift_export(drift, prompt, layers, self.method_order(drift))


@dataclass(frozen=True)
class CrossingOptions(StoreOptions):
    """Those of `probe.thresholds.CrossingRule`, which stays unloaded until the command runs."""

    smoothing: Tokens | None = option(None, "tokens a value is the mean of", unset="M/64", group=_RULE)
    sustained: Tokens | None = option(None, "positions a crossing must hold for", unset="M/16", group=_RULE)
    warm_up: TokensOrZero | None = option(None, "first position of the in-window reference", unset="M/4", group=_RULE)
    margin: Positive | None = option(
        None, "spreads beyond the threshold that count as passed; 0: the paper's rule", unset="3", group=_RULE
    )
    minimum_score: Positive | None = option(None, "least score of a threshold dim", unset="6", group=_RULE)
    share: Share | None = option(None, "of positions a threshold dim keeps its side", unset="0.95", group=_RULE)
    floor: Positive | None = option(None, "least in-window spread, of the layer's magnitude", unset="0.01", group=_RULE)

    @property
    def rule_changes(self) -> dict[str, Any]:
        """The fields of the crossing rule that are stated."""
        from probe.thresholds.search import CrossingRule

        names = [field.name for field in fields(CrossingRule)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def crossings(self, hidden: xr.DataArray) -> xr.Dataset:
        """The `search` for thresholds and crossings in hidden states."""
        from probe.store.select import reference_method
        from probe.thresholds.search import CrossingRule, check_positions, search

        reference = reference_method(hidden["method"].values.tolist())
        rule = replace(CrossingRule.scaled(self.window), **self.rule_changes)
        check_positions(hidden["position"].values.tolist(), self.window, rule)
        with tqdm(total=1, desc="finding thresholds", unit="search") as bar:
            crossings = search(hidden, self.window, rule, reference)
            bar.update()
        return crossings


@dataclass(frozen=True)
class ThresholdOptions(CrossingOptions):
    """Values of (layer, dim) pairs over position, with threshold and crossings."""

    pairs: Pairs | None = option(None, "e.g. 1:234,2:17", unset="the best", metavar="LAYER:DIM,...")
    top: Tokens = option(4, "how many of the best threshold dims")

    def export(self) -> Export:
        """The pairs of --pairs, or the best."""
        from probe.figures.export import threshold_export
        from probe.store.select import check_pairs
        from probe.thresholds.predict import best

        hidden = self.hidden()
        methods = self.method_order(hidden)
        check_pairs(hidden, self.pairs or ())
        crossings = self.crossings(hidden)
        pairs = self.pairs or best(crossings, self.top)
        if not pairs:
            where = f"prompt {hidden['prompt'].item()!r} at M = {crossings.attrs['trained_length']}"
            raise ValueError(f"no observable dim on {where}; name some with --pairs, or lower --minimum-score")
        return threshold_export(hidden.sel({"method": methods}), crossings.sel({"method": methods}), pairs)


@dataclass(frozen=True)
class CurveOptions(CrossingOptions, RuleOptions):
    """Tail NLL and passkey accuracy by length, with predicted failures."""

    def export(self) -> Export:
        """The scores, with failures predicted from the states of one prompt."""
        from probe.figures.export import curves_export
        from probe.store.select import reference_method
        from probe.thresholds.analysis import TOP
        from probe.thresholds.calls import drift_calls
        from probe.thresholds.failure import measured_failure
        from probe.thresholds.predict import predict

        scores = self.run.evaluation
        if scores is None:
            raise ValueError(f"{self.run.path} holds no scores by length; probe with --samples above 0")
        measured = measured_failure(scores, self.window, reference_method(scores["method"].values.tolist()))
        methods = self.method_order(scores)
        if self.rule == "drift" and not self.rule_changes:
            predictions = drift_calls(self.drift()[1])
        else:
            predictions = predict(self.crossings(self.hidden()), TOP)
        return curves_export(scores.sel({"method": methods}), measured, self.window, predictions)


@dataclass(frozen=True, kw_only=True)
class FolderOptions(ExportOptions):
    """What the exports that need no store take."""

    store: InputPath = option(
        REQUIRED, "the folder that the command of this name wrote to", positional=True, metavar="RUN"
    )
    lengths: Lengths | None = option(None, "in tokens, e.g. 512,1024", unset="all")

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.store

    @property
    def selection(self) -> tuple[list[str] | None, list[int] | None]:
        """Methods and lengths; None for all."""
        methods = None if ALL in self.methods else list(self.methods)
        return methods, None if self.lengths is None else list(self.lengths)


@dataclass(frozen=True)
class LocateOptions(FolderOptions):
    """What methods and clamps in one place restore, by layer and head."""

    measures: Names | None = option(None, "nll, passkey", unset="all")

    def export(self) -> Export:
        """What `mesa-lens locate` measured."""
        from probe.figures.mechanism_export import located_export
        from probe.store.results import read_located

        return located_export(read_located(self.store), *self.selection, self.measures)


@dataclass(frozen=True)
class AnatomyOptions(FolderOptions):
    """What heads attend to under each method."""

    def export(self) -> Export:
        """What `mesa-lens anatomy` measured."""
        from probe.figures.mechanism_export import anatomy_export
        from probe.store.results import read_anatomy

        return anatomy_export(read_anatomy(self.store), *self.selection)


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
        "export",
        epilog=f"example: {KINDS['drift'][1]}",
        help="write a run's figures and numbers as files",
        description=__doc__,
    )
    kinds = command.add_subparsers(title="kinds", required=True, metavar="KIND")
    for name, (cls, example) in KINDS.items():
        about = str(cls.__doc__)
        add_command(
            kinds,
            name,
            partial(run, name),
            option_classes=(cls, JsonOptions),
            example=example,
            help=about,
            description=about,
        )


def run(kind: str, options: StoreOptions | FolderOptions, printing: JsonOptions) -> int:
    """Checks, exports, and prints the path of every file written."""
    from probe.figures.export import check_format
    from probe.figures.render import check_renderer
    from probe.files import write

    for form in options.format:
        check_format(kind, form, isinstance(options, HeatmapOptions) and options.native)
    check_renderer(options.renderer)
    export = options.export()
    folder = options.folder / "exports" if options.out is None else options.out
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for form in tqdm(options.format, desc="writing files", unit="format"):
        for name, content in export.files(form, options.renderer):
            write(folder / name, content)
            written.append(str(folder / name))
    print(json.dumps(written, indent=1) if printing.json else "\n".join(written))
    return 0
