"""The store of a run: labelled hidden states on disk, written region by region, and complete or not there.

A store is a zarr v3 folder that `xarray.open_zarr` opens: one variable a hook, dims (method, prompt, layer) and axes of
its own, most often (position, dim). Methods are selected by `sel({"method": name})`, since `sel` has a parameter of
that name. One file holds all of one (method, prompt, layer), which is what a write fills: one chunk or, of large ones,
a shard of many, so that a slice need not read it all. Activations compress by 8% only: compression is off.
Every chunk ends with a check sum (zarr's crc32c), checked as it is read; the attributes have theirs in the seal.

Everything is written to `<path>.partial`, which `finish` renames once each region is there; a run that was cut short
resumes there.
"""

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec

from mesa.errors import Occupied, Refused
from probe.experiment.journal import REQUEST
from probe.files import SEAL, JsonObject, difference, seal_of
from probe.run_folder import same_model
from probe.store import reader

_CODECS = (Crc32cCodec(),)
_REMEDY = "use --overwrite or another --out"
_COMPARED_LAST = ("first_token", "period")  # they follow from the word and the model
_NOT_COMPARED = (
    "created",
    "versions",
    SEAL,
    "left_out",
    REQUEST,
    "trained_length_by",
    "as_trained",
    "states_from",
    reader.TEXT_SOURCE,
    "quantization",
    "tokenizer_note",
)  # may differ between runs with the same numbers


