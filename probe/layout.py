"""Where each command writes in a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
LAYOUTS = {
    "probe": Layout("", ("measured.jsonl",), REPORTED),
    "eval": Layout("", ("journal.jsonl", "harness.jsonl"), (*REPORTED, "samples.csv")),
    "locate": Layout("locate", ("journal.jsonl",), REPORTED),
    "anatomy": Layout("anatomy", ("journal.jsonl",), REPORTED),
    "predict": Layout("predict", ("journal.jsonl",), ("prediction.json",)),
}
"""By command."""
JOURNALS = tuple(dict.fromkeys(name for layout in LAYOUTS.values() for name in layout.journals))
