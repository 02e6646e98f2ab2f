"""Exports of a run: figures and their numbers, as the contents of files.

Each `*_export` takes labelled values and returns an `Export`; its `files` are bytes, for `write` or a download.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Refused
from probe.figures.figure_data import Figure, Heatmaps, Raster
from probe.figures.heatmap import CELLS, block_size, heatmap_grid, layer_limits, pool, pooling, row_name
from probe.figures.labels import csv_bytes, npz_bytes
from probe.figures.render import PICTURES, rendered
from probe.files import write
from probe.store.select import captured_ranges

SIDE_BY_SIDE = 4
"""Methods in one heatmap figure."""

NUMBERS: dict[str, Callable[[Any], bytes]] = {"npz": npz_bytes, "csv": csv_bytes}
"""Formats of numbers."""
_LONG = 60  # characters of labels in a file's name


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

    def save(self, folder: str | os.PathLike[str], forms: Iterable[str]) -> list[Path]:
        """Writes all files of these formats into the folder; returns their paths."""
        folder = Path(folder)
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


InNotebook = tuple[xr.Dataset | Mapping[str, xr.Dataset], str, Export, str | None]
"""What a notebook shows of a command's results: data, text, figures and the main one's name."""


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
    first, chosen = file_name("heatmap", panel, *minus), chosen or {}
    stem, where = first + chosen_name(chosen), chosen_name({**chosen, "methods": ()})
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


def grids(values: xr.DataArray, trained_length: int, limits: xr.DataArray) -> list[Heatmaps]:
    """`heatmap_grid` of the methods, four in a figure."""
    starts = range(0, values.sizes["method"], SIDE_BY_SIDE)
    groups = (values.isel({"method": slice(start, start + SIDE_BY_SIDE)}) for start in starts)
    return [heatmap_grid(group, trained_length, limits) for group in groups]


def chosen_name(chosen: Mapping[str, Sequence[Any]]) -> str:
    """What is added to a file's name for what was chosen: `methods`, and labels or half-open ranges by their name.

    A check sum for many of them.

    Examples:
        >>> chosen_name({"methods": ["rerope", "mesa"], "layers": [3], "dims": [(0, 16), (32, 33)]})
        '-rerope_mesa-layers3-dims0-15_32'
    """
    methods = _shortened("_".join(map(safe_name, chosen.get("methods", ()))))
    ranges = {name: _ranges(labels) for name, labels in chosen.items() if name != "methods"}
    return "".join([f"-{methods}" * bool(methods), *(f"-{name}{text}" for name, text in ranges.items())])


def _ranges(labels: Sequence[Any]) -> str:
    """Labels, or half-open ranges of them, as text for a file's name, such as '1-3_7'."""
    pairs = labels if isinstance(labels[0], tuple) else [(a, b + 1) for a, b in captured_ranges(np.unique(labels))]
    return _shortened("_".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in pairs))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}-{zlib.crc32(text.encode()):08x}"


def file_name(first: str, values: xr.DataArray, *more: str) -> str:
    """The name of a file without suffix: what it holds, the values' hook and prompt, and what else tells it apart."""
    prompt = [str(values["prompt"].item())] if "prompt" in values.coords else []
    return "-".join(safe_name(part) for part in (first, str(values.name), *prompt, *more))


def safe_name(label: str) -> str:
    """A label as part of a file name; a check sum tells apart labels of which other characters had to go."""
    name = re.sub(r"[^\w.-]", "-", label)
    return name if name == label else f"{name}-{zlib.crc32(label.encode()):08x}"
