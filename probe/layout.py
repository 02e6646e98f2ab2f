"""Where each command writes in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from mesa import plugins

STORES = ("store.zarr", "store.zarr.partial")
"""The store of a probe, whole and unfinished."""


@dataclass(frozen=True)
class Layout:
    """folder: below the run's, "" for itself. journals: in it. results: what a finished command leaves beside them."""

    folder: str
    journals: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the command has in the run's own folder, beside results and stores."""
        return (self.folder,) if self.folder else self.journals

    def journal_paths(self, run: Path) -> list[Path]:
        """Its journals in the folder of a run, there or not."""
        return [run / self.folder / name for name in self.journals]


REPORTED = ("summary.json", "report.html")
"""The files of a finished report, beside its figures."""
PROBE = Layout("", ("measured.jsonl",), REPORTED)
_ORDER = ("check", "probe", "predict", "locate", "anatomy", "eval")
T = TypeVar("T")


def in_order(commands: Mapping[str, T]) -> dict[str, T]:
    """Those that come with the package as help and reports have them, then others."""
    first = [name for name in _ORDER if name in commands]
    return {name: commands[name] for name in (*first, *(name for name in commands if name not in first))}


@cache
def layouts() -> dict[str, Layout]:
    """By command, of those that are installed."""
    rows = plugins.registered(plugins.COMMANDS, {})
    others = {name: layout for name, row in rows.items() if isinstance(layout := getattr(row, "layout", None), Layout)}
    return in_order({"probe": PROBE, **others})


@cache
def journals() -> frozenset[str]:
    """Names of all commands' journals."""
    return frozenset(name for layout in layouts().values() for name in layout.journals)
