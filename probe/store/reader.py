"""Opens the store of a run, after checking that it is whole."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from probe.store.checked import AGAIN, checked
from probe.store.layout import WHOLE, region_bytes
from probe.store.place import Remote, RemoteStore, as_store, place_of, store_in, zarr_place
from probe.store.seal import SEAL, check_seals

_SUM = 4  # bytes
_LABELS = 2  # slashes in the names of labels' chunks; regions have more
MEASURED = "measured"
"""Attribute of a score: how many of its values are numbers."""
EVALUATION = "evaluation"
"""The group with the scores by length."""
TOKENS = "tokens"
"""The group with the tokens of the prompts; stores of old have none."""
STORE = "store.zarr"
"""The store's name in the folder of a run."""
DIMS = ("method", "prompt", "layer", "position", "dim")
FINGERPRINTS = ("inputs", "weights", "config", "tokenizer")
"""Attributes by which texts, prompts and the model are known; older stores lack some."""
FORCED = "forced"
"""The attribute that says what changed before a store was gone on with all the same."""
_FORCEABLE = ("weights", "config", "tokenizer", "versions")
_FOLLOWS = ("first_token", "period")  # from the word and the model
_DAMAGE = (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)  # of the decompressor
_NOT_CONFIG = ("created", "versions", SEAL, FORCED, "left_out")  # may differ between runs that give the same numbers


@dataclass(frozen=True)
class Run:
    """An opened store. `hidden`: one variable a hook, read from disk when used; `evaluation`: scores by length.

    Newer stores tell the text of every token as `hidden`'s coordinate `token` (prompt, position).
    """

    path: Path
    hidden: xr.Dataset
    evaluation: xr.Dataset | None
    beside: Path | None = None

    @property
    def folder(self) -> Path:
        """Where summary, report and what is worked out lie: beside the store, or in the folder that names its URL."""
        return self.beside or self.path.parent

    @property
    def trained_length(self) -> int:
        """The trained window M, in tokens."""
        return int(self.hidden.attrs["trained_length"])


def open_run(path: str | os.PathLike[str]) -> Run:
    """Opens a run folder or its store, either of which may be a URL (`mesa-lens[remote]`).

    Raises FileNotFoundError for a missing path, ValueError for a folder that is no store, an incomplete or a damaged
    one, OSError where an object store fails. Select with a dict, `hidden.sel({"method": "mesa"})`: in `sel`, `method=`
    means something else.
    """
    path = place_of(path)
    inner, beside = store_of(path), None
    if isinstance(inner, Remote) and not isinstance(path, Remote):
        path, beside = inner, path
    elif inner.exists() or partial_path(inner).exists():
        path = inner
    else:
        path = as_store(path)
    if not path.exists():
        if partial_path(path).exists():
            what = list_missing(missing_regions(partial_path(path))) or "it was not finished"
            raise ValueError(f"{path} is incomplete: {what}; run the capture again")
        raise FileNotFoundError(f"no run at {path}; make one with `mesa-lens probe`")
    if not (path / "zarr.json").exists():
        raise ValueError(f"{path} is not a store: it has no zarr.json; give the folder that `mesa-lens probe` wrote")
    with _opening(path):
        place = zarr_place(path, reads=True)
        hidden = xr.open_zarr(place)
        evaluation, tokens = (
            xr.open_zarr(place, group=name).load() if (path / name).exists() else None for name in (EVALUATION, TOKENS)
        )
        _check_labels(hidden)
        _check_hooks(hidden)
        _check_scores(evaluation)
        check_seals(path, (EVALUATION, TOKENS))
    for needed, there in ((SEAL, hidden.attrs), ("trained_length", hidden.attrs), *((d, hidden) for d in DIMS)):
        if needed not in there:
            raise ValueError(f"{path} is not a store of hidden states: it has no {needed}")
    if not isinstance(hidden.attrs["trained_length"], int):
        raise ValueError(f"{path} is damaged (trained_length is {hidden.attrs['trained_length']!r}); {AGAIN}")
    with _opening(path):
        missing = missing_regions(path)
    if missing or not hidden.attrs[SEAL]:
        raise ValueError(f"{path} is incomplete: {list_missing(missing) or 'it was not finished'}; {AGAIN}")
    hidden = _with_tokens(checked(_object_labels(hidden), path), tokens, path)
    return Run(path, hidden, None if evaluation is None else _object_labels(_unsealed(evaluation)), beside)


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """ValueError for a damaged store; OSError where an object store fails, of which nothing is known."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(path, Remote) and not isinstance(error, _DAMAGE):
            raise OSError(f"{path} could not be read ({reason}); try again") from error
        if not isinstance(error, (OSError, *_DAMAGE)):
            raise
        raise ValueError(f"{path} is damaged ({reason}); {AGAIN}") from error


def store_of(folder: Path) -> Path:
    """The store of a run's folder: in it, or at the URL that the folder names."""
    return store_in(folder, STORE)


