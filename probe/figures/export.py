"""Exports of a run: figures and their numbers, as the contents of files.

Each `*_export` takes labelled values and returns an `Export`; its `files` are bytes, for `write` or a download.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Refused
from probe.figures.curves import curves_chart
from probe.figures.drift import drift_chart, drift_map
from probe.figures.figure_data import Figure, Heatmaps, Raster
from probe.figures.heatmap import CELLS, block_size, heatmap_grid, layer_limits, pool, pooling, row_name
from probe.figures.render import PICTURES, rendered
from probe.figures.tables import csv_bytes, npz_bytes
from probe.figures.thresholds import threshold_chart
from probe.files import write
from probe.store.select import captured_ranges, check_labels, check_pairs
from probe.thresholds.drift_onset import DriftOnset
from probe.thresholds.failure import MeasuredFailures, PredictedFailure
from probe.thresholds.result import NotJudged
from probe.thresholds.search import smooth
from probe.thresholds.threshold_onset import ThresholdOnset

SIDE_BY_SIDE = 4
"""Methods in one heatmap figure."""

NUMBERS: dict[str, Callable[[Any], bytes]] = {"npz": npz_bytes, "csv": csv_bytes}
"""Formats of numbers."""
_LONG = 60  # characters of labels in a file's name
_JUDGED = ("threshold", "limit", "side", "spread", "score", "threshold_dim", "rank", "crossing", "inside")


@dataclass(frozen=True)
class Export:
    """Figures and their numbers, under the names of their files, without suffix."""

    figures: Mapping[str, Figure]
    numbers: Mapping[str, xr.Dataset]

    def files(self, form: str) -> Iterator[tuple[str, bytes]]:
        """Names and contents of the files in format `form`; raises what `rendered` and `csv_bytes` raise."""
        check_format(form)
        contents: Mapping[str, Any] = self.figures if form in PICTURES else self.numbers
        for name, content in contents.items():
            yield f"{name}.{form}", NUMBERS[form](content) if form in NUMBERS else rendered(content, form)

    def save(self, folder: Path, forms: Iterable[str]) -> list[Path]:
        """Writes all files of these formats into the folder; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, content in (file for form in forms for file in self.files(form)):
            paths.append(folder / name)
            write(paths[-1], content)
        return paths


def formats(native: bool = False) -> tuple[str, ...]:
    """The formats of every export. native: of heatmaps at one pixel a cell."""
    return ("png", *NUMBERS) if native else (*PICTURES, *NUMBERS)


def check_format(form: str, native: bool = False) -> None:
    """Raises Refused for a format that `formats` does not have."""
    if form not in (known := formats(native)):
        kind = "a native heatmap" if native else "an export"
        raise Refused(f"{kind} has no format {form!r}; choose from {', '.join(known)}")


def heatmap_export(
    panel: xr.DataArray,
    trained_length: int,
    limits: xr.DataArray | None = None,
    cells: int | None = CELLS,
    drawn: xr.DataArray | None = None,
    chosen: Mapping[str, Sequence[Any]] | None = None,
) -> Export:
    """Heatmaps of one prompt, and their numbers, as files.

    Args:
        panel: Hidden states (method, layer, dim, position) from `regions`, or their difference.
        trained_length: M, tokens.
        limits: Ends of the layers' colour scales. Default: from the panel.
        cells: The most values of a picture, four methods side by side; default 300,000. None: a picture a method, one
            pixel a value.
        drawn: The panel pooled for the pictures, where it is known. Default: computed.
        chosen: What was chosen of `methods`, `layers`, `dims` and `positions` (start, stop), for the files' names.
            Default: everything.

    Returns:
        An `Export`; its `files(format)` are (name, bytes), format png, svg, pdf, html, npz or csv.

    Raises:
        Refused: Values are not finite.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> panel = probe.regions(probe.hook_values(run).sel(prompt="repeated"), [(206, 306)])
        >>> [name for name, content in probe.heatmap_export(panel, run.trained_length).files("npz")]
        ['heatmap-resid_post-repeated.npz']
    """
    checked = panel if drawn is None else drawn  # of a panel that is read when used the store checks the values
    if count := int(np.count_nonzero(~np.isfinite(checked.values))):
        raise Refused(f"{count} of {checked.size} values of {panel.name} are not finite; capture them again")
    minus = ["minus", str(panel["minus"].item())] if "minus" in panel.coords else []
    first, chosen = _file_name("heatmap", panel, *minus), dict(chosen or {})
    methods = [safe_name(method) for method in chosen.pop("methods", ())]
    where = "".join(f"-{name}{_ranges(labels)}" for name, labels in chosen.items())
    stem = "-".join([first, *(["_".join(methods)] if methods else [])]) + where
    limits = layer_limits(panel) if limits is None else limits
    figures: dict[str, Figure] = {}
    if cells is None:
        for method in panel["method"].values.tolist():
            figures[f"{first}-{safe_name(method)}{where}"] = Raster(panel.sel({"method": method}), limits)
    else:
        maps = grids(pool(checked, cells), trained_length, limits)
        figures |= {stem if len(maps) == 1 else f"{stem}-{number}": grid for number, grid in enumerate(maps, 1)}
    return Export(figures, {f"{stem}{pooled_name(panel)}": labelled_numbers(panel, trained_length)})


