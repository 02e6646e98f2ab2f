"""What `mesa-lens anatomy` measured, read back from the folder it wrote; no torch."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.store.located import find_summary

ANATOMY = Path("anatomy", "summary.json")
VECTORS = ANATOMY.with_name("vectors.npz")
"""Below the folder that `mesa-lens anatomy` was given."""

_NAMES = "model trained_length reference lengths layers methods heads all_heads retrieval unmet frequencies lens"
_DIMS = {
    "score": ("method", "layer", "component", "position"),
    "cosine": ("method", "layer", "position"),
    "nearest": ("method", "layer", "position"),
    "share": ("method", "layer", "band"),
    "reliability": ("method", "layer", "band"),
}


@dataclass(frozen=True)
class Anatomy:
    """The summary, and what is drawn of positional vectors by method and layer; None where there is none."""

    summary: Mapping[str, Any]
    vectors: xr.Dataset | None


def find_anatomy(folder: Path) -> Anatomy | None:
    """What lies in the folder, None where `mesa-lens anatomy` was not run; ValueError for what is damaged."""
    summary = find_summary_of_anatomy(folder)
    if summary is None:
        return None
    return Anatomy(summary, _vectors(folder) if summary["vectors"] else None)


def find_summary_of_anatomy(folder: Path) -> Mapping[str, Any] | None:
    """The summary alone, as `find_anatomy` has it."""
    names = (*_NAMES.split(), "retrieval_heads", "lens_differs", "vectors")
    return find_summary(folder, ANATOMY, names, "anatomy")


def read_anatomy(folder: Path) -> Anatomy:
    """What lies in the folder; FileNotFoundError where there is nothing."""
    found = find_anatomy(folder)
    if found is None:
        raise FileNotFoundError(f"{folder / ANATOMY} is not there; write it: `mesa-lens anatomy --out {folder}`")
    return found


def _vectors(folder: Path) -> xr.Dataset:
    path = folder / VECTORS
    try:
        with np.load(path) as file:
            labels = {name: file[name] for name in ("method", "layer", "component", "position", "band")}
            values = {name: (dims, file[name]) for name, dims in _DIMS.items()}
        return xr.Dataset(values, coords=labels)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error!r}); write it anew: `mesa-lens anatomy --out {folder}`") from error