def store_mark(attrs: Mapping[str, Any]) -> str:
    """What tells a store from others: a sha256 of its attributes, its time among them, but for fingerprints."""
    plain = {key: attrs[key] for key in sorted(attrs) if key not in (SEAL, *FINGERPRINTS)}
    return hashlib.sha256(json.dumps(plain, default=str).encode()).hexdigest()


def differing_key(stored: Mapping[str, Any], attrs: Mapping[str, Any]) -> str | None:
    """The first config key in which a store's attributes differ from `attrs`; fingerprints, where both have them."""
    either, both = stored.keys() | attrs.keys(), stored.keys() & attrs.keys()
    compared = either - {*_NOT_CONFIG, *(set(FINGERPRINTS) - both)}
    for key in sorted(compared, key=lambda each: (each in _FOLLOWS, each)):
        if key not in both or stored[key] != json.loads(json.dumps(attrs[key])):
            return key
    return None


def differing_origin(stored: Mapping[str, Any], attrs: Mapping[str, Any]) -> str | None:
    """What keeps an unfinished store from being gone on with: the first fingerprint or package's version it lacks."""
    for key in FINGERPRINTS:
        if key in attrs and key not in stored:
            return key
    then, now = (json.loads(each.get("versions", "{}")) for each in (stored, attrs))
    return next((f"the version of {name}" for name in sorted({*then, *now}) if then.get(name) != now.get(name)), None)