def pooled_name(panel: xr.DataArray) -> str:
    """What is added to the name of a file with a pooled panel's numbers; empty where nothing is pooled."""
    return f"-pooled-{block_size(panel, 'dim')}x{block_size(panel, 'position')}" if pooling(panel) else ""


def labelled_numbers(panel: xr.DataArray, trained_length: int) -> xr.Dataset:
    """A panel for a file; attribute `pooled`: what a value is, where it is not that of its labels alone."""
    row = row_name(panel)
    attrs = {"pooled": f"{pooling(panel)}, with its sign; {row} and position are the first"} if pooling(panel) else {}
    own = {name: name.replace("dim", row) for name in ("dim", "dim_last") if name in panel.coords}
    numbers = panel.to_dataset(name=str(panel.name)).rename(own)
    return numbers.assign_attrs(panel.attrs, trained_length=trained_length, **attrs)


def threshold_export(hidden: xr.DataArray, search: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> Export:
    """Charts of dims with their thresholds, and their numbers, as files.

    Args:
        hidden: One prompt's hidden states (method, layer, position, dim).
        search: One prompt's `search` of them.
        pairs: The (layer, dim) pairs.

    Returns:
        An `Export`: a chart a pair; table `thresholds` by pair and method, and table `values` by pair, method and
        position: the value, and the mean over the last `smoothing` positions.

    Raises:
        Refused: No pair is named, or one was not captured.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> hidden = probe.hook_values(run).sel(prompt="repeated")
        >>> crossings = probe.search(hidden, 256, probe.CrossingRule.scaled(256))
        >>> list(probe.threshold_export(hidden, crossings, [(2, 8)]).figures)
        ['threshold-resid_post-repeated-layer2-dim8']
    """
    pairs = list(dict.fromkeys(pairs))
    if not pairs:
        raise Refused("name a (layer, dim) pair to export thresholds of")
    check_pairs(hidden, pairs)
    stem = _file_name("threshold", hidden)
    figures = {f"{stem}-layer{layer}-dim{dim}": threshold_chart(hidden, search, layer, dim) for layer, dim in pairs}
    layers, dims = (xr.DataArray(list(labels), dims="row") for labels in zip(*pairs, strict=True))
    judged = search[list(_JUDGED)].sel(layer=layers, dim=dims)
    parts = [hidden.sel(layer=layer, dim=dim).load() for layer, dim in pairs]
    values = xr.concat(parts, dim="row", coords="different", compat="equals").rename("value")
    smoothed = smooth(values, search.attrs["smoothing"])
    attrs = {**hidden.attrs, **search.attrs}
    series = xr.Dataset({"value": values, "smoothed": smoothed}).assign_attrs(attrs)
    return Export(figures, {_file_name("thresholds", hidden): judged.assign_attrs(attrs), f"{stem}-values": series})


def drift_export(
    drift: xr.Dataset, prompt: str, layers: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Export:
    """The charts of drift, and their numbers, as files.

    Args:
        drift: One prompt's `find_drift`.
        prompt: The prompt's name, for file names.
        layers: Those in the chart and the tables. Default: where drift begins in the chart, all in the tables.
        methods: Those in the chart and the tables. Default: all.

    Returns:
        An `Export`: a chart and a map; table `levels` by method, layer and run (mean square distance in ranges), and
        table `dims` by method, layer and dim (level, range, share of the drift).

    Raises:
        Refused: A layer or method is not in `drift`.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> drift = probe.find_drift(probe.hook_values(run).sel(prompt="repeated"), run.trained_length)
        >>> [name for name, content in probe.drift_export(drift, "repeated").files("csv")]
        ['drift-resid_post-repeated-levels.csv', 'drift-resid_post-repeated-dims.csv']
    """
    check_labels(drift, "layer", layers or ())
    check_labels(drift, "method", methods or ())
    chart = drift_chart(drift, None if layers is None else list(layers), prompt, methods)
    drift = drift if methods is None else drift.sel({"method": list(methods)})
    by_layer = ["limit", "first", "low", "high", "before", "false_alarms"]
    stem = f"drift-{drift.attrs['hook']}-{safe_name(prompt)}"
    numbers = {"levels": ["level", "warm_up", *by_layer], "dims": ["centre", "range", "share"]}
    figures: dict[str, Figure] = {stem: chart, f"{stem}-map": drift_map(drift, prompt)}
    tables = drift if layers is None else drift.sel(layer=list(layers))
    return Export(figures, {f"{stem}-{name}": tables[names] for name, names in numbers.items()})


def curves_export(
    evaluation: xr.Dataset,
    measured: MeasuredFailures,
    trained_length: int,
    onsets: Sequence[DriftOnset | ThresholdOnset | NotJudged] = (),
    predicted: Mapping[str, PredictedFailure] | None = None,
) -> Export:
    """The chart of scores by length, and its numbers, as files.

    Args:
        evaluation: Scores, as `Run.evaluation`.
        measured: What `measured_failure` returns for them.
        trained_length: M, tokens.
        onsets: Onsets in hidden states, of one rule, for the table. Default: none.
        predicted: Predicted failures by method, drawn as ticks. Default: none.

    Returns:
        An `Export`: figure `curves`; tables of every sample of each score, and `failures`.

    Raises:
        Refused: A score holds no number.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> measured = probe.measured_failure(run.evaluation, run.trained_length)
        >>> export = probe.curves_export(run.evaluation, measured, run.trained_length)
        >>> [name for name, content in export.files("csv")]
        ['curves-tail_nll.csv', 'curves-passkey.csv', 'failures.csv']
    """
    names = [name for name in ("tail_nll", "passkey") if name in evaluation]
    for name in names:
        if not np.isfinite(evaluation[name]).any():
            raise Refused(f"{name} holds no number; measure again: `mesa-lens probe --overwrite`")
    chart = curves_chart(evaluation, measured, trained_length, predicted)
    attrs = {**evaluation.attrs, "trained_length": trained_length}
    scores = {f"curves-{name}": evaluation[[name]].assign_attrs(attrs) for name in names}
    failures = _failures(evaluation["method"].values.tolist(), measured, onsets, predicted or {})
    return Export({"curves": chart}, {**scores, "failures": failures.assign_attrs(attrs, rule=measured.rule)})


def grids(values: xr.DataArray, trained_length: int, limits: xr.DataArray) -> list[Heatmaps]:
    """`heatmap_grid` of the methods, four in a figure."""
    starts = range(0, values.sizes["method"], SIDE_BY_SIDE)
    groups = (values.isel({"method": slice(start, start + SIDE_BY_SIDE)}) for start in starts)
    return [heatmap_grid(group, trained_length, limits) for group in groups]


def _failures(
    methods: list[str],
    measured: MeasuredFailures,
    onsets: Sequence[DriftOnset | ThresholdOnset | NotJudged],
    predicted: Mapping[str, PredictedFailure],
) -> xr.Dataset:
    """Measured and predicted failure lengths and onsets by method, with the interval of the measured; NaN for none."""
    rows = {failure.method: failure for failure in measured.failures}
    by_method = {onset.method: onset for onset in onsets}
    kind = "threshold_onset" if any(isinstance(onset, ThresholdOnset) for onset in onsets) else "drift_onset"
    fields = {"": "length", "_after": "after", "_high": "high", "_by_nll": "by_nll", "_by_passkey": "by_passkey"}
    columns = {
        kind: [getattr(by_method.get(method), "length", None) for method in methods],
        "predicted_failure": [of_method.length if (of_method := predicted.get(method)) else None for method in methods],
    }
    columns |= {f"measured{name}": [getattr(rows[method], at) for method in methods] for name, at in fields.items()}
    tokens = {name: ("method", np.array(column, dtype=float), {"units": "tokens"}) for name, column in columns.items()}
    texts = {
        f"{kind}_text": ("method", [str(by_method.get(method, "not judged")) for method in methods]),
        "predicted_failure_text": ("method", [str(predicted.get(method, "–")) for method in methods]),
        "measured_text": ("method", [str(rows[method]) for method in methods]),
    }
    return xr.Dataset({**tokens, **texts}, coords={"method": methods})


def _ranges(labels: Sequence[Any]) -> str:
    """Labels, or half-open ranges of them, as text for a file's name, such as '1-3_7'; a check sum for many of them."""
    pairs = labels if isinstance(labels[0], tuple) else [(a, b + 1) for a, b in captured_ranges(np.unique(labels))]
    text = "_".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in pairs)
    return text if len(text) <= _LONG else f"{text[:_LONG]}-{zlib.crc32(text.encode()):08x}"


def _file_name(first: str, values: xr.DataArray, *more: str) -> str:
    prompt = [str(values["prompt"].item())] if "prompt" in values.coords else []
    return "-".join(safe_name(part) for part in (first, str(values.name), *prompt, *more))


def safe_name(label: str) -> str:
    """A label as part of a file name; a check sum tells apart labels of which other characters had to go."""
    name = re.sub(r"[^\w.-]", "-", label)
    return name if name == label else f"{name}-{zlib.crc32(label.encode()):08x}"
