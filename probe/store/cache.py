"""Values derived from a store, cached next to it; valid while store and code are the same, value by value."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar, cast
from urllib.parse import quote

import numpy as np
import xarray as xr

from mesa.methods import registry
from probe.files import write
from probe.store.reader import StoredRun, region_sums, store_mark

DERIVED = "derived"
"""The folder in addition to a store that holds derived values."""

Derived = dict[str, xr.Dataset] | str
"""Datasets by name, or why there are none."""
D = TypeVar("D", bound=Derived)


class Cache(Protocol):
    """Called with a name and what computes the values; returns them, from wherever they are known."""

    def __call__(self, name: str, compute: Callable[[], D], /) -> D:
        """The values."""
        ...


_CODE = [f"probe/{name}.py" for name in ("store/*", "thresholds/*", "figures/*", "statistics")]
_CODE += ["mesa/plan.py", "mesa/methods/*.py"]  # on all of which derived values depend


def uncached(name: str, compute: Callable[[], D]) -> D:
    """What `compute` returns."""
    return compute()


def cached(run: StoredRun, name: str, compute: Callable[[], D]) -> D:
    """The run's cached values of this name; else what `compute` returns, which is saved if it can be written."""
    if (known := load(run, name)) is not None:
        return cast(D, known)
    before, derived = mark(run), compute()
    with suppress(OSError):  # a folder of others, or a full disk
        if mark(run) == before:  # else it was captured again meanwhile
            save(run, name, derived)
    return derived


def save(run: StoredRun, name: str, derived: Derived) -> Path:
    """Writes the run's values of this name into one file; returns its path."""
    reason, datasets = (derived, {}) if isinstance(derived, str) else ("", derived)
    about = {label: dataset.to_dict(data=False) for label, dataset in datasets.items()}
    arrays = {
        f"{label}/{name}": _plain(array.values)
        for label, dataset in datasets.items()
        for name, array in dataset.variables.items()
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, header=json.dumps([mark(run), reason, about]), **arrays)
    path = _path(run, name)
    path.parent.mkdir(exist_ok=True)
    write(path, file.getvalue())
    return path


def load(run: StoredRun, name: str) -> Derived | None:
    """The run's values of this name; None where there are none, or they are damaged or of another store or code."""
    path = _path(run, name)
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes())) as file:
            of, reason, datasets = json.loads(file["header"].item())
            if of != mark(run) or reason:
                return None if of != mark(run) else reason
            for label, dataset in datasets.items():
                for name, array in {**dataset["coords"], **dataset["data_vars"]}.items():
                    values = file[f"{label}/{name}"]
                    array["data"] = values.astype(object) if values.dtype.kind == "U" else values  # texts as in a store
            return {label: xr.Dataset.from_dict(dataset) for label, dataset in datasets.items()}
    except (OSError, EOFError, LookupError, TypeError, ValueError, zipfile.BadZipFile):
        return None


def mark(run: StoredRun) -> str:
    """A sha256 of the store's attributes, of its values (by their check sums), of our code and the known methods."""
    digest = hashlib.sha256(f"{store_mark(run.hidden.attrs)} {_code()} {sorted(registry())}".encode())
    for region in region_sums(run.path):
        digest.update(region)
    return digest.hexdigest()


@cache
def _code() -> str:
    files = [path for name in _CODE for path in sorted(Path(__file__).parents[2].glob(name))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _path(run: StoredRun, name: str) -> Path:
    return run.folder / DERIVED / f"{quote(name, safe='')}.npz"


def _plain(values: np.ndarray) -> np.ndarray:
    """Texts as numpy's strings, which need no pickle."""
    return values.astype(str) if values.dtype.kind in "OT" else values
