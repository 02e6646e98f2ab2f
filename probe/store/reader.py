"""Opens the store of a run, after checking that it is whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from mesa.errors import NotFound, Refused
from probe.files import SEAL
from probe.store.integrity import AGAIN, check_whole, with_checks
from probe.store.regions import FILED, list_missing, missing_regions

STORE = "store.zarr"
"""The store's name in the folder of a run."""
EVALUATION = "evaluation"
"""The group with the scores by length."""
TOKENS = "tokens"
"""The group with the tokens of the prompts."""
FINGERPRINTS = ("inputs", "weights", "config", "tokenizer")
"""Attributes that identify texts, prompts and the model."""
TEXT_SOURCE = "text_source"
"""Attribute with the texts' names and counts, as JSON."""
_DAMAGE = (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)  # of the decompressor


@dataclass(frozen=True)
class StoredRun:
    """An opened store. `hidden`: one variable a hook, read from disk when used; `evaluation`: scores by length.

    The text of every token is `hidden`'s coordinate `token` (prompt, position), where the store has tokens.
    """

    path: Path
    hidden: xr.Dataset
    evaluation: xr.Dataset | None

    @property
    def folder(self) -> Path:
        """Where summary, report and derived values lie: beside the store."""
        return self.path.parent

    @property
    def trained_length(self) -> int:
        """The trained window M, in tokens."""
        return int(self.hidden.attrs["trained_length"])


def open_run(path: str | os.PathLike[str]) -> StoredRun:
    """Opens a run folder or its store.

    Raises FileNotFoundError for a missing path, Refused for a folder that is not a store, or an incomplete or
    damaged one.
    """
    path = Path(path)
    inner = store_of(path)
    if inner.exists() or partial_path(inner).exists():
        path = inner
    if not path.exists():
        if partial_path(path).exists():
            what = list_missing(missing_regions(partial_path(path))) or "it was not finished"
            raise Refused(f"{partial_path(path)} is not finished: {what}; the same `mesa-lens probe` continues")
        raise NotFound(f"no run at {path}; make one with `mesa-lens probe`")
    if not (path / "zarr.json").exists():
        raise Refused(f"{path} is not a store: it has no zarr.json; give the folder that `mesa-lens probe` wrote")
    with _one_line_errors(path):
        groups = tuple(name for name in (EVALUATION, TOKENS) if (path / name).exists())
        check_whole(path, groups)
        hidden = _variables(path)
        evaluation, tokens = (
            _variables(path, name).load() if name in groups else None for name in (EVALUATION, TOKENS)
        )
    lacking = [name for name in (SEAL, "trained_length") if name not in hidden.attrs]
    if lacking := [*lacking, *(dim for dim in FILED if dim not in hidden)]:
        raise Refused(f"{path} is not a store of hidden states: it has no {lacking[0]}")
    with _one_line_errors(path):
        missing = missing_regions(path)
    if missing or not hidden.attrs[SEAL]:
        raise Refused(f"{path} is incomplete: {list_missing(missing) or 'it was not finished'}; {AGAIN}")
    hidden = with_checks(_object_labels(hidden), path)
    if tokens is not None:
        labels = ("prompt", "position")
        hidden = hidden.assign_coords(token=(labels, tokens["text"].transpose(*labels).values.astype(object)))
    if evaluation is not None:
        evaluation = _object_labels(evaluation)
        evaluation.attrs.pop(SEAL, None)
    return StoredRun(path, hidden, evaluation)


def _variables(path: Path, group: str | None = None) -> xr.Dataset:
    """What a store, or its group, holds: by name, since a folder lists its files in any order."""
    dataset = xr.open_zarr(path, group=group, consolidated=False)
    labels, values = (
        {name: part[name].variable for name in sorted(part, key=str)} for part in (dataset.coords, dataset.data_vars)
    )
    return xr.Dataset(values, labels, dataset.attrs)


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Refused for a damaged store."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if not isinstance(error, (OSError, *_DAMAGE)):
            raise
        raise Refused(f"{path} is damaged ({reason}); {AGAIN}") from error


def store_of(folder: Path) -> Path:
    """The store of a run's folder."""
    return folder / STORE


def partial_path(path: Path) -> Path:
    """Where a store is kept while it is being written."""
    return path.with_name(path.name + ".partial")


def store_mark(attrs: Mapping[Any, Any]) -> str:
    """A sha256 of a store's attributes, its time among them, but for seal and fingerprints: it identifies the store."""
    compared = {key: attrs[key] for key in sorted(attrs) if key not in (SEAL, *FINGERPRINTS)}
    return hashlib.sha256(json.dumps(compared, default=str).encode()).hexdigest()


def _object_labels(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with string coordinates as Python strings, which every numpy function takes."""
    return dataset.assign_coords({n: c.astype(object) for n, c in dataset.coords.items() if c.dtype.kind == "T"})
