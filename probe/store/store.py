"""The store of a run: labelled hidden states on disk, written region by region, never half-written and whole-looking.

A store is a zarr v3 folder that `xarray.open_zarr` opens: one variable a hook, dims (method, prompt, layer, position,
dim). Methods are selected by `sel({"method": name})`, since `sel` has a parameter of that name. One file holds all
positions and dims of one (method, prompt, layer), which is what a write fills: one chunk or, of large ones, a shard of
many, so that a slice need not read it all (layout.py). Activations compress by 8% only: compression is off.
Every chunk ends with a check sum (zarr's crc32c), so that a damaged one is found when it is read; the attributes have
theirs in the seal (seal.py).

Everything is written to `<path>.partial`, which `finish` renames once each region is there; a run that was cut short
goes on in it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec

from probe.files import difference
from probe.store.layout import layout
from probe.store.place import Remote, as_store, place_of, zarr_place
from probe.store.reader import (
    DIMS,
    EVALUATION,
    FORCED,
    MEASURED,
    TOKENS,
    differing_key,
    differing_origin,
    forceable,
    is_half,
    list_missing,
    missing_regions,
    open_run,
    partial_path,
    stored_array,
)
from probe.store.seal import SEAL, seal_of

CHECKED = (Crc32cCodec(),)
_REMEDY = "use --overwrite or another --out"


def create(
    path: str | os.PathLike[str],
    *,
    methods: Sequence[str],
    prompts: Sequence[str],
    layers: Sequence[int],
    positions: Sequence[int],
    dims: Sequence[int],
    hooks: Sequence[str],
    dtype: str = "float32",
    attrs: Mapping[str, Any],
    overwrite: bool = False,
    force: bool = False,
) -> None:
    """Makes the empty template of a store at `<path>.partial`; `write` fills it, `finish` gives it its name.

    attrs: the run's provenance and config (texts and numbers); needs `trained_length` in tokens.
    A left-over partial store of the same config, labels, model and library versions is kept, to go on with; with
    `force` model and versions may differ, which its attributes then tell (`forced`). With `overwrite` it is dropped,
    once there is room for the new one. A whole one stays until `finish` and is an error without `overwrite`.
    Raises what `found` raises, OSError (too little disk) and ValueError (an empty or repeated coordinate).
    """
    path = as_store(place_of(path))
    coords: dict[str, Sequence[Any]] = dict(zip(DIMS, (methods, prompts, layers, positions, dims), strict=True))
    _check_template(coords, hooks, dtype, attrs)
    there = None if overwrite else _found(path, coords, hooks, dtype, attrs, force)
    if there == path:
        raise FileExistsError(f"{path} already holds a run with the same config; {_REMEDY}")
    partial = partial_path(path)
    shape = tuple(len(values) for values in coords.values())
    region = int(np.prod(shape[3:])) * np.dtype(dtype).itemsize
    if there == partial:
        for cut in () if isinstance(partial, Remote) else partial.rglob("*.partial"):  # zarr's, of a chunk cut short
            cut.unlink()
        _record_forced(partial, attrs)
        _check_disk(path, len(missing_regions(partial)) * region)
        return
    if isinstance(path, Remote):
        path.remove()  # there is one place: what is there makes room, also a whole one
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_disk(path, len(hooks) * int(np.prod(shape[:3])) * region - sum(map(_size, _begun(path))))
        discard(path)
    begun = _begun_path(path)
    chunk, shard = layout(shape[3], shape[4], np.dtype(dtype).itemsize)
    with _disk_full(begun, removed=True):
        template = xr.Dataset(coords={name: _plain(values) for name, values in coords.items()})
        template.attrs = {**attrs, SEAL: False}
        template.to_zarr(zarr_place(begun), zarr_format=3, consolidated=False, encoding=_checked(template))
        group = zarr.open_group(zarr_place(begun), mode="r+", use_consolidated=False)
        for hook in hooks:
            group.create_array(
                hook,
                shape=shape,
                chunks=(1, 1, 1, *chunk),
                shards=None if shard is None else (1, 1, 1, *shard),
                dtype=dtype,
                compressors=CHECKED,
                fill_value=np.nan,
                dimension_names=DIMS,
                attributes={"long_name": hook, "units": "activation"},
            )
    if not isinstance(begun, Remote):
        begun.rename(partial)


def found(
    path: str | os.PathLike[str],
    *,
    methods: Sequence[str],
    prompts: Sequence[str],
    layers: Sequence[int],
    positions: Sequence[int],
    dims: Sequence[int],
    hooks: Sequence[str],
    dtype: str = "float32",
    attrs: Mapping[str, Any],
    force: bool = False,
) -> Path | None:
    """The store at `path` that has this config and these labels: the partial one, else the whole one; None: neither.

    A partial one has these library versions and fingerprints too; a whole one is compared by the fingerprints it has.
    Raises FileExistsError, naming what differs, where there is only another.
    """
    labels = (methods, prompts, layers, positions, dims)
    coords: dict[str, Sequence[Any]] = dict(zip(DIMS, labels, strict=True))
    return _found(as_store(place_of(path)), coords, hooks, dtype, attrs, force)


def _found(
    path: Path,
    coords: Mapping[str, Sequence[Any]],
    hooks: Sequence[str],
    dtype: str,
    attrs: Mapping[str, Any],
    force: bool,
) -> Path | None:
    refused = None
    for store, holds in ((partial_path(path), "an unfinished run"), (path, "a run")):
        if not store.exists() or (store != path and is_half(store, hooks)):
            continue
        try:
            if store == path:
                open_run(path)
            key = _differing(store, coords, hooks, dtype, attrs, unfinished=store != path, force=force)
            by_force = store != path and not _differing(store, coords, hooks, dtype, attrs, unfinished=True, force=True)
        except (OSError, ValueError, KeyError) as error:
            if isinstance(store, Remote) and isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # nothing is known of it, which is no reason to give it up
            refused = f"{store} exists and cannot be compared ({error}); {_REMEDY}"
            continue
        if key is None:
            return store
        refused = f"{path} already holds {holds} with another config: {key} differs; {_REMEDY}"
        refused += "; --force goes on and records it" if by_force else ""
    if refused:
        raise FileExistsError(refused)
    return None


def _differing(
    store: Path,
    coords: Mapping[str, Sequence[Any]],
    hooks: Sequence[str],
    dtype: str,
    attrs: Mapping[str, Any],
    *,
    unfinished: bool,
    force: bool,
) -> str | None:
    """The first key, label or array in which a store is not as `create` would make it, in words."""
    group = zarr.open_group(zarr_place(store, reads=True), mode="r", use_consolidated=False)
    stored = dict(group.attrs)
    if force and unfinished:
        stored |= forceable(stored, attrs)
    if key := differing_key(stored, attrs):
        return difference(key, stored.get(key), attrs.get(key))
    if unfinished and (key := differing_origin(stored, attrs)):
        return key
    for name, values in coords.items():
        there, now = np.asarray(stored_array(group, name)[:]).tolist(), _plain(values).tolist()
        if there != now:
            return difference(name, there, now)
    if (there := {*group.array_keys()} - {*DIMS}) != {*hooks}:
        return difference("hooks", sorted(there), sorted(hooks))
    return "dtype" if any(stored_array(group, hook).dtype != dtype for hook in hooks) else None


def _record_forced(partial: Path, attrs: Mapping[str, Any]) -> None:
    """Writes into the store what changed since it was begun, and has been found to be asked for."""
    group = zarr.open_group(zarr_place(partial), mode="r+", use_consolidated=False)
    stored = dict(group.attrs)
    if changed := forceable(stored, attrs):
        former = {key: stored.get(key) for key in changed}
        group.attrs.update({**changed, FORCED: json.dumps([*json.loads(str(stored.get(FORCED, "[]"))), former])})


def write(path: str | os.PathLike[str], hook: str, method: str, prompt: str, layer: int, values: np.ndarray) -> None:
    """Writes one region, `values` (position, dim), of the store that `create` began at `path`.

    Raises ValueError for a wrong label or shape and for values that are not finite or do not fit the store's dtype.
    """
    partial = partial_path(as_store(place_of(path)))
    group = zarr.open_group(zarr_place(partial), mode="r+", use_consolidated=False)
    array = stored_array(group, hook)
    place = f"{hook} of method {method!r}, prompt {prompt!r}, layer {layer}"
    index = tuple(_index(group, name, label) for name, label in zip(DIMS, (method, prompt, layer), strict=False))
    if values.shape != array.shape[3:]:
        raise ValueError(f"{place} has shape {values.shape}, but the store holds {array.shape[3:]} (position, dim)")
    check_values(values, array.dtype, place)
    with _disk_full(partial, removed=False), zarr.config.set({"array.write_empty_chunks": True}):
        array[index] = values.astype(array.dtype)


def write_evaluation(path: str | os.PathLike[str], dataset: xr.Dataset) -> None:
    """Writes the scores by length as group `evaluation`: into the partial store, else into the finished one.

    The group appears under its name only when all of it is written; a former one is replaced. Each score's attribute
    `measured` says how many of its values are numbers: a length that a method lacks has NaN.
    """
    counted = dataset.copy()
    for scores in counted.data_vars.values():
        scores.attrs = {**scores.attrs, MEASURED: int(np.isfinite(scores.values).sum())}
    _write_group(as_store(place_of(path)), EVALUATION, counted)


def write_tokens(path: str | os.PathLike[str], dataset: xr.Dataset) -> None:
    """Writes the prompts' tokens as group `tokens`, as `write_evaluation` does: `id` and `text` (prompt, position)."""
    _write_group(as_store(place_of(path)), TOKENS, dataset)


