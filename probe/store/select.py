"""What of a run is asked for, chosen by name; errors name what is there."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xarray as xr

from probe.capture.spec import Ranges
from probe.store.positions import captured_ranges
from probe.store.reader import Run

_PROVENANCE = ("model", "model_revision")


def hook_values(run: Run, hook: str | None = None) -> xr.DataArray:
    """The hidden states of `hook` (default: the run's first), with the model's name; ValueError for an unknown hook."""
    hooks = hooks_of(run)
    hook = hooks[0] if hook is None else hook
    if hook not in hooks:
        raise ValueError(f"hook {hook!r} was not captured; captured: {', '.join(hooks)}")
    return run.hidden[hook].assign_attrs({k: run.hidden.attrs[k] for k in _PROVENANCE if k in run.hidden.attrs})


def hooks_of(run: Run) -> list[str]:
    """The captured hooks, as asked for: a store lists them by the alphabet."""
    there = [str(name) for name in run.hidden.data_vars]
    asked = json.loads(run.hidden.attrs.get("spec", "{}")).get("hooks", there)
    return sorted(there, key=lambda hook: asked.index(hook) if hook in asked else len(asked))


def reference_method(methods: Sequence[str]) -> str:
    """The method thresholds are read from: Origin, or the first."""
    return "origin" if "origin" in methods else methods[0]


def one_prompt(hidden: xr.DataArray, prompt: str | None = None) -> xr.DataArray:
    """The values on one prompt (default: the first); ValueError for an unknown one."""
    name = str(hidden["prompt"].values[0]) if prompt is None else prompt
    check_labels(hidden, "prompt", [name])
    return hidden.sel(prompt=name)


def check_labels(values: xr.DataArray | xr.Dataset, dim: str, wanted: Sequence[object]) -> None:
    """ValueError for the first of `wanted` that is not a label of `dim`."""
    labels = values[dim].values.tolist()
    for label in wanted:
        if label not in labels:
            raise ValueError(f"{dim} {label!r} was not captured; captured: {listed(values[dim].values)}")


def check_pairs(hidden: xr.DataArray, pairs: Sequence[tuple[int, int]]) -> None:
    """ValueError for the first (layer, dim) that was not captured."""
    for layer, dim in pairs:
        check_labels(hidden, "layer", [layer])
        check_labels(hidden, "dim", [dim])


def in_ranges(values: xr.DataArray, dim: str, ranges: Ranges | None) -> xr.DataArray:
    """The values whose `dim` lies in the half-open `ranges`; ValueError if one of a range was not captured."""
    if ranges is None:
        return values
    labels = values[dim].values
    kept = np.zeros(len(labels), dtype=bool)
    for start, stop in ranges:
        inside = (labels >= start) & (labels < stop)
        if inside.sum() < stop - start:
            raise ValueError(f"{dim}s {start}-{stop - 1} were not all captured; captured: {listed(labels)}")
        kept |= inside
    return values.isel({dim: np.flatnonzero(kept)})


def listed(labels: np.ndarray) -> str:
    """Labels as text, whole numbers as ranges."""
    if labels.dtype.kind not in "iu":
        return ", ".join(map(str, labels.tolist()))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in captured_ranges(labels))
