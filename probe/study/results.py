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
from probe.study.variants import REFERENCE
from probe.thresholds.failure import LEAST_ACCURACY, NATS_ABOVE, dipping, onset

NLL, PASSKEY = TASK_NAMES = ("nll", "passkey")
"""What failure can be measured by."""
BOUNDS = ("M or more", "more than M", "slowest rotation of M or more", "a rotary phase not met")
"""Relative positions that the arithmetic prediction takes for a failure.

The third counts positions in turns of rotary's slowest frequency, so that it knows of methods that change frequencies;
the last asks each rotary pair whether it met that phase inside the window. Both need rotary embeddings.
"""
DRIFT = "drift"
"""The rule that judges layers and needs no number of dims."""


def progress(
    journal: Journal, settings: Mapping[str, Any], task: str, config: str, seed: int
) -> tuple[int | None, tuple[int, ...], int | None]:
    """From which length on a config fails by `task`, where it dips before, and the next length to measure or None.

    The rules are those of `probe.thresholds.failure`, with Origin's tail NLL at M as the level; where Origin finds no
    passkeys there, they say nothing about length, and nothing else is measured. Every length is, since a failure must
    persist: all longer ones fail too, else it is a dip. While some are missing, nothing is known.
    """
    trained, lengths = settings["trained_length"], settings["lengths"]
    level = journal.rows.get((task, REFERENCE, seed, trained))
    if level is None:
        return None, (), trained
    expected = float(np.mean(level["scores"]))
    if task == PASSKEY and expected < LEAST_ACCURACY:
        return None, (), None
    rows = [journal.rows.get((task, config, seed, length)) for length in lengths]
    if None in rows:
        return None, (), lengths[rows.index(None)]
    values = np.array([np.mean(row["scores"]) for row in rows if row])
    fails = values > expected + NATS_ABOVE if task == NLL else values < LEAST_ACCURACY
    return onset(fails, np.array(lengths)), dipping(fails, np.array(lengths)), None


def gather(journal: Journal, settings: Mapping[str, Any], arithmetic: Mapping[str, Sequence[int]]) -> xr.Dataset:
    """All lengths of a finished journal, labelled, in tokens; none up to L is L + 1, no call is NaN.

    `predicted` (prompt, rule, top, config, seed); `qualified` (prompt, rule, seed): dims that qualify, NaN for the rule
    `drift`; `measured` (criterion, config, seed), 'either' and the tasks; `arithmetic` (bound, config): first position
    that sees such a distance.
    """
    configs, seeds = list(arithmetic), list(range(settings["seeds"]))
    labels = {
        "prompt": [],
        "rule": list(settings["rules"]),
        "top": list(settings["tops"]),
        "config": configs,
        "seed": seeds,
    }
    cells = {key[1:]: row["lengths"] for key, row in journal.rows.items() if key[0] == "predicted"}
    parts, counts = [], []
    for prompt in settings["prompts"]:
        for kind in cells[prompt, configs[0], 0]:
            labels["prompt"].append(kind)
            found = [[[cells[prompt, c, s][kind][r] for s in seeds] for c in configs] for r in labels["rule"]]
            parts.append([[[one["lengths"] for one in each] for each in every] for every in found])
            counts.append([[one["qualified"] for one in every[0]] for every in found])
    predicted, qualified = np.array(parts, dtype=float).transpose(0, 1, 4, 2, 3), np.array(counts, dtype=float)
    criteria, measured = _measured(journal, settings, configs)
    return xr.Dataset(
        {
            "predicted": (tuple(labels), predicted, {"units": "tokens"}),
            "qualified": (("prompt", "rule", "seed"), qualified, {"units": "dims"}),
            "measured": (("criterion", "config", "seed"), measured, {"units": "tokens"}),
            "arithmetic": (("config", "bound"), np.array(list(arithmetic.values()), dtype=float), {"units": "tokens"}),
        },
        coords={**labels, "criterion": criteria, "bound": list(BOUNDS)},
        attrs={"settings": json.dumps(settings)},
    )


def _measured(journal: Journal, settings: Mapping[str, Any], configs: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The criteria, and the failure length (criterion, config, seed) by each."""
    tasks = [task for task in TASK_NAMES if task in settings["measure"]]
    none, seeds = settings["length"] + 1, range(settings["seeds"])
    each = [[[progress(journal, settings, t, c, s)[0] or none for s in seeds] for c in configs] for t in tasks]
    by_task = np.array(each, dtype=float)
    return ["either", *tasks], np.concatenate([by_task.min(axis=0, keepdims=True), by_task])


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
