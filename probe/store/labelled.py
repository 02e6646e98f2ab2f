"""Arrays whose `sel(method="origin")` selects a method: xarray's own takes that for a way to fill in labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar, cast

import numpy as np
import xarray as xr

from probe.store.select import listed

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