@dataclass(frozen=True, kw_only=True)
class Template:
    """Labels and attributes of a store. axes: by hook its further dimensions, with their labels.

    attrs: provenance and config, with `trained_length` in tokens; those `not_compared` may differ as a run is resumed.
    Raises Refused for a dimension without labels or with repeated ones, another dtype, and without trained length.
    """

    methods: Sequence[str]
    prompts: Sequence[str]
    layers: Sequence[int]
    axes: Mapping[str, Mapping[str, Sequence[int]]]
    attrs: JsonObject
    dtype: str = "float32"
    not_compared: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Checks the labels."""
        hooks = {} if self.attrs.get("stages") and not self.axes else {"hook": [*self.axes]}  # scores come first there
        for name, values in {**self.labels, **hooks}.items():
            if len(values) == 0:
                raise Refused(f"nothing to store: no {name} is chosen")
            if len(set(values)) < len(values):
                raise Refused(f"the {name} labels {list(values)[:8]} repeat one")
        if self.dtype not in ("float32", "float16"):
            raise Refused(f"dtype {self.dtype!r} cannot be stored; use float32 or float16")
        if "trained_length" not in self.attrs:
            raise Refused("attrs has no trained_length (tokens)")

    @property
    def labels(self) -> dict[str, Sequence[Any]]:
        """The labels of each dimension."""
        own = {name: labels for axes in self.axes.values() for name, labels in axes.items()}
        return {name: getattr(self, f"{name}s") for name in reader.FILED} | own

    @property
    def regions(self) -> dict[str, tuple[int, ...]]:
        """The shape of a region, by hook."""
        return {hook: tuple(map(len, axes.values())) for hook, axes in self.axes.items()}

    @property
    def region_bytes(self) -> list[int]:
        """Bytes of the values of one region, a hook each."""
        return [math.prod(shape) * np.dtype(self.dtype).itemsize for shape in self.regions.values()]


def create(path: str | os.PathLike[str], expected: Template, *, overwrite: bool = False) -> None:
    """Writes an empty store at `<path>.partial`; `write` fills it, `finish` gives it its name.

    A partial store of the same config, labels, model and library versions is kept, to resume. With `overwrite` it is
    dropped, once there is room for the new one. A full store stays until `finish` and is an error without `overwrite`.
    Raises what `find_store` raises, and OSError where the disk has too little room.
    """
    path = Path(path)
    partial, existing = reader.partial_path(path), None if overwrite else find_store(path, expected)
    if existing == path:
        raise Occupied(f"{path} already holds a run with the same config; {_REMEDY}")
    if existing == partial:
        for cut_short in partial.rglob("*.partial"):  # zarr's, of an interrupted write
            cut_short.unlink()
        _check_disk(path, len(reader.missing_regions(partial)) * max(expected.region_bytes))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    freed = sum(file.stat().st_size for begun in _begun(path) for file in begun.rglob("*") if file.is_file())
    count = len(expected.methods) * len(expected.prompts) * len(expected.layers)
    _check_disk(path, count * sum(expected.region_bytes) - freed)
    discard(path)
    begun = _begun(path)[-1]
    with _disk_full(begun, removed=True):
        labels = xr.Dataset(coords={name: _plain(values) for name, values in expected.labels.items()})
        _to_zarr(labels.assign_attrs({**expected.attrs, SEAL: False}), begun)
        group = zarr.open_group(begun, mode="r+", use_consolidated=False)
        for hook, region in expected.regions.items():
            chunk, shard = reader.layout(region, np.dtype(expected.dtype).itemsize)
            group.create_array(
                hook,
                shape=(*(len(expected.labels[name]) for name in reader.FILED), *region),
                chunks=(1, 1, 1, *chunk),
                shards=None if shard is None else (1, 1, 1, *shard),
                dtype=expected.dtype,
                compressors=_CODECS,
                fill_value=np.nan,
                dimension_names=(*reader.FILED, *expected.axes[hook]),
                attributes={"long_name": hook, "units": "activation"},
            )
    begun.rename(partial)  # a partial store never has half a template


def find_store(path: Path, expected: Template) -> Path | None:
    """The store at `path` with this template: the partial one, else the full one, else None.

    A partial one has these library versions and fingerprints too; a full one is compared by the fingerprints it has.
    Raises FileExistsError, naming what differs, where there is only another.
    """
    refusal = None
    for store, kind in ((reader.partial_path(path), "an unfinished run"), (path, "a run")):
        is_partial = store != path
        if not store.exists():
            continue
        try:
            if not is_partial:
                reader.open_run(path)
            differing = _differing(store, expected, is_partial)
        except (OSError, ValueError, KeyError) as error:
            refusal = f"{store} exists and cannot be compared ({error}); {_REMEDY}"
            continue
        if differing is None:
            return store
        refusal = f"{path} already holds {kind} with another config: {differing} differs; {_REMEDY}"
    if refusal:
        raise Occupied(refusal)
    return None


def _differing(store: Path, expected: Template, is_partial: bool) -> str | None:
    """The first key, label or array in which a store differs from the template, in words."""
    group = zarr.open_group(store, mode="r", use_consolidated=False)
    stored, attrs = dict(group.attrs), expected.attrs
    if same_model(stored, attrs):  # its folder may be moved
        attrs = {**attrs, "model": stored["model"]}
    either, both = stored.keys() | attrs.keys(), stored.keys() & attrs.keys()
    compared = either - {*_NOT_COMPARED, *expected.not_compared} - ({*reader.FINGERPRINTS} - both)
    for key in sorted(compared, key=lambda key: (key in _COMPARED_LAST, key)):
        if key not in both or stored[key] != json.loads(json.dumps(attrs[key])):
            return difference(key, stored.get(key), attrs.get(key))
    if is_partial:
        if lacking := next((key for key in reader.FINGERPRINTS if key in attrs and key not in stored), None):
            return lacking
        then, now = (json.loads(str(versions.get("versions", "{}"))) for versions in (stored, attrs))
        if name := next((name for name in sorted({*then, *now}) if then.get(name) != now.get(name)), None):
            return f"the version of {name}"
    if (there := reader.variables(group)).keys() != expected.axes.keys():
        return difference("hooks", sorted(there), sorted(expected.axes))
    for name, values in expected.labels.items():
        stored_values, now = reader.stored_labels(group, name), _plain(values).tolist()
        if stored_values != now:
            return difference(name, stored_values, now)
    return "dtype" if any(array.dtype != expected.dtype for array in there.values()) else None


def write(path: str | os.PathLike[str], hook: str, method: str, prompt: str, layer: int, values: np.ndarray) -> None:
    """Writes one region, `values` over the hook's axes, of the store that `create` began at `path`.

    Raises Refused for a wrong label or shape and for values that are not finite or do not fit the store's dtype.
    """
    partial = reader.partial_path(Path(path))
    group = zarr.open_group(partial, mode="r+", use_consolidated=False)
    array, index = reader.stored_array(group, hook), []
    for name, label in zip(reader.FILED, (method, prompt, layer), strict=True):
        labels = reader.stored_labels(group, name)
        if label not in labels:
            raise Refused(f"{name} {label!r} is not in the store, which holds {labels}")
        index.append(labels.index(label))
    region = f"{hook} of method {method!r}, prompt {prompt!r}, layer {layer}"
    if values.shape != array.shape[3:]:
        raise Refused(f"{region} has shape {values.shape}, but the store holds {array.shape[3:]}")
    check_values(values, array.dtype, region)
    with _disk_full(partial, removed=False), zarr.config.set({"array.write_empty_chunks": True}):
        array[tuple(index)] = values.astype(array.dtype)


def check_values(values: np.ndarray, dtype: np.dtype, name: str) -> None:
    """Refused, with the name of the values, where some are not finite or beyond what `dtype` holds."""
    if count := int(np.count_nonzero(~np.isfinite(values))):
        raise Refused(
            f"{name} has {count} values that are not finite; run the model with a wider --dtype (float32, float64)"
        )
    largest = float(values.flat[np.argmax(np.abs(values))])
    if abs(largest) > float(np.finfo(dtype).max):
        raise Refused(
            f"{name} has the value {largest:g}, beyond {dtype.name}'s range; store it with --store-dtype float32"
        )


def write_group(path: str | os.PathLike[str], name: str, dataset: xr.Dataset, *, finished: bool = False) -> None:
    """Writes group `EVALUATION` (scores by length) or `TOKENS` (`id` and `text` by prompt and position).

    Into the partial store, else, or if `finished`, into the finished one. The group appears under its name only when
    all of it is written; a former one is replaced.
    """
    path = Path(path)
    store = reader.partial_path(path) if reader.partial_path(path).exists() and not finished else path
    target = store / name
    unfinished = path.with_name(f"{path.name}.{name}")
    _remove(unfinished)
    texts = {label: _plain(coord.values) for label, coord in dataset.coords.items() if coord.dtype.kind in "UT"}
    with _disk_full(unfinished, removed=True):
        _to_zarr(dataset.assign_coords(texts), unfinished)
        _seal(unfinished)
        _remove(target)
        unfinished.rename(target)
    if store == path:
        _consolidate(path)


def finish(path: str | os.PathLike[str]) -> None:
    """Marks the store complete and gives it its name; Refused, and nothing renamed, if a region is missing."""
    path = Path(path)
    partial, former = reader.partial_path(path), path.parent / f"{path.name}.former"
    if missing := reader.missing_regions(partial):
        raise Refused(f"{path} cannot be finished: {reader.list_missing(missing)}")
    _seal(partial)
    _remove(former)
    if path.exists():
        path.rename(former)
    partial.rename(path)
    _remove(former)


def discard(path: str | os.PathLike[str]) -> None:
    """Removes what `create` and `write` have started and `finish` has not named; a full store stays."""
    for begun in _begun(Path(path)):
        _remove(begun)


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a store, started or complete."""
    discard(path)
    _remove(Path(path))


