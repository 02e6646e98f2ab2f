"""Where an anatomy run keeps what it measured, and whether a folder holds another run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mesa.fingerprints import IDENTITY
from mesa.methods import Method
from probe.experiment.journal import Journal, other_run

if TYPE_CHECKING:
    from probe.mechanism.anatomy.request import AnatomyPlan

FOLDER, JOURNAL, SUMMARY, VECTORS = "anatomy", "cells.jsonl", "summary.json", "vectors.npz"
"""Where in its --out a run's results lie, and the files in there; moments lie beside them."""


def moments_path(out: Path, name: str, length: int) -> Path:
    """The moments of a method at a length."""
    return out / FOLDER / f"moments-{name}-{length}.npz"


def config_of(method: Method) -> Any:
    """The method's description, as a journal gives it back."""
    return json.loads(json.dumps(method.describe()))


def open_journal(made: AnatomyPlan, out: Path, *, overwrite: bool = False) -> Journal:
    """The folder's journal, after its moments were checked too; `overwrite` removes all of it.

    Raises FileExistsError for those of other settings, or with other parameters of a method.
    """
    folder = out / FOLDER
    path, stored = folder / JOURNAL, sorted(folder.glob("moments-*.npz"))
    if overwrite:
        written = (SUMMARY, VECTORS, "report.html")
        for old in (path, *stored, *(folder / name for name in written), *folder.glob("*.csv")):
            old.unlink(missing_ok=True)
    journal = Journal(path, made.settings, force=made.request.force)
    for cell, row in journal.rows.items():
        _check_method(made, str(cell[1]), row["config"], path)
    for old in stored:
        if old.exists():
            _check_moments(made, old)
    return journal


def _check_moments(made: AnatomyPlan, path: Path) -> None:
    with np.load(path) as file:
        attrs = json.loads(str(file["attrs"]))
    differing = changed(attrs["settings"], made)
    refused = [key for key in differing if not (made.request.force and key in IDENTITY)]
    if refused:
        raise other_run(path, refused, attrs["settings"], differing)
    config = json.loads(attrs["method"])
    _check_method(made, config["name"], config, path)


def changed(stored: Mapping[str, Any], made: AnatomyPlan) -> dict[str, Any]:
    """The plan's settings that are others than those stored with moments."""
    wanted = json.loads(json.dumps(made.settings))
    return {key: wanted.get(key) for key in sorted({*stored, *wanted}) if stored.get(key) != wanted.get(key)}


def _check_method(made: AnatomyPlan, name: str, config: Any, path: Path) -> None:
    if name in made.methods and config != config_of(made.methods[name]):
        raise FileExistsError(f"{path} holds {name} with other parameters; use --overwrite or another --out")


def texts_in(path: Path) -> int:
    """Texts that stored moments are of; 0 where there are none."""
    if not path.exists():
        return 0
    with np.load(path) as file:
        return int(file["count"].sum())


def forced_in(path: Path) -> list[dict[str, Any]]:
    """What was changed by --force while stored moments were gathered; nothing where there are none."""
    if not path.exists():
        return []
    with np.load(path) as file:
        return json.loads(str(file["attrs"])).get("forced", [])
