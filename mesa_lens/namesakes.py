"""Packages of others that share a folder's name with one of ours, which pip installs over it without a word.

In this folder, whose name no other distribution has: what is in the shared ones may be lost. The `__init__.py` of each
of ours imports this module, by which `check` knows it.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PACKAGES = ("mesa", "probe", "theory")
_MARK = b"mesa_lens"


def warn_of_namesakes() -> None:
    """Warns where a distribution called as one of our packages is installed here, such as Mesa (agent-based models).

    Looked up by name: reading what every installed distribution owns would take longer than importing ours.
    """
    for name in PACKAGES:
        if other := _other(name):
            warnings.warn(
                f"the package {other.name} {other.version} shares the folder {name}/ with mesa-lens, and one "
                "overwrites the other; install mesa-lens into an environment of its own",
                stacklevel=3,
            )


def check(*names: str) -> None:
    """Raises ImportError, with the repair, where one of these packages is another's; reads a file each, runs none."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and _is_ours(Path(spec.origin)):
            continue
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if other := _other(name):
            problem, first = (
                f"the package {other.name} {other.version} is installed over it",
                f"`pip uninstall -y {name}`, then ",
            )
        elif spec is not None and spec.origin is not None:
            problem, first = "another package replaced or hid it", "move that one away, then "
        else:
            problem, first = f"its __init__.py is lost, as after `pip uninstall {name}`", ""
        raise ImportError(
            f"{place or name} is not mesa-lens' own {name}: {problem}; {first}install mesa-lens again, in an "
            "environment of its own (`pip install --force-reinstall --no-deps`)"
        )


def _is_ours(file: Path) -> bool:
    """Whether the file has our mark; so counts one that cannot be read, as in a zip."""
    try:
        return _MARK in file.read_bytes()
    except OSError:
        return True


def _other(name: str) -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution  # 20 ms, most often for nothing

    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
