"""A study's results: onsets and measured failure lengths, labelled; as JSON on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.files import write
from probe.thresholds.failure import MIN_ACCURACY, NATS_ABOVE, dipping, is_chance, lasting
from probe.thresholds.onset import PLACES

REFERENCE = "origin"
TASKS = ("nll", "passkey")
"""What failure can be measured by."""
BOUNDS = ("M or more", "more than M", "slowest rotation of M or more", "a rotary phase not met")
"""Relative positions that arithmetic takes for a failure.

The third counts positions in turns of rotary's slowest frequency, so that it knows of methods that change frequencies;
the last asks each rotary pair whether it met that phase inside the window. Both need rotary embeddings.
"""
DRIFT = "drift"
"""The rule that judges layers and needs no number of dims."""
Rows = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""A journal's rows: ('onset', prompt, config, seed) and (task, config, seed, length)."""


def seeds_of(settings: Mapping[str, Any]) -> range:
    """The seeds that a study with these settings judges on."""
    first = settings.get("first_seed", 0)
    return range(first, first + settings["seeds"])


def judges(rows: Rows, settings: Mapping[str, Any], task: str, seed: int) -> bool:
    """Whether a task says anything of length: Origin's scores at M, which must be known, are not chance.

    settings: with `vocabulary`, in tokens; without it no tail NLL is called chance.
    """
    level = float(np.mean(rows[task, REFERENCE, seed, settings["trained_length"]]["scores"]))
    return level >= MIN_ACCURACY if task == "passkey" else not is_chance(level, settings.get("vocabulary"))


def failing(rows: Rows, settings: Mapping[str, Any], task: str, config: str, seed: int) -> list[bool]:
    """By length, whether a config fails by `task`, against Origin's score at M; nowhere if that is chance."""
    if not judges(rows, settings, task, seed):
        return [False] * len(settings["lengths"])
    level = float(np.mean(rows[task, REFERENCE, seed, settings["trained_length"]]["scores"]))
    means = [float(np.mean(rows[task, config, seed, length]["scores"])) for length in settings["lengths"]]
    return [mean > level + NATS_ABOVE if task == "nll" else mean < MIN_ACCURACY for mean in means]


def gather(rows: Rows, settings: Mapping[str, Any], arithmetic: Mapping[str, Mapping[str, int]]) -> xr.Dataset:
    """All lengths of a finished journal, labelled, in tokens; none up to L is L + 1, no call is NaN.

    `onset` (prompt, rule, top, config, seed); `qualified` (prompt, rule, seed): dims that qualify, NaN for the rule
    `drift`; `measured` (criterion, config, seed), 'either' and the tasks, NaN where these are at chance inside M, and
    `dips`, how many shorter lengths fail too; `arithmetic` (config, bound): first position that sees such a distance.
    Of the negative control `inside` and `matched` (prompt, rule, seed, place): shares of dims that are threshold dims
    inside the window, and at M with as many positions; `false` (prompt, rule, config, seed): share of the places with
    a false onset, of drift's pretended windows with a false alarm. NaN: not tried.
    """
    configs, seeds = list(arithmetic), list(seeds_of(settings))
    rules, bounds = list(settings["rules"]), list(arithmetic[next(iter(arithmetic))])
    cells = {key[1:]: row["lengths"] for key, row in rows.items() if key[0] == "onset"}
    kinds = [(prompt, kind) for prompt in settings["prompts"] for kind in cells[prompt, configs[0], seeds[0]]]

    def read(names: Sequence[str], value: Callable[[dict[str, Any]], Any]) -> np.ndarray:
        """`value` of the cells, by prompt, rule, config and seed."""
        values = [
            [[[value(cells[prompt, name, seed][kind][rule]) for seed in seeds] for name in names] for rule in rules]
            for prompt, kind in kinds
        ]
        return np.array(values, dtype=float)

    def of_reference(value: Callable[[dict[str, Any]], Any]) -> np.ndarray:
        return read(configs[:1], value)[:, :, 0]

    criteria, measured, dips = _measured(rows, settings, configs)
    onsets = np.moveaxis(read(configs, lambda row: row["lengths"]), -1, 2)
    positions = np.array([[first[bound] for bound in bounds] for first in arithmetic.values()], dtype=float)
    by_seed, by_config = ("prompt", "rule", "seed"), ("criterion", "config", "seed")
    return xr.Dataset(
        {
            "onset": (("prompt", "rule", "top", "config", "seed"), onsets, {"units": "tokens"}),
            "qualified": (by_seed, of_reference(lambda row: row["qualified"]), {"units": "dims"}),
            "measured": (by_config, measured, {"units": "tokens"}),
            "dips": (by_config, dips, {"units": "lengths"}),
            "arithmetic": (("config", "bound"), positions, {"units": "tokens"}),
            "inside": ((*by_seed, "place"), of_reference(partial(_shares, "qualified"))),
            "matched": ((*by_seed, "place"), of_reference(partial(_shares, "matched"))),
            "false": (("prompt", "rule", "config", "seed"), read(configs, _false)),
        },
        {
            "prompt": [kind for _, kind in kinds],
            "rule": rules,
            "top": list(settings["tops"]),
            "config": configs,
            "seed": seeds,
            "criterion": criteria,
            "bound": bounds,
        },
        {"settings": json.dumps(settings)},
    )


