"""What the keys of a config may hold."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr
from typing import Any

from mesa_lens.values import MOST_PROMPTS, MOST_SEED, MOST_TOKENS

_COUNTS = {  # least and largest value
    "trained_length": (2, MOST_TOKENS),
    "seed": (0, MOST_SEED),
    "samples": (1, MOST_PROMPTS),
    "texts": (0, MOST_PROMPTS),
    "batch": (1, MOST_PROMPTS),
    "new_tokens": (1, MOST_TOKENS),
    "limit": (1, MOST_TOKENS),
    "max_length": (1, MOST_TOKENS),
    "length": (1, MOST_TOKENS),
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
            raise ValueError(f"{where}: {key} holds {repr(value)} in place of {wanted}; see configs/default.yaml")


def _wanted(key: str, value: Any, samples: int) -> str:
    """What a key holds in place of this value; empty where it may hold it."""
    if isinstance(value, dict):
        return "" if key in ("load", "architecture", "sections") else "a single value"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _COUNTS:
        least, most = _COUNTS[key]
        least = samples if key == "samples" else least
        return "" if whole and least <= value <= most else f"a whole number, at least {least} and at most {most}"
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
