"""Tables of shares as pictures: what is coloured, muted and written, for any renderer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.store.located import percent

WRITTEN = 64
"""Cells of a block in which numbers are written; more of them have theirs on hovering alone."""
NOTE = "hatched: the 95% interval includes 0, or there is none; empty: not run"


@dataclass(frozen=True)
class Block:
    """Cells (row, column) under one title: shares and the ends of their 95% intervals, NaN where there is none."""

    title: str
    columns: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def muted(self) -> np.ndarray:
        """Where there is a value that cannot be told from 0."""
        return np.isfinite(self.values) & ~((self.low > 0) | (self.high < 0))

    @property
    def texts(self) -> np.ndarray:
        """What is written in the cells: the share in percent, or nothing where there are too many."""
        there = np.isfinite(self.values)
        texts = np.full(self.values.shape, "", dtype=object)
        if there.sum() <= WRITTEN:
            texts[there] = [str(round(100 * value)) for value in self.values[there]]
        return texts

    def told(self, row: int, column: int) -> str:
        """A cell's share with its interval."""
        return percent(self.values[row, column], self.low[row, column], self.high[row, column])


@dataclass(frozen=True)
class Cells:
    """Blocks side by side over the same rows, coloured from -1 to 1: 0 is nothing, 1 all of what was lost."""

    title: str
    colour_title: str
    row_title: str
    rows: tuple[str, ...]
    blocks: tuple[Block, ...]