def _shares(name: str, row: Mapping[str, Any]) -> list[float]:
    """Of the control's places, the share of the dims that are threshold dims; NaN where there is no control."""
    control = row.get("control")
    shares = [count / control["searched"] for count in control[name]] if control else []
    return [*shares, *[np.nan] * (PLACES - len(shares))]


def _false(row: Mapping[str, Any]) -> float | None:
    """The share of false onsets inside the window; None where it was not tried."""
    if "call" in row:
        call, name = row["call"], "any_false_positive_rate"
        return call[name] if name in call else call["any_false_alarm"]  # of an older journal
    return row["control"]["false"] if row["control"] else None


def _measured(
    rows: Rows, settings: Mapping[str, Any], configs: Sequence[str]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The criteria; the failure length (criterion, config, seed) by each, and how many shorter lengths fail too.

    'either' fails at a length where one or the other task does, of those that say anything.
    """
    tasks = [task for task in TASKS if task in settings["measure"]]
    none, seeds, lengths = settings["length"] + 1, seeds_of(settings), np.array(settings["lengths"])
    by_task = np.array([[[failing(rows, settings, t, c, s) for s in seeds] for c in configs] for t in tasks])
    fails = np.concatenate([by_task.any(axis=0, keepdims=True), by_task])
    measured = np.apply_along_axis(lambda row: lasting(row, lengths) or none, -1, fails).astype(float)
    judged = np.array([[judges(rows, settings, task, seed) for seed in seeds] for task in tasks])
    judged = np.concatenate([judged.any(axis=0, keepdims=True), judged])
    measured[~np.broadcast_to(judged[:, None], measured.shape)] = np.nan
    dips = np.apply_along_axis(lambda row: len(dipping(row, lengths)), -1, fails)
    return ["either", *tasks], measured, dips.astype(float)


def write_results(results: xr.Dataset, path: Path) -> None:
    """The results as JSON, one line a run of numbers; null for no call, and for what was not judged."""
    record = {
        "settings": json.loads(results.attrs["settings"]),
        "coords": {name: results[name].values.tolist() for name in results.coords},
        **{name: {"dims": list(values.dims), "data": _plain(values.values)} for name, values in results.items()},
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write(path, (re.sub(r"\[[^\[\]]*\]", lambda run: " ".join(run[0].split()), text) + "\n").encode())


def read_results(path: Path) -> xr.Dataset:
    """What `write_results` wrote."""
    record = json.loads(path.read_text(encoding="utf-8"))
    settings, coords = record.pop("settings"), record.pop("coords")
    values = {name: (entry["dims"], np.array(entry["data"], dtype=float)) for name, entry in record.items()}
    return xr.Dataset(values, coords, {"settings": json.dumps(settings)})


def _plain(values: np.ndarray) -> Any:
    """Nested lists of numbers, whole where they are, None for NaN."""
    if values.ndim:
        return [_plain(row) for row in values]
    if np.isnan(values):
        return None
    return int(values) if float(values).is_integer() else round(float(values), 6)