def _write_group(path: Path, name: str, dataset: xr.Dataset) -> None:
    """A group of the partial store, else of the finished one; under its name only when all of it is written."""
    store = partial_path(path) if partial_path(path).exists() else path
    target = store / name
    unfinished = target if isinstance(target, Remote) else path.with_name(f"{path.name}.{name}")
    _remove(unfinished)
    labelled = dataset.assign_coords(
        {label: _plain(coord.values) for label, coord in dataset.coords.items() if coord.dtype.kind in "UT"}
    )
    with _disk_full(unfinished, removed=True):
        labelled.to_zarr(zarr_place(unfinished), zarr_format=3, consolidated=False, encoding=_checked(labelled))
        _seal(unfinished)
        if not isinstance(unfinished, Remote):
            shutil.rmtree(target, ignore_errors=True)
            unfinished.rename(target)
    if store == path:
        _consolidate(path)


def _checked(dataset: xr.Dataset) -> dict[Any, dict[str, Any]]:
    """How all variables are to be stored: with check sums."""
    return {name: {"compressors": CHECKED} for name in dataset.variables}


def discard(path: str | os.PathLike[str]) -> None:
    """Removes what `create` and `write` have begun and `finish` has not named; a whole store stays."""
    for begun in _begun(as_store(place_of(path))):
        if not isinstance(begun, Remote) or begun.exists():
            _remove(begun)


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a store, begun or whole."""
    discard(path)
    _remove(as_store(place_of(path)))


def _remove(place: Path) -> None:
    if isinstance(place, Remote):
        place.remove()
    else:
        shutil.rmtree(place, ignore_errors=True)


def _seal(group: Path) -> None:
    zarr.open_group(zarr_place(group), mode="r+", use_consolidated=False).attrs[SEAL] = seal_of(group)
    _consolidate(group)


def finish(path: str | os.PathLike[str]) -> None:
    """Marks the store complete and gives it its name; ValueError, and nothing renamed, if a region is missing."""
    path = as_store(place_of(path))
    partial = partial_path(path)
    missing = missing_regions(partial)
    if missing:
        raise ValueError(f"{path} cannot be finished: {list_missing(missing)}")
    _seal(partial)
    if isinstance(partial, Remote):
        return
    former = path.with_name(path.name + ".former")
    shutil.rmtree(former, ignore_errors=True)
    if path.exists():
        path.rename(former)
    partial.rename(path)
    shutil.rmtree(former, ignore_errors=True)


def _begun(path: Path) -> tuple[Path, Path]:
    """What `discard` removes."""
    return partial_path(path), _begun_path(path)


def _size(folder: Path) -> int:
    """Bytes of the files in a folder; 0 for none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _begun_path(path: Path) -> Path:
    """Where a template is made, so that a partial store is never half a template."""
    return partial_path(path) if isinstance(path, Remote) else path.with_name(path.name + ".begun")


