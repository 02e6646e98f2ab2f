"""What the keys of a config may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COUNTS = {  # least value
    "trained_length": 2,
    "seed": 0,
    "samples": 1,
    "texts": 0,
    "batch": 1,
    "new_tokens": 1,
    "limit": 1,
    "max_length": 1,
    "length": 1,
}
_NAMES = ("methods", "tasks", "set")
_RANGES = ("lengths", "layers", "dims", "positions")
_FLAGS = ("trust_remote_code",)
_NOTHING = ("text", "data", "tasks", "limit", "include_path", "architecture", "load", "set", "revision", "device_map")
_NOTHING += ("dtype", "device")
"""Those that may be left empty."""


def check_kinds(values: Mapping[str, Any], where: str) -> None:
    """ValueError, naming the key, for a value of a kind that the key cannot hold; keys of keys are not looked at."""
    for key, value in values.items():
        if value is None and key in _NOTHING:
            continue
        wanted = _wanted(key, value, 0 if where.endswith(": probe") else 1)
        if wanted:
            raise ValueError(f"{where}: {key} holds {value!r} in place of {wanted}; see configs/default.yaml")


def _wanted(key: str, value: Any, samples: int) -> str:
    """What a key holds in place of this value; empty where it may hold it."""
    if isinstance(value, dict):
        return "" if key in ("load", "architecture", "sections") else "a single value"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _COUNTS:
        least = samples if key == "samples" else _COUNTS[key]
        return "" if whole and value >= least else f"a whole number, at least {least}"
    if key in _FLAGS:
        return "" if isinstance(value, bool) else "true or false"
    text = isinstance(value, str) and bool(value.strip())
    if key in _NAMES:
        names = value if isinstance(value, list) else [value]
        good = bool(names) and all(isinstance(name, str) and name.strip() for name in names)
        return "" if good or value == [] else "names"
    if key in _RANGES:
        return "" if text or whole else 'a text such as "256,512" or "0-10"'
    return "" if text else "a text"
