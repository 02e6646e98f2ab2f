"""A store on disk as it is read: its regions, a file for each (method, prompt, layer), and what is selected of them."""

import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import google_crc32c
import numpy as np
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing
from zarr.codecs import Crc32cCodec

from mesa.errors import NotFound, Refused
from probe.files import SEAL, seal_of
from probe.options import Ranges
from probe.run_folder import PROBE

FILED = ("method", "prompt", "layer")
"""The first dimensions of every variable; a region holds what has one label of each."""
WHOLE = 64 * 2**20
"""Bytes up to which a region is one chunk: it is read about as fast as a slice of it."""
_CHUNK = (1024, 256)
"""Positions and dims of a chunk of larger regions, about: half a MiB in float16; of further axes before them one.

Neither one dim over all positions nor one position over all dims reads much more than itself (benchmarks/slices.py).
"""
SUM, _ENTRY = 4, 16
"""Bytes of a check sum, and of a chunk's entry in the index of its file."""


Shape = tuple[int, ...]


def layout(region: Shape, itemsize: int) -> tuple[Shape, Shape | None]:
    """Shape of a region's chunks, and of the shard that holds them; None: the region is one chunk."""
    if math.prod(region) * itemsize <= WHOLE:
        return region, None
    about = (*(1,) * (len(region) - len(_CHUNK)), *_CHUNK)[-len(region) :]
    counts = [math.ceil(size / each) for size, each in zip(region, about, strict=True)]
    chunk = tuple(math.ceil(size / count) for size, count in zip(region, counts, strict=True))
    return chunk, tuple(size * count for size, count in zip(chunk, counts, strict=True))


def is_label(name: str, array: zarr.Array) -> bool:
    """Whether the array holds the labels of the dimension of its name."""
    return getattr(array.metadata, "dimension_names", None) == (name,)


def variables(group: zarr.Group) -> dict[str, zarr.Array]:
    """The arrays of a store that are not labels, by name."""
    return {name: array for name, array in sorted(group.arrays()) if not is_label(name, array)}


def region_bytes(array: zarr.Array) -> int:
    """Size of a full region's file: nothing is compressed."""
    chunk = math.prod(array.chunks) * array.dtype.itemsize
    if array.shards is None:
        return chunk + (SUM if array.compressors else 0)
    count = math.prod(array.shards) // math.prod(array.chunks)
    return count * (chunk + SUM + _ENTRY) + SUM


def stored_array(group: zarr.Group, name: str) -> zarr.Array:
    """The array `name` of a store; Refused lists those that it holds."""
    array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise Refused(f"{name!r} is not in the store, which holds {sorted(group.array_keys())}")
    return array


def stored_labels(group: zarr.Group, name: str) -> list:
    """The labels of a dimension."""
    return np.asarray(stored_array(group, name)[:]).tolist()


def missing_regions(store: Path) -> list[str]:
    """The regions without a file of the right size: as nothing is compressed, a region cut short shows."""
    if not (store / "zarr.json").exists():
        return ["everything"]
    return [
        f"{hook} of method {method!r}, prompt {prompt!r}, layer {layer}"
        for hook, method, prompt, layer, _, is_complete in _regions(store)
        if not is_complete
    ]


def list_missing(missing: Sequence[str]) -> str:
    """What `missing_regions` returns, in one line; empty if nothing is missing."""
    return f"{len(missing)} region(s) missing or cut short, the first is {missing[0]}" if missing else ""


def complete_passes(store: Path) -> set[tuple[str, str]]:
    """The (method, prompt) pairs all of whose regions are complete."""
    regions = list(_regions(store))
    return {region[1:3] for region in regions} - {region[1:3] for region in regions if not region[-1]}


def region_sums(store: Path) -> Iterator[bytes]:
    """The check sum at the end of every region's file, which changes with its values.

    A sharded file ends with the sum of its index alone: its time of writing follows.
    """
    names = [name for *_, name, _ in _regions(store)]
    for path in map(store.joinpath, names):
        with path.open("rb") as file:
            file.seek(-SUM, io.SEEK_END)
            yield file.read(SUM)
        if path.stat().st_size > WHOLE:
            yield str(path.stat().st_mtime_ns).encode()


def _regions(store: Path) -> Iterator[tuple[str, str, str, int, str, bool]]:
    """Hook, method, prompt, layer, file name of every region, and whether the file has the right size."""
    group = zarr.open_group(store, mode="r", use_consolidated=False)
    labels = [stored_labels(group, name) for name in FILED]
    for hook, array in variables(group).items():
        size = region_bytes(array)
        for index in np.ndindex(*map(len, labels)):
            name = "/".join([hook, "c", *map(str, index), *"0" * (array.ndim - len(index))])
            path = store / name
            stored = path.stat().st_size if path.exists() else None
            method, prompt, layer = (names[i] for names, i in zip(labels, index, strict=True))
            yield hook, method, prompt, layer, name, stored == size


AGAIN = "capture it again with --overwrite"
_SLICES = 16
"""Runs of consecutive indices that are read one by one; of more, all between the first and the last."""


