"""What was worked out of a store, kept beside it; taken only where store and code are the same, value by value."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import xarray as xr

from probe.files import write
from probe.store.place import Remote
from probe.store.reader import Run, region_sums, store_mark

DERIVED = "derived"
"""The folder beside a store that holds what was worked out of it."""

Found = Mapping[str, xr.Dataset] | str
"""Datasets by name, or why there are none."""
Work = Callable[[str, Callable[[], Any]], Any]
"""Gives what is known by a name, or makes it."""

_CODE = ("store", "thresholds", "figures")  # what is kept depends on it


def at_once(name: str, make: Callable[[], Any]) -> Any:
    """What `make` makes: nothing is kept."""
    return make()


def recalled(run: Run, name: str, make: Callable[[], Any]) -> Any:
    """What was kept of the run under the name; else what `make` makes, which is kept if it can be written."""
    if isinstance(run.folder, Remote):
        return make()
    found = kept(run, name)
    if found is None:
        before, found = mark(run), make()
        with suppress(OSError):  # a folder of others, or a full disk
            if mark(run) == before:  # else it was captured anew meanwhile
                keep(run, name, found)
    return found


def keep(run: Run, name: str, found: Found) -> None:
    """Writes what was found of the run, to be found again under the name."""
    about: dict[str, Any] = {"mark": mark(run)}
    arrays = {}
    if isinstance(found, str):
        about["reason"] = found
    else:
        about["datasets"] = [[label, _about(dataset)] for label, dataset in found.items()]
        for number, dataset in enumerate(found.values()):
            arrays |= {f"{number}/{key}": _plain(each.values) for key, each in dataset.variables.items()}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=json.dumps(about), **arrays)
    path = _path(run, name)
    path.parent.mkdir(exist_ok=True)
    write(path, file.getvalue())


def kept(run: Run, name: str) -> Found | None:
    """What was kept under the name; None where there is nothing, or it is damaged or of other values or code."""
    path = _path(run, name)
    if isinstance(run.folder, Remote) or path.is_symlink() or not path.is_file():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes())) as file:
            about = json.loads(file["about"].item())
            if about["mark"] != mark(run):
                return None
            return about["reason"] if "reason" in about else _datasets(about["datasets"], file)
    except (OSError, EOFError, LookupError, TypeError, ValueError, zipfile.BadZipFile):
        return None


def mark(run: Run) -> str:
    """What changes with the store's attributes, with any of its values (by their check sums) and with our code."""
    found = hashlib.sha256(f"{store_mark(run.hidden.attrs)} {_code()}".encode())
    for each in region_sums(run.path):
        found.update(each)
    return found.hexdigest()


@cache
def _code() -> str:
    files = [path for name in _CODE for path in sorted(Path(__file__).parents[1].joinpath(name).glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _path(run: Run, name: str) -> Path:
    return run.folder / DERIVED / f"{quote(name, safe='')}.npz"


def _about(dataset: xr.Dataset) -> dict[str, Any]:
    """All of a dataset but its values."""
    variables = {str(name): [each.dims, each.attrs] for name, each in dataset.variables.items()}
    return {"variables": variables, "labels": [str(name) for name in dataset.coords], "attrs": dataset.attrs}


def _datasets(about: list[Any], arrays: Mapping[str, np.ndarray]) -> dict[str, xr.Dataset]:
    found = {}
    for number, (label, of) in enumerate(about):
        variables = {
            name: xr.Variable(dims, _objects(arrays[f"{number}/{name}"]), attrs)
            for name, (dims, attrs) in of["variables"].items()
        }
        found[label] = xr.Dataset(variables, attrs=of["attrs"]).set_coords(of["labels"])
    return found


def _plain(values: np.ndarray) -> np.ndarray:
    """Texts as numpy's own, which need no pickle."""
    return values.astype(str) if values.dtype.kind in "OT" else values


def _objects(values: np.ndarray) -> np.ndarray:
    """Texts as Python's, as a store has them."""
    return values.astype(object) if values.dtype.kind == "U" else values
