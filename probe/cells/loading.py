"""The work of seeing whether workers can load a model."""

from __future__ import annotations

from dataclasses import dataclass

from probe.cells.cell import Cell, Function
from probe.cells.source import Source


@dataclass(frozen=True)
class Loading:
    """A model; its cells give nothing."""

    source: Source

    def start(self, room: int | None = None) -> Function:
        """Loads the model."""
        self.source.loaded()
        return _nothing


def _nothing(cell: Cell) -> None:
    """Of any cell."""