def check_complete(store: Path, groups: tuple[str, ...]) -> None:
    """Refused where a store, or one of its groups, has other attributes than when it was sealed.

    And where a chunk is missing of labels, or of an array in one of the groups: zarr would fill it in. An unfinished
    store has no seal.
    """
    for place in (store, *(store / name for name in groups)):
        group = zarr.open_group(place, mode="r", use_consolidated=False)
        if place == store and not group.attrs.get(SEAL):
            return
        if group.attrs.get(SEAL) != seal_of(place):
            whose = "its" if place == store else f"its {place.name}'s"
            raise Refused(f"{whose} attributes are not those that were sealed")
        for name, array in sorted(group.arrays()):
            if (place != store or is_label(name, array)) and array.nchunks_initialized < array.nchunks:
                raise Refused(f"a chunk of {name} is missing")


class _CheckedArray(BackendArray):
    """A variable, checked as its values are read: Refused, naming store and array."""

    def __init__(self, values: zarr.Array, path: Path, name: str) -> None:
        self.values, self.path, self.name = values, path, name
        self.shape, self.dtype = values.shape, values.dtype
        is_chunk = values.chunks[len(FILED) :] == values.shape[len(FILED) :]
        self.is_plain = is_chunk and values.compressors == (Crc32cCodec(),)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        try:
            is_basic = not any(isinstance(part, np.ndarray) for part in key)
            if self.is_plain and all(isinstance(at, int | np.integer) for at in key[: len(FILED)]):
                read = _read_region(self.path / self.name, self.values, key)
            elif self.values.shards is not None:
                read = _read_slices(self.values, key)
            else:
                read = np.asarray(self.values[key] if is_basic else self.values.oindex[key])
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            if not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            raise Refused(f"{self.path}: {self.name} is damaged ({reason}); {AGAIN}") from error
        if not _all_finite(read):
            raise Refused(f"{self.path}: {self.name} is damaged (not all values are finite); {AGAIN}")
        return read


def _read_region(folder: Path, values: zarr.Array, key: tuple[Any, ...]) -> np.ndarray:
    """`values.oindex[key]` in a region that is one chunk: in half of zarr's CPU time, which copies it once more."""
    inner = values.shape[len(FILED) :]
    file = folder.joinpath("c", *map(str, key[: len(FILED)]), *"0" * len(inner))
    content = np.fromfile(file, np.uint8)
    if len(content) != region_bytes(values):
        raise ValueError(f"{file.relative_to(folder)} has {len(content)} bytes, not {region_bytes(values)}")
    chunk = content[:-SUM]
    if google_crc32c.value(chunk) != int.from_bytes(content[-SUM:].tobytes(), "little"):  # type: ignore[arg-type]
        raise ValueError("the check sum is another than when it was written")
    read = chunk.view(values.dtype.newbyteorder("<")).reshape(inner)
    for axis in reversed(range(len(inner))):
        read = read[(slice(None),) * axis + (key[len(FILED) + axis],)]
    return read


def _read_slices(values: zarr.Array, key: tuple[Any, ...]) -> np.ndarray:
    """`values.oindex[key]`, read by slices: within a shard, zarr reads indices value by value."""
    at = next((axis for axis, part in enumerate(key) if isinstance(part, np.ndarray)), None)
    if at is None:
        return np.asarray(values[key])
    indices, axis = key[at], sum(not isinstance(part, int | np.integer) for part in key[:at])
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    if not indices.size or len(runs) > _SLICES:
        first, stop = (indices.min(), indices.max() + 1) if indices.size else (0, 0)
        return np.take(_read_slices(values, (*key[:at], slice(first, stop), *key[at + 1 :])), indices - first, axis)
    slices = [slice(int(run[0]), int(run[-1]) + 1) for run in runs]
    return np.concatenate([_read_slices(values, (*key[:at], part, *key[at + 1 :])) for part in slices], axis)


def _all_finite(values: np.ndarray) -> bool:
    """Whether all values are finite; of float16 by their bits, which is many times faster."""
    if values.dtype != np.float16:
        return bool(np.isfinite(values).all())
    return bool((np.ascontiguousarray(values).view(np.uint16) & 0x7FFF).max(initial=0) < 0x7C00)


STORE = "store.zarr"
"""The store's name in the folder of a run."""
EVALUATION = "evaluation"
"""The group with the scores by length."""
TOKENS = "tokens"
"""The group with the tokens of the prompts."""
FINGERPRINTS = ("inputs", "weights", "config", "tokenizer")
"""Attributes that identify texts, prompts and the model."""
TEXT_SOURCE = "text_source"
"""Attribute with the texts' names and counts, as JSON."""
_DAMAGE = (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)  # of the decompressor


@dataclass(frozen=True)
class StoredRun:
    """An opened store. `hidden`: one variable a hook, read from disk when used; `evaluation`: scores by length.

    The text of every token is `hidden`'s coordinate `token` (prompt, position), where the store has tokens.
    """

    path: Path
    hidden: xr.Dataset
    evaluation: xr.Dataset | None

    @property
    def folder(self) -> Path:
        """Where summary, report and derived values lie: next to the store."""
        return self.path.parent

    @property
    def trained_length(self) -> int:
        """The trained window M, in tokens."""
        return int(self.hidden.attrs["trained_length"])


