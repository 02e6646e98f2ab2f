"""The seal of a group: a check sum of its attributes and of what describes its arrays, as chunks have theirs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SEAL = "complete"
"""The attribute that holds it. Stores of old have no seal: True stands there, or in `evaluation` nothing."""
_META = "zarr.json"
_UNSEALED = "an older version wrote this store: a change of its attributes cannot be found"


def seal_of(group: Path) -> str:
    """The sha256 of a group's own attributes, but for the seal, and of the metadata of its arrays."""
    own = _read(group)
    attributes = {name: value for name, value in own["attributes"].items() if name != SEAL}
    stated = {**{key: value for key, value in own.items() if key != "consolidated_metadata"}, "attributes": attributes}
    text = json.dumps([stated, _arrays(group)], sort_keys=True)
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def check_seals(store: Path, groups: tuple[str, ...]) -> None:
    """ValueError where a sealed store, or one of its groups, has other attributes than when it was sealed."""
    own = _read(store)
    sealed, listed = isinstance(own["attributes"].get(SEAL), str), _listed(own)
    for name in groups:
        if sealed and name in listed and not (store / name).exists():
            raise ValueError(f"{name} is missing")
    for group in (store, *(store / name for name in groups if (store / name).exists())):
        stated = _read(group)["attributes"].get(SEAL)
        if isinstance(stated, str) or sealed:
            where = "its" if group == store else f"its {group.name}'s"
            if stated != seal_of(group):
                raise ValueError(f"{where} attributes are not those that were sealed")
            copies = _listed(_read(group))
            if any(copies.get(array) != described for array, described in _arrays(group).items()):
                raise ValueError(f"{where} consolidated metadata is not that of the arrays")


def sealed(attrs: Any) -> str:
    """What the seal of an opened store says, in words."""
    return "sealed" if isinstance(attrs.get(SEAL), str) else f"not sealed: {_UNSEALED}"


def _listed(described: dict[str, Any]) -> dict[str, Any]:
    return (described.get("consolidated_metadata") or {}).get("metadata", {})


def _arrays(group: Path) -> dict[str, Any]:
    """The metadata of the group's arrays, by name."""
    found = {path.parent.name: _read(path.parent) for path in sorted(group.glob(f"*/{_META}"))}
    return {name: each for name, each in found.items() if each["node_type"] == "array"}


def _read(node: Path) -> dict[str, Any]:
    return json.loads((node / _META).read_text(encoding="utf-8"))
