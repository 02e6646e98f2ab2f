"""What a page is given: the root, its runs, the chosen one, and the other pages to link to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mesa_lens.dashboard.runs import Entry


@dataclass(frozen=True)
class Context:
    """entry: the chosen run, None if there is none. pages: Streamlit's pages by their names in the URL."""

    root: str
    entries: tuple[Entry, ...]
    entry: Entry | None
    pages: Mapping[str, Any]

    @property
    def run(self) -> Entry:
        """The chosen run; ValueError where there is none."""
        if self.entry is None:
            raise ValueError(f"there is no run under {self.root}")
        return self.entry
