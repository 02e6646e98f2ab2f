"""Text that every machine has: the running interpreter's standard library, and the held-out files we ship.

The default model is trained on `training_files()`. `heldout()` is text it has not seen: files of the same library
that are left out of training, shipped beside the checkpoint so that a score means the same on every machine.
"""

from __future__ import annotations

import sysconfig
from importlib import resources
from pathlib import Path

HELDOUT_FILES = (
    "argparse.py",
    "configparser.py",
    "difflib.py",
    "fractions.py",
    "heapq.py",
    "mailbox.py",
    "statistics.py",
    "textwrap.py",
)
_SKIPPED_FOLDERS = {"__pycache__", "encodings", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}


def library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def training_files() -> list[Path]:
    """The standard library's modules (docstrings and `pydoc` topics included), without tests and held-out files."""
    root = library()
    paths = (
        path
        for path in root.rglob("*.py")
        if not _SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1])
        and not (path.parent == root and path.name in HELDOUT_FILES)
    )
    return sorted(paths)


def read(path: Path) -> str:
    """The file's text; undecodable bytes become U+FFFD."""
    return path.read_text(encoding="utf-8", errors="replace")


def heldout() -> list[str]:
    """The shipped held-out texts, in the order of `HELDOUT_FILES`."""
    folder = resources.files("mesa") / "shipped" / "heldout"
    return [(folder / f"{name}.txt").read_text(encoding="utf-8") for name in HELDOUT_FILES]
