"""Figures and their numbers as the contents of files: labelled tables (npz, csv), pictures and HTML that opens offline.

Each `*_export` takes labelled values and returns an `Export`; its `files` are bytes, for `write` or a download.
"""

import html
import io
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from mesa.errors import Refused
from probe.figures.figure_data import Chart, Drawable, Figure, Heatmaps, Raster
from probe.figures.heatmap import CELLS, block_size, heatmap_grid, layer_limits, pool, pooling, row_name
from probe.figures.interactive import ROOM_BELOW, draw
from probe.figures.static import picture, write_png
from probe.files import GENERATOR, json_text, write
from probe.store.reader import captured_ranges
from probe.store.result_file import Interval

ROWS = 1_000_000
"""A CSV holds no more rows: about what a spreadsheet opens."""
VALUES = 500_000_000
"""An NPZ holds no more values: it is made in memory."""

_ORDER = "row prompt method minus layer dim dim_last region position position_last length window sample".split()
_WHOLE = ("position", "tokens", "index")  # units of integers, or missing


def check_size(form: str, numbers: xr.Dataset) -> None:
    """Raises Refused for a CSV of more than `ROWS` rows, and for an NPZ of more than `VALUES` values."""
    rows, values = math.prod(numbers.sizes.values()), sum(array.size for array in numbers.data_vars.values())
    if form == "csv" and rows > ROWS:
        raise Refused(
            f"csv: {rows} rows are more than {ROWS}; choose fewer layers, dims or positions, pool them, or take npz"
        )
    if form == "npz" and values > VALUES:
        raise Refused(f"npz: {values} values are more than {VALUES}; choose fewer layers or dims, or pool them")


def csv_bytes(numbers: xr.Dataset) -> bytes:
    """A row for each combination of the labels, a column for each label and variable; blank where there is no value.

    Nothing is rounded: a number is read back as the same float64. `inf`: an interval's open end. Positions and lengths
    have no decimal point. Dims without labels are numbered; a dim named `row` is left out. Raises Refused for too many
    rows.
    """
    check_size("csv", numbers)
    frame = numbers.to_dataframe(sorted(map(str, numbers.dims), key=_column_order)).reset_index()
    for name in (name for name, values in numbers.items() if values.attrs.get("units") in _WHOLE):
        frame[name] = _integer(frame[name].to_numpy(float))
    for name in frame.select_dtypes(["float16", "float32"]):
        frame[name] = frame[name].astype(float)
    variables = [str(name) for name in numbers.data_vars]
    labels = sorted((name for name in frame.columns if name not in (*variables, "row")), key=_column_order)
    return frame[[*labels, *variables]].to_csv(index=False, lineterminator="\n").encode()


