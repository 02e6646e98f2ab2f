"""Types of options: what each takes; of anything else it says what is wrong, and the parser adds the option's name."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

MOST_TOKENS = 2**31 - 1  # mesa.plan.LARGEST, which is not loaded before a command runs
MOST_PROMPTS = 10_000
MOST_SEED = 2**32 - 1
MOST_WORKERS = 10_000


def whole(least: int, most: int = MOST_TOKENS) -> Callable[[str], int]:
    """Whole numbers within `least` and `most`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", text.strip()) or len(text) > 40:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is below {least}")
        if number > most:
            raise argparse.ArgumentTypeError(f"{number} is above {most}")
        return number

    return read


def tokens(text: str) -> int:
    """A length in tokens, at least 1."""
    return whole(1)(text)


def window(text: str) -> int:
    """A trained window M in tokens, at least 2."""
    return whole(2)(text)


def number(least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Finite numbers within `least` (itself left out with `above`) and `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
        if value < least or (above and value == least):
            raise argparse.ArgumentTypeError(f"{value:g} is {'not above' if above else 'below'} {least:g}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value:g} is above {most:g}")
        return value

    return read


def word(text: str) -> str:
    """A text that says something, in characters that can be encoded."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def listed(text: str) -> str:
    """Names separated by commas, as they are; none of them empty."""
    if not all(part.strip() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; separate names by one comma each")
    return text


def runner(text: str) -> tuple[str, str | None]:
    """Who runs cells: 'local', 'ray', or 'ray:' and the address of a cluster."""
    kind, colon, address = text.partition(":")
    if text not in ("local", "ray") and not (kind == "ray" and colon and address.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is no runner; take local, ray, or ray:ADDRESS (e.g. ray:auto)")
    return kind, address or None


def path(text: str) -> Path:
    """A path, not the empty one, which would be the working directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty; name a file or folder")
    return Path(text)


def place(text: str) -> Path | str:
    """A path, or a URL as it is."""
    return word(text) if "://" in text else path(text)


def output(text: str) -> Path:
    """A folder to write to: neither a disk's root nor one that holds a model."""
    found = folder(text)
    if found.resolve() == Path(found.resolve().anchor):
        raise argparse.ArgumentTypeError(f"{text} is the root of a disk; name a folder in it")
    weights = ("config.json", "*.safetensors", "*.gguf")
    if any(path for pattern in weights for path in found.glob(pattern)):
        raise argparse.ArgumentTypeError(f"{text} holds a model; name another folder")
    return found


def folder(text: str) -> Path:
    """A folder, there or not."""
    found = path(text)
    try:
        is_file = found.exists() and not found.is_dir()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read ({error.strerror}); name another") from error
    if is_file:
        raise argparse.ArgumentTypeError(f"{text} is a file; name a folder")
    return found