def open_run(path: str | os.PathLike[str]) -> StoredRun:
    """Opens a run folder or its store.

    Raises FileNotFoundError for a missing path, Refused for a folder that is not a store, or an incomplete or
    damaged one.
    """
    path = Path(path)
    inner = store_of(path)
    if inner.exists() or partial_path(inner).exists():
        path = inner
    if not path.exists():
        if partial_path(path).exists():
            what = list_missing(missing_regions(partial_path(path))) or "it was not finished"
            raise Refused(f"{partial_path(path)} is not finished: {what}; the same `mesa-lens probe` continues")
        raise NotFound(f"no run at {path}; make one with `mesa-lens probe`")
    if not (path / "zarr.json").exists():
        if any(journal.exists() for journal in PROBE.journal_paths(path)):
            raise Refused(f"{path} holds scores, and no store yet; the same `mesa-lens probe` continues")
        raise Refused(f"{path} is not a store: it has no zarr.json; give the folder that `mesa-lens probe` wrote")
    with _one_line_errors(path):
        groups = tuple(name for name in (EVALUATION, TOKENS) if (path / name).exists())
        check_complete(path, groups)
        hidden = _variables(path)
        evaluation, tokens = (
            _variables(path, name).load() if name in groups else None for name in (EVALUATION, TOKENS)
        )
    lacking = [name for name in (SEAL, "trained_length") if name not in hidden.attrs]
    if lacking := [*lacking, *(dim for dim in FILED if dim not in hidden)]:
        raise Refused(f"{path} is not a store of hidden states: it has no {lacking[0]}")
    with _one_line_errors(path):
        missing = missing_regions(path)
    if missing or not hidden.attrs[SEAL]:
        raise Refused(f"{path} is incomplete: {list_missing(missing) or 'it was not finished'}; {AGAIN}")
    hidden, arrays = _object_labels(hidden), variables(zarr.open_group(path, mode="r", use_consolidated=False))
    lazy = {name: indexing.LazilyIndexedArray(_CheckedArray(array, path, name)) for name, array in arrays.items()}
    hidden = hidden.assign({name: hidden[name].copy(data=values) for name, values in lazy.items()})
    if tokens is not None:
        labels = ("prompt", "position")
        hidden = hidden.assign_coords(token=(labels, tokens["text"].transpose(*labels).values.astype(object)))
    if evaluation is not None:
        evaluation = _object_labels(evaluation)
        evaluation.attrs.pop(SEAL, None)
    return StoredRun(path, hidden, evaluation)


def _variables(path: Path, group: str | None = None) -> xr.Dataset:
    """What a store, or its group, holds: by name, since a folder lists its files in any order."""
    dataset = xr.open_zarr(path, group=group, consolidated=False)
    labels, values = (
        {name: part[name].variable for name in sorted(part, key=str)} for part in (dataset.coords, dataset.data_vars)
    )
    return xr.Dataset(values, labels, dataset.attrs)


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Refused for a damaged store."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if not isinstance(error, (OSError, *_DAMAGE)):
            raise
        raise Refused(f"{path} is damaged ({reason}); {AGAIN}") from error


def store_of(folder: Path) -> Path:
    """The store of a run's folder."""
    return folder / STORE


def partial_path(path: Path) -> Path:
    """Where a store is kept while it is being written."""
    return path.with_name(path.name + ".partial")


def store_mark(attrs: Mapping[Any, Any]) -> str:
    """A sha256 of a store's attributes, its time among them, but for seal and fingerprints: it identifies the store."""
    compared = {key: attrs[key] for key in sorted(attrs) if key not in (SEAL, *FINGERPRINTS)}
    return hashlib.sha256(json.dumps(compared, default=str).encode()).hexdigest()


def _object_labels(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with string coordinates as Python strings, which every numpy function takes."""
    return dataset.assign_coords({n: c.astype(object) for n, c in dataset.coords.items() if c.dtype.kind == "T"})


# Selections from a store: arrays whose `sel(method="origin")` selects a method, and hooks' values by label

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


def _missing(values: Any, requested: Mapping[Any, Any]) -> Iterator[str]:
    """Each label that is not there, with those that are, in words."""
    for dim, labels in requested.items():
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


def one_prompt(hidden: xr.DataArray, prompt: str | None = None) -> xr.DataArray:
    """The values on one prompt (default: the first); Refused for an unknown one."""
    name = str(hidden["prompt"].values[0]) if prompt is None else prompt
    check_labels(hidden, "prompt", [name])
    return hidden.sel(prompt=name)


def check_labels(values: xr.DataArray | xr.Dataset, dim: str, requested: Sequence[object]) -> None:
    """Refused for the first of `requested` that is not a label of `dim`."""
    labels = values[dim].values.tolist()
    for label in requested:
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
