"""A study's lengths on disk: a journal with one line a finished cell, and the labelled results made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.evaluation.journal import Journal

CRITERIA = ("either", "nll", "passkey")
BOUNDS = ("M or more", "more than M")
"""Relative positions that the arithmetic prediction takes for a failure."""


def gather(journal: Journal, settings: Mapping[str, Any], arithmetic: Mapping[str, Sequence[int]]) -> xr.Dataset:
    """All lengths of a finished journal, labelled, in tokens; none up to L is L + 1, no call is NaN.

    `predicted` (prompt, rule, top, config, seed); `qualified` (prompt, rule, seed): dims that qualify; `measured`
    (criterion, config, seed); `arithmetic` (bound, config): first position that sees such a distance.
    """
    configs, seeds = list(arithmetic), list(range(settings["seeds"]))
    none = settings["length"] + 1
    measured = np.full((len(CRITERIA), len(configs), len(seeds)), float(none))
    for row, config in enumerate(configs):
        for seed in seeds:
            cell = journal.rows["measured", "", config, seed]
            lengths = [cell["by_nll"] or none, cell["by_passkey"] or none]
            measured[:, row, seed] = [min(lengths), *lengths]
    cells = {key[1:]: row["lengths"] for key, row in journal.rows.items() if key[0] == "predicted"}
    labels = {
        "prompt": [],
        "rule": list(settings["rules"]),
        "top": list(settings["tops"]),
        "config": configs,
        "seed": seeds,
    }
    parts, counts = [], []
    for prompt in settings["prompts"]:
        for kind in cells[prompt, configs[0], 0]:
            labels["prompt"].append(kind)
            found = [[[cells[prompt, c, s][kind][r] for s in seeds] for c in configs] for r in labels["rule"]]
            parts.append([[[one["lengths"] for one in each] for each in every] for every in found])
            counts.append([[one["qualified"] for one in every[0]] for every in found])
    predicted = np.array(parts, dtype=float).transpose(0, 1, 4, 2, 3)
    return xr.Dataset(
        {
            "predicted": (tuple(labels), predicted, {"units": "tokens"}),
            "qualified": (("prompt", "rule", "seed"), np.array(counts), {"units": "dims"}),
            "measured": (("criterion", "config", "seed"), measured, {"units": "tokens"}),
            "arithmetic": (("config", "bound"), np.array(list(arithmetic.values()), dtype=float), {"units": "tokens"}),
        },
        coords={**labels, "criterion": list(CRITERIA), "bound": list(BOUNDS)},
        attrs={"settings": json.dumps(settings)},
    )


def write_results(results: xr.Dataset, path: Path) -> None:
    """The results as JSON, one line a run of numbers; null for no call."""
    record = {
        "settings": json.loads(results.attrs["settings"]),
        "coords": {name: results[name].values.tolist() for name in results.coords},
        **{name: {"dims": list(values.dims), "data": _plain(values.values)} for name, values in results.items()},
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    path.write_text(re.sub(r"\[[^\[\]]*\]", lambda run: " ".join(run[0].split()), text) + "\n", encoding="utf-8")


def read_results(path: Path) -> xr.Dataset:
    """What `write_results` wrote."""
    record = json.loads(path.read_text(encoding="utf-8"))
    settings, coords = record.pop("settings"), record.pop("coords")
    values = {name: (each["dims"], np.array(each["data"], dtype=float)) for name, each in record.items()}
    return xr.Dataset(values, coords, {"settings": json.dumps(settings)})


def _plain(values: np.ndarray) -> Any:
    """Nested lists of whole numbers, None for NaN."""
    if values.ndim:
        return [_plain(each) for each in values]
    return None if np.isnan(values) else int(values)