def _plain(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Labels as integers or as Python strings (numpy's fixed-width strings have no zarr v3 specification)."""
    array = np.asarray(values)
    return array if array.dtype.kind in "iu" else array.astype(str).astype(object)


def _index(group: zarr.Group, name: str, label: str | int) -> int:
    labels = np.asarray(stored_array(group, name)[:]).tolist()
    if label not in labels:
        raise ValueError(f"{name} {label!r} is not in the store, which holds {labels}")
    return labels.index(label)


def _check_template(coords: Mapping[str, Sequence[Any]], hooks: Sequence[str], dtype: str, attrs: Mapping) -> None:
    for name, values in (*coords.items(), ("hook", hooks)):
        if len(values) == 0:
            raise ValueError(f"nothing to store: no {name} is chosen")
        if len(set(values)) < len(values):
            raise ValueError(f"the {name} labels {list(values)[:8]} repeat one")
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype {dtype!r} cannot be stored; use float32 or float16")
    if "trained_length" not in attrs:
        raise ValueError("attrs has no trained_length (tokens)")


def check_values(values: np.ndarray, dtype: np.dtype, place: str) -> None:
    """ValueError for values that are not finite, or beyond what `dtype` holds; `place` names them."""
    unfit = int(np.count_nonzero(~np.isfinite(values)))
    if unfit:
        raise ValueError(
            f"{place} has {unfit} values that are not finite; run the model with a wider --dtype (float32, float64)"
        )
    largest = float(values.flat[np.argmax(np.abs(values))])
    if abs(largest) > float(np.finfo(dtype).max):
        raise ValueError(
            f"{place} has the value {largest:g}, beyond {dtype.name}'s range; store it with --store-dtype float32"
        )


def _consolidate(store: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(zarr_place(store))


def _check_disk(path: Path, needed: int) -> None:
    if isinstance(path, Remote):
        return
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        need, have = (f"{size / 2**20:.1f} MiB" for size in (needed, free))
        raise OSError(errno.ENOSPC, f"{path} needs {need}, {have} are free; keep fewer layers, positions or dims")


@contextmanager
def _disk_full(place: Path, *, removed: bool) -> Iterator[None]:
    """Turns a full disk into a one-line error; removes what was being written, or leaves it to go on with."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        if removed:
            _remove(place)
        what = f"removed the unfinished {place}" if removed else f"{place} is kept as it is"
        message = f"the disk is full: {what}; free some space or use another --out"
        raise OSError(errno.ENOSPC, message) from error