def row_table(rows: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Columns over `row`, as texts, booleans or numbers; blank or NaN for missing ones; integers are an index.

    A column without any value is left out.
    """
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        types = {type(value) for value in values} - {type(None)}
        if not types:
            continue
        if types == {bool} and None not in values:
            columns[name] = ("row", [bool(value) for value in values])
        elif types <= {int, float}:
            numbers = [math.nan if value is None else float(value) for value in values]
            columns[name] = ("row", numbers, {"units": "index"} if types == {int} else {})
        else:
            columns[name] = ("row", ["" if value is None else str(value) for value in values])
    return xr.Dataset(columns)


def npz_bytes(numbers: xr.Dataset) -> bytes:
    """Variables and coordinates under their names, for `numpy.load`; no pickles.

    `about` is JSON: `dims` and `units` of the variables, and `attrs` of the dataset. Raises Refused for too many
    values.
    """
    check_size("npz", numbers)
    about = {
        "dims": {str(name): values.dims for name, values in numbers.items()},
        "units": {str(name): values.attrs["units"] for name, values in numbers.items() if "units" in values.attrs},
        "attrs": numbers.attrs,
    }
    arrays = {str(name): _plain(values.values) for name, values in numbers.variables.items()}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=json_text(about, None, sort_keys=True, default=str), **arrays)
    return file.getvalue()


def _column_order(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _integer(values: np.ndarray) -> pd.Series:
    """Integers, blank where there is none; a column with a fraction in it stays as it is."""
    finite = np.isfinite(values)
    if (values[finite] % 1).any():
        return pd.Series(values)
    integers = pd.Series(np.where(finite, values, 0).astype(np.int64), dtype=object)
    return integers.where(finite, pd.Series(values, dtype=object))


def _plain(values: np.ndarray) -> np.ndarray:
    """Texts as numpy's own, which need no pickle."""
    return values.astype(str) if values.dtype.kind in "OT" else values


Labels = Mapping[str, Sequence[Any]]
Figures = dict[str, Drawable]
Row = dict[str, Any]


def present(figures: Mapping[str, Drawable | None]) -> Figures:
    """The figures that there are."""
    return {name: figure for name, figure in figures.items() if figure is not None}


def labels_text(chosen: Labels) -> str:
    """The labels in words, for an error."""
    return "; ".join(f"{name} {', '.join(map(str, values)) or 'any'}" for name, values in chosen.items())


def chosen_labels(requested: Mapping[str, Sequence[Any] | None], known: Labels, default: Labels, verb: str) -> Labels:
    """The labels requested, or the default ones; Refused for one that is not known."""
    for name, values in requested.items():
        for value in values or ():
            if value not in known[name]:
                raise Refused(f"{name} {value!r} was not {verb}; known: {', '.join(map(str, known[name]))}")
    return {name: list(values or default[name]) for name, values in requested.items()}


def as_row(values: Mapping[str, Any]) -> Row:
    """A row with a column for each text and number, and for the ends of intervals _low and _high; no lists."""
    row: Row = {}
    for name, value in values.items():
        if isinstance(value, Interval):
            row |= zip((name, f"{name}_low", f"{name}_high"), value, strict=True)
        elif not isinstance(value, list | dict):
            row[name] = value
    return row


def chosen_rows(
    tables: Mapping[str, Sequence[Row]], chosen: Labels, *, model: str, trained_length: int
) -> dict[str, xr.Dataset]:
    """The tables' rows with the chosen labels, without empty tables; a row without a label has all of them."""
    attrs = {"model": model, "trained_length": trained_length}
    kept = {
        name: [row for row in rows if all(row.get(label, values[0]) in values for label, values in chosen.items())]
        for name, rows in tables.items()
    }
    return {name: row_table(rows).assign_attrs(attrs) for name, rows in kept.items() if rows}


PICTURES = ("html", "png", "svg", "pdf")
PANEL_WIDTH = 330
"""Pixels that a panel of a chart needs."""
_HEAD = 40  # pixels of the title

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8">{generator}<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
{css}body {{ font: 16px/1.5 Helvetica, Arial, sans-serif; color: var(--text); background: var(--page); }}
</style></head>
<body>
{figure}
<script>
{js}</script>
</body>
</html>
"""


def rendered(figure: Figure, form: str) -> bytes:
    """The content of the figure's html, png, svg or pdf file; the same bytes for the same figure.

    Raises Refused for an unknown format.
    """
    if form not in PICTURES:
        raise Refused(f"a figure has no format {form!r}; known: {', '.join(PICTURES)}")
    if not isinstance(figure, Raster):
        return page(figure) if form == "html" else picture(figure, form)
    if form != "png":
        raise Refused(f"one pixel a cell is png, not {form}; leave --native out")
    file = io.BytesIO()
    write_png(figure.values, file, figure.limits)
    return file.getvalue()


def asset(name: str) -> str:
    """A style sheet or a script of pages, from this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def page(figure: Drawable, plotly_js: bool | str = True) -> bytes:
    """The figure's HTML page, with plotly.js in it, or, for "directory", next to it as plotly.min.js."""
    plot = html_embed(figure, plotly_js, "figure")
    css, js = (asset(f"page.{kind}") + asset(f"table.{kind}") for kind in ("css", "js"))
    return _PAGE.format(generator=GENERATOR, title=html.escape(figure.title), figure=plot, css=css, js=js).encode()


def html_embed(figure: Drawable, plotly_js: bool | str = False, div_id: str | None = None) -> str:
    """The figure's HTML with its title as a caption; plotly_js: as in `to_html`, False for a page that has it."""
    config = {"responsive": True, "displaylogo": False}
    options = {"full_html": False, "include_plotlyjs": plotly_js, "config": config, "div_id": div_id}
    inner, width = "", PANEL_WIDTH if isinstance(figure, Chart) else least_width(figure)
    for number, drawn in enumerate(plots(figure)):
        plot = drawn.to_html(validate=False, **options)
        inner += f'<div style="flex: 1 1 {PANEL_WIDTH}px; min-width: {width}px">{plot}</div>'
        options |= {"include_plotlyjs": False, "div_id": div_id and f"{div_id}-{number + 2}"}
    title = html.escape(figure.title, quote=False)
    caption = f'<figcaption style="position: sticky; left: 0">{title}</figcaption>'
    inner = f'<div style="display: flex; flex-wrap: wrap; gap: 0 24px">{inner}</div>'
    seen = f'<p style="margin: 0">{html.escape(figure.seen, quote=False)}</p>' if figure.seen else ""
    figure_style, kind = "margin: 1em 0 0; overflow-x: auto", "chart" if isinstance(figure, Chart) else "maps"
    basis = f"{least_width(figure)}px" if isinstance(figure, Chart) else "100%"  # charts stand next to each other
    drawn = f'<figure style="{figure_style}">{caption}{inner}</figure>{seen}'
    return f'<div class="{kind}" style="flex: 1 1 {basis}">{drawn}</div>'


def least_width(figure: Drawable) -> int:
    """Pixels below which parts of the figure would overlap: a narrower page scrolls it sideways."""
    if isinstance(figure, Chart):
        return PANEL_WIDTH * (1 if figure.crosshair else len(figure.panels))
    is_plain = len(figure.columns) == 1 and all(cell.numbers is None for row in figure.cells for cell in row)
    return PANEL_WIDTH if is_plain else 110 + int(70 * figure.width)


def plots(figure: Drawable) -> list[go.Figure]:
    """A plotly figure a panel, so that a phone has them one below the other, with axes at the same height; or one,
    of heatmaps and of panels with a crosshair.

    Without the title, and the room for it: on pages that is text that wraps. What a legend takes on a phone, plotly
    takes from the plot of a single panel, which is taller where the page is wider.
    """
    parts: list[Drawable] = [figure]
    if isinstance(figure, Chart) and not figure.crosshair:
        parts = [replace(figure, panels=(panel,)) for panel in figure.panels]
    drawn: list[Any] = [draw(part) for part in parts]
    top, below = (max(one.layout.margin[side] for one in drawn) for side in ("t", "b"))
    for one in drawn:
        margin = one.layout.margin
        height = one.layout.height + top - margin.t + below - margin.b - _HEAD
        margins = {"t": top - _HEAD, "b": ROOM_BELOW if len(parts) == 1 and isinstance(figure, Chart) else below}
        one.update_layout(height=height, margin=margins | {"pad": 0}, title_text=None)
    return drawn


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
