"""What weights and token ids are known by in the record of a run: a sha256, or the commit of a hub."""

import hashlib
import importlib.metadata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mesa.checkpoints.place import place_of
from mesa.support import windows_of

IDENTITY = ("weights", "config", "tokenizer", "versions")
"""What `identity` tells of a model and of what runs it."""
_FILES = {
    "weights": ("*.safetensors",),
    "config": ("config.json", "generation_config.json", "*.py"),
    "tokenizer": (
        *("tokenizer*", "*vocab*", "merges.txt", "*.model", "*.tiktoken"),
        *("added_tokens.json", "special_tokens_map.json", "*.jinja"),
    ),
}
_PACKAGES = ("mesa-lens", "torch", "transformers")
version = cache(importlib.metadata.version)
"""A package's version, read once."""


def identity(name: str, config: Any) -> dict[str, str]:
    """By the names of `IDENTITY`: sha256 sums of a model's files where they lie here, else the hub's commit; versions.

    And the rule by which layers with windows take a method, for which earlier releases had another.

    Raises what `place_of` raises.
    """
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    rule = {"windows": "as trained below M"} if config is not None and windows_of(config) else {}
    return {**{what: _fingerprint(what, name, config) for what in _FILES}, "versions": versions, **rule}


def _fingerprint(what: str, name: str, config: Any) -> str:
    place = place_of(name)
    matches = {file for pattern in _FILES[what] for file in Path(place.where).glob(pattern) if file.is_file()}
    files = [place.file] if place.file else sorted(matches)
    if not Path(place.where).is_dir():
        return f"commit {getattr(config, '_commit_hash', None)}"
    total = hashlib.sha256()
    for file in files:
        total.update(bytes.fromhex(fingerprint_of_file(file)))
    return f"sha256 {total.hexdigest()}"


def ids_fingerprint(runs: Iterable[Sequence[int] | np.ndarray]) -> str:
    """The sha256 of runs of token ids, their lengths and their order."""
    total = hashlib.sha256()
    for ids in runs:
        total.update(len(ids).to_bytes(8, "little") + np.asarray(ids, "<i8").tobytes())
    return f"sha256 {total.hexdigest()}"


def fingerprint_of_file(file: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    at = file.stat()
    return _sha256(file.resolve(), at.st_size, at.st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256(file: Path, size: int, changed_ns: int) -> str:
    """The sum of a file of this size, last changed at this time."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
