"""Labelled numbers: files' contents with the coordinates next to the values, and the choice of rows by label."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from mesa.errors import Refused
from probe.figures.figure_data import Drawable
from probe.files import json_text

ROWS = 1_000_000
"""A CSV holds no more rows: about what a spreadsheet opens."""
VALUES = 500_000_000
"""An NPZ holds no more values: it is made in memory."""

_ORDER = "row prompt method minus layer dim dim_last region position position_last length window sample".split()
_WHOLE = ("position", "tokens", "index")  # units of numbers that are whole, or missing


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
        frame[name] = _whole(frame[name].to_numpy(float))
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
        elif types and types <= {int, float}:
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


def _whole(values: np.ndarray) -> pd.Series:
    """Whole numbers, blank where there is none; a column with a fraction in it stays as it is."""
    finite = np.isfinite(values)
    if (values[finite] % 1).any():
        return pd.Series(values)
    whole = pd.Series(np.where(finite, values, 0).astype(np.int64), dtype=object)
    return whole.where(finite, pd.Series(values, dtype=object))


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