def forceable(stored: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """What differs of the model and of versions, and may be passed over: the new values, by key."""
    return {key: attrs[key] for key in _FORCEABLE if key in attrs and stored.get(key) != attrs[key]}


def partial_path(path: Path) -> Path:
    """Where a store is kept while it is being written: at a URL in its own place, not sealed."""
    if isinstance(path, RemoteStore):
        return RemoteStore(path.url, begun=True)  # pyright: ignore[reportReturnType]
    return path.with_name(path.name + ".partial")


def is_half(store: Path, hooks: Sequence[str] = ()) -> bool:
    """Whether a store at a URL was cut short while its template was made, which is nothing to go on from or to refuse.

    hooks: those it is to have, where it does not say. In a folder a template appears whole.
    """
    if not isinstance(store, Remote):
        return False
    there = store.sizes()
    try:
        attrs = json.loads((store / "zarr.json").read_bytes())["attributes"]
        own = json.loads(attrs.get("spec", "{}")).get("hooks", hooks)
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return False  # nothing, or damaged
    needed = {*(f"{name}/zarr.json" for name in (*DIMS, *own)), *(f"{name}/c/0" for name in DIMS)}
    return not needed <= there.keys() and not any(name.count("/") > _LABELS for name in there)


def missing_regions(store: Path) -> list[str]:
    """The regions with no file of the right size; uncompressed, so a region cut short shows."""
    if not (store / "zarr.json").exists():
        return ["everything"]
    return [
        f"{hook} of method {method!r}, prompt {prompt!r}, layer {layer}"
        for hook, method, prompt, layer, _, whole in _regions(store)
        if not whole
    ]


def region_sums(store: Path) -> Iterator[bytes]:
    """What tells the values of every region, those of a hook one after the other: the check sum at its file's end.

    A file of many chunks ends with the sum of their places, so that it is told by when it was written as well; at a URL
    by that sum alone: there the store's own time tells it from another.
    """
    paths = [path for *_, path, _ in _regions(store)]
    if isinstance(store, Remote):
        sizes = store.sizes()
        names = [str(path)[len(store.url) + 1 :] for path in paths]
        yield from store.ends(names, [sizes[name] for name in names], _SUM)
        return
    for path in paths:
        with path.open("rb") as file:
            file.seek(-_SUM, io.SEEK_END)
            yield file.read(_SUM)
        if path.stat().st_size > WHOLE:
            yield str(path.stat().st_mtime_ns).encode()


def whole_passes(store: Path) -> set[tuple[str, str]]:
    """The (method, prompt) pairs all of whose regions are whole."""
    regions = list(_regions(store))
    return {region[1:3] for region in regions} - {region[1:3] for region in regions if not region[-1]}


def _regions(store: Path) -> Iterator[tuple[str, str, str, int, Path, bool]]:
    """Hook, method, prompt and layer of every region, its file, and whether that has the right size."""
    group = zarr.open_group(zarr_place(store, reads=True), mode="r", use_consolidated=False)
    sizes = store.sizes() if isinstance(store, Remote) else None  # one question in place of thousands
    for hook, array in sorted(group.arrays()):
        if hook in DIMS:
            continue
        labels = [np.asarray(stored_array(group, name)[:]).tolist() for name in DIMS[:3]]
        size = region_bytes(array)
        for index in np.ndindex(*array.shape[:3]):
            name = "/".join([hook, "c", *map(str, index), "0", "0"])
            chunk = store / name
            method, prompt, layer = (names[i] for names, i in zip(labels, index, strict=True))
            there = sizes.get(name) if sizes is not None else chunk.stat().st_size if chunk.exists() else None
            yield hook, method, prompt, layer, chunk, there == size


def list_missing(missing: list[str]) -> str:
    """What `missing_regions` found, in one line; empty if nothing is missing."""
    return "" if not missing else f"{len(missing)} region(s) missing or cut short, the first is {missing[0]}"


def stored_array(group: zarr.Group, name: str) -> zarr.Array:
    """The array `name` of a store; ValueError names those it holds."""
    array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise ValueError(f"{name!r} is not in the store, which holds {sorted(group.array_keys())}")
    return array


def _with_tokens(hidden: xr.Dataset, tokens: xr.Dataset | None, path: Path) -> xr.Dataset:
    """The values with the text of each token as coordinate `token` (prompt, position), where the store has them."""
    if tokens is None:
        return hidden
    for name in (labels := ("prompt", "position")):
        if tokens.get(name, xr.DataArray()).values.tolist() != hidden[name].values.tolist():
            raise ValueError(f"{path} is damaged (its tokens are of another {name}); {AGAIN}")
    return hidden.assign_coords(token=(labels, tokens["text"].transpose(*labels).values.astype(object)))


def _check_labels(hidden: xr.Dataset) -> None:
    """ValueError for labels that repeat, or numbers that do not rise, as where a coordinate's file is gone."""
    for name in (dim for dim in DIMS if dim in hidden.coords):
        labels = hidden[name].values
        if len(set(labels.tolist())) < len(labels) or (labels.dtype.kind in "iu" and (np.diff(labels) < 0).any()):
            raise ValueError(f"the {name} labels repeat or do not rise")


def _check_hooks(hidden: xr.Dataset) -> None:
    """ValueError for a hook that was captured and is not there."""
    for hook in json.loads(hidden.attrs.get("spec", "{}")).get("hooks", ()):
        if hook not in hidden:
            raise ValueError(f"{hook} is missing")


def _check_scores(evaluation: xr.Dataset | None) -> None:
    """ValueError for scores that are no numbers, as where a chunk is missing."""
    for name, scores in ({} if evaluation is None else evaluation.data_vars).items():
        if np.isfinite(scores.values).sum() < scores.attrs.get(MEASURED, scores.size):
            raise ValueError(f"{name} of the evaluation is not finite where it was measured")


def _unsealed(evaluation: xr.Dataset) -> xr.Dataset:
    """The scores without the attribute that is about their file."""
    return evaluation.drop_attrs(deep=False).assign_attrs({k: v for k, v in evaluation.attrs.items() if k != SEAL})


def _object_labels(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with string coordinates as Python strings, which every numpy function takes."""
    return dataset.assign_coords({n: c.astype(object) for n, c in dataset.coords.items() if c.dtype.kind == "T"})