def _begun(path: Path) -> tuple[Path, ...]:
    """The partial store, and its template as it is written."""
    return reader.partial_path(path), path.with_name(path.name + ".begun")


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _to_zarr(dataset: xr.Dataset, path: Path) -> None:
    encoding: Any = {name: {"compressors": _CODECS} for name in dataset.variables}
    dataset.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding, write_empty_chunks=True)


def _seal(path: Path) -> None:
    zarr.open_group(path, mode="r+", use_consolidated=False).attrs[SEAL] = seal_of(path)
    _consolidate(path)


def _consolidate(path: Path) -> None:
    """For xarray's own `open_zarr`, which warns without."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(path)


def _plain(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Labels as integers or as Python strings (numpy's fixed-width strings have no zarr v3 specification)."""
    array = np.asarray(values)
    return array if array.dtype.kind in "iu" else array.astype(str).astype(object)


def _check_disk(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        need, have = (f"{size / 2**20:.1f} MiB" for size in (needed, free))
        raise OSError(errno.ENOSPC, f"{path} needs {need}, {have} are free; keep fewer layers, positions or dims")


@contextmanager
def _disk_full(path: Path, *, removed: bool) -> Iterator[None]:
    """Turns a full disk into a one-line error; removes what was being written, or leaves it to resume."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        if removed:
            _remove(path)
        what = f"removed the unfinished {path}" if removed else f"{path} is kept as it is"
        message = f"the disk is full: {what}; free some space or use another --out"
        raise OSError(errno.ENOSPC, message) from error
