"""Selections from a store: arrays whose `sel(method="origin")` selects a method, and hooks' values by label."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

import numpy as np
import xarray as xr

from mesa.errors import Refused
from probe.options import Ranges
from probe.store.reader import StoredRun

T = TypeVar("T")
_FILLS = ("nearest", "pad", "ffill", "backfill", "bfill")


class _Labelled:
    """What arrays and datasets share."""

    __slots__ = ()

    def sel(
        self,
        indexers: Mapping[Any, Any] | None = None,
        method: Any = None,
        tolerance: Any = None,
        drop: bool = False,
        **labels: Any,
    ) -> Self:
        """As in xarray, and by `method`, one or several; KeyError names the label that is not there."""
        if _is_label(method):
            indexers, method, labels = {**(indexers or {}), **labels, "method": method}, None, {}
        own: Any = super()
        try:
            return own.sel(indexers, method, tolerance, drop, **labels)
        except KeyError as error:
            problem = next(_missing(self, {**(indexers or {}), **labels}), None)
            raise (KeyError(problem) if problem else error) from None


class LabelledArray(_Labelled, xr.DataArray):
    """A DataArray in which `method` is a dim like any other."""

    __slots__ = ()


class LabelledDataset(_Labelled, xr.Dataset):
    """A Dataset in which `method` is a dim like any other, and in whose arrays it is."""

    __slots__ = ()

    def _construct_dataarray(self, name: Any) -> LabelledArray:
        return LabelledArray(super()._construct_dataarray(name))


def labelled(values: T) -> T:
    """A DataArray as a `LabelledArray`, a Dataset as a `LabelledDataset`, values and labels the same; else as it is."""
    if isinstance(values, xr.Dataset):
        return cast(T, LabelledDataset(values.data_vars, values.coords, values.attrs))
    return cast(T, LabelledArray(values)) if isinstance(values, xr.DataArray) else values


def _is_label(method: Any) -> bool:
    """Whether it chooses from the dim `method`, and does not say how to fill in labels."""
    return not (method is None or (isinstance(method, str) and method in _FILLS))


def _missing(values: Any, wanted: Mapping[Any, Any]) -> Iterator[str]:
    """Each label that is not there, with those that are, in words."""
    for dim, labels in wanted.items():
        if dim in values.indexes and not isinstance(labels, slice):
            there = values[dim].values
            for label in np.asarray(labels).ravel().tolist():
                if label not in there.tolist():
                    yield f"{dim} {label!r} is not there; there is {listed(there)}"


_PROVENANCE = ("model", "model_revision")


def hook_values(run: StoredRun, hook: str | None = None) -> xr.DataArray:
    """The hidden states of a run at one hook.

    Args:
        run: An opened run.
        hook: E.g. 'resid_post'. Default: the run's first.

    Returns:
        (method, prompt, layer, position, dim), or with other axes after the layer, where the hook has these, and the
        model's name and revision as attributes.

    Raises:
        Refused: The hook was not captured.

    Examples:
        >>> hidden = probe.hook_values(probe.open_run("runs/example"))
        >>> hidden.sel(method="origin", prompt="repeated", layer=2).shape
        (512, 256)
    """
    hooks = hooks_of(run)
    if not hooks:
        raise Refused(f"{run.path} holds no hidden states yet; the same `mesa-lens probe` captures them at its end")
    hook = hooks[0] if hook is None else hook
    if hook not in hooks:
        raise Refused(f"hook {hook!r} was not captured; captured: {', '.join(hooks)}")
    values, attrs = run.hidden[hook], run.hidden.attrs
    own = {name: str(name).removesuffix(f"_{hook}") for name in values.dims if str(name).endswith(f"_{hook}")}
    return values.rename(own).assign_attrs({key: attrs[key] for key in _PROVENANCE if key in attrs})


def hooks_of(run: StoredRun) -> list[str]:
    """The captured hooks in the order of the request: a store lists them by the alphabet."""
    stored = [str(name) for name in run.hidden.data_vars]
    requested = json.loads(run.hidden.attrs.get("spec", "{}")).get("hooks", stored)
    return sorted(stored, key=lambda hook: requested.index(hook) if hook in requested else len(requested))


def reference_method(methods: Sequence[str]) -> str:
    """The method that thresholds are read from: Origin, or the first."""
    return "origin" if "origin" in methods else methods[0]


def one_prompt(hidden: xr.DataArray, prompt: str | None = None) -> xr.DataArray:
    """The values on one prompt (default: the first); Refused for an unknown one."""
    name = str(hidden["prompt"].values[0]) if prompt is None else prompt
    check_labels(hidden, "prompt", [name])
    return hidden.sel(prompt=name)


def check_labels(values: xr.DataArray | xr.Dataset, dim: str, wanted: Sequence[object]) -> None:
    """Refused for the first of `wanted` that is not a label of `dim`."""
    labels = values[dim].values.tolist()
    for label in wanted:
        if label not in labels:
            raise Refused(f"{dim} {label!r} was not captured; captured: {listed(values[dim].values)}")


def check_pairs(hidden: xr.DataArray, pairs: Sequence[tuple[int, int]]) -> None:
    """Refused for the first (layer, dim) that was not captured."""
    for layer, dim in pairs:
        check_labels(hidden, "layer", [layer])
        check_labels(hidden, "dim", [dim])


def in_ranges(values: xr.DataArray, dim: str, ranges: Ranges | None) -> xr.DataArray:
    """The values whose `dim` lies in the half-open `ranges`; Refused if one of a range was not captured."""
    if ranges is None:
        return values
    if dim not in values.dims:
        raise Refused(f"{values.name} has no {dim}s; it is by {', '.join(map(str, values.dims))}")
    labels = values[dim].values
    inside = np.zeros(len(labels), dtype=bool)
    for start, stop in ranges:
        in_range = (labels >= start) & (labels < stop)
        if in_range.sum() < stop - start:
            raise Refused(f"{dim}s {start}-{stop - 1} were not all captured; captured: {listed(labels)}")
        inside |= in_range
    return values.isel({dim: np.flatnonzero(inside)})


def listed(labels: np.ndarray) -> str:
    """Labels as text, integers as ranges."""
    if labels.dtype.kind not in "iu":
        return ", ".join(map(str, labels.tolist()))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in captured_ranges(labels))


def run_bounds(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each position, the index range [start, stop) of the run of consecutive positions it is in."""
    edges = np.concatenate([[0], np.flatnonzero(np.diff(position) != 1) + 1, [len(position)]])
    lengths = np.diff(edges)
    return np.repeat(edges[:-1], lengths), np.repeat(edges[1:], lengths)


def captured_ranges(position: np.ndarray) -> list[tuple[int, int]]:
    """The runs of consecutive positions, as (first, last) with the last included."""
    start, stop = run_bounds(position)
    return [(int(position[a]), int(position[b - 1])) for a, b in sorted(set(zip(start, stop, strict=True)))]
