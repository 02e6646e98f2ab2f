"""Labelled numbers as files' contents: tidy CSV, and NPZ with the coordinates beside the values."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from mesa.errors import Refused
from probe.files import json_text

ROWS = 1_000_000
"""A CSV holds no more rows: about what a spreadsheet opens."""

_ORDER = "row prompt method minus layer dim dim_last region position position_last length window sample".split()
_WHOLE = ("position", "tokens", "index")  # units of numbers that are whole, or missing


def check_rows(rows: int) -> None:
    """Raises Refused if a CSV of so many rows would be of no use."""
    if rows > ROWS:
        raise Refused(
            f"csv: {rows} rows are more than {ROWS}; choose fewer layers, dims or positions, pool them, or take npz"
        )


def csv_bytes(numbers: xr.Dataset) -> bytes:
    """A row for each combination of the labels, a column for each label and variable; blank where there is no value.

    Positions and lengths are whole numbers, blank where they are infinite: an interval's open end. Float64 is
    `rounded`. Dims without labels are numbered; a dim named `row` is left out. Raises Refused for too
    many rows.
    """
    check_rows(math.prod(numbers.sizes.values()))
    frame = numbers.to_dataframe(sorted(map(str, numbers.dims), key=_place)).reset_index()
    for name in (name for name, values in numbers.items() if values.attrs.get("units") in _WHOLE):
        frame[name] = _whole(frame[name].to_numpy(float))
    for name in frame.columns[frame.dtypes == np.float64]:
        frame[name] = rounded(frame[name].to_numpy())
    variables = [str(name) for name in numbers.data_vars]
    labels = sorted((name for name in frame.columns if name not in (*variables, "row")), key=_place)
    return frame[[*labels, *variables]].to_csv(index=False, lineterminator="\n").encode()


def rounded(values: np.ndarray) -> np.ndarray:
    """Numbers as they are read: ten digits of the largest, and no more than 12 places, so that rounding's rest is 0."""
    largest = np.max(np.abs(values), initial=0, where=np.isfinite(values))
    places = 0 if largest == 0 else 9 - math.floor(math.log10(largest))
    return np.round(values, min(max(places, 0), 12)) + 0.0


def row_table(rows: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Columns over `row`, as texts, booleans or numbers; blank or NaN for missing ones; whole numbers are an index."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        types = {type(value) for value in values} - {type(None)}
        if types == {bool}:
            columns[name] = ("row", [bool(value) for value in values])
        elif types and types <= {int, float}:
            numbers = [math.nan if value is None else float(value) for value in values]
            columns[name] = ("row", numbers, {"units": "index"} if types == {int} else {})
        else:
            columns[name] = ("row", ["" if value is None else str(value) for value in values])
    return xr.Dataset(columns)


def npz_bytes(numbers: xr.Dataset) -> bytes:
    """Variables and coordinates under their names, for `numpy.load`; no pickles.

    `about` is JSON: `dims` and `units` of the variables, and `attrs` of the dataset.
    """
    about = {
        "dims": {str(name): values.dims for name, values in numbers.items()},
        "units": {str(name): values.attrs["units"] for name, values in numbers.items() if "units" in values.attrs},
        "attrs": numbers.attrs,
    }
    arrays = {str(name): _plain(values.values) for name, values in numbers.variables.items()}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=json_text(about, None, sort_keys=True, default=str), **arrays)
    return file.getvalue()


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _whole(values: np.ndarray) -> pd.Series:
    """Whole numbers, blank where there is none; a column with a fraction in it stays as it is, without infinities."""
    known = np.where(np.isfinite(values), values, np.nan)
    fractions = np.nan_to_num(known) % 1
    return pd.Series(known) if fractions.any() else pd.Series(known).astype("Int64")


def _plain(values: np.ndarray) -> np.ndarray:
    """Texts as numpy's own, which need no pickle."""
    return values.astype(str) if values.dtype.kind in "OT" else values
