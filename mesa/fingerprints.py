"""What weights and token ids are known by in the record of a run: a sha256, or the commit of a hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mesa.checkpoints.place import place_of


def weights_fingerprint(name: str, config: Any) -> str:
    """The sha256 of a model's GGUF or safetensors files where they lie here, else the hub's commit in its config.

    Raises what `place_of` raises.
    """
    place = place_of(name)
    files = [place.file] if place.file else sorted(Path(place.where).glob("*.safetensors"))
    if not files:
        return f"commit {getattr(config, '_commit_hash', None)}"
    total = hashlib.sha256()
    for file in files:
        at = file.stat()
        total.update(_sha256(file.resolve(), at.st_size, at.st_mtime_ns))
    return f"sha256 {total.hexdigest()}"


def ids_fingerprint(runs: Iterable[Sequence[int] | np.ndarray]) -> str:
    """The sha256 of runs of token ids, their lengths and their order."""
    total = hashlib.sha256()
    for ids in runs:
        total.update(len(ids).to_bytes(8, "little") + np.asarray(ids, "<i8").tobytes())
    return f"sha256 {total.hexdigest()}"


@lru_cache(maxsize=64)
def _sha256(file: Path, size: int, changed_ns: int) -> bytes:
    """The sum of a file of this size, last changed at this time."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()
