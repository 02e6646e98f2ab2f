"""Tables of numbers as pictures: what is coloured, muted and written, for any renderer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.store.results import percent, ranged

WRITTEN = 64
"""Cells of a block in which numbers are written; more of them have theirs on hovering alone."""
MUTED = "#333333"  # numbers of hatched cells, at least 3:1 on the darkest that is not `dark`
NOTE = "hatched: 95% interval includes 0 or is missing; empty: not run"


@dataclass(frozen=True)
class Scale:
    """Colours from `low` to `high`, about 0 where `low` is below; digits after the point, None: written in percent."""

    low: float = -1.0
    high: float = 1.0
    digits: int | None = None

    @property
    def ticks(self) -> dict[float, str]:
        """Five values and their texts."""
        sign = "%" if self.digits is None else ""
        return {float(value): f"{self.written(value)}{sign}" for value in np.linspace(self.low, self.high, 5)}

    def written(self, value: float) -> str:
        """A value as it stands in a cell."""
        return str(round(100 * value)) if self.digits is None else f"{value:z.{self.digits}f}"

    def told(self, value: float, low: float, high: float) -> str:
        """A value with its interval."""
        return percent(value, low, high) if self.digits is None else ranged(value, low, high, self.digits)


SHARES = Scale()
"""0 is nothing, 1 all of what was lost."""


@dataclass(frozen=True)
class Block:
    """Cells (row, column) under one title: values and the ends of their 95% intervals, NaN where there is none."""

    title: str
    columns: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    scale: Scale = SHARES

    @property
    def muted(self) -> np.ndarray:
        """Where there is a value that cannot be told from 0."""
        surely_none = (self.low == 0) & (self.high == 0)
        return np.isfinite(self.values) & ~((self.low > 0) | (self.high < 0) | surely_none)

    @property
    def dark(self) -> np.ndarray:
        """Where the colour is dark."""
        return np.abs(self.values) > 0.6 * self.scale.high

    @property
    def texts(self) -> np.ndarray:
        """What is written in the cells: the value, or nothing where there are too many."""
        there = np.isfinite(self.values)
        texts = np.full(self.values.shape, "", dtype=object)
        if there.sum() <= WRITTEN:
            texts[there] = [self.scale.written(value) for value in self.values[there]]
        return texts

    def told(self, row: int, column: int) -> str:
        """A cell's value with its interval."""
        return self.scale.told(self.values[row, column], self.low[row, column], self.high[row, column])


@dataclass(frozen=True)
class Cells:
    """Blocks of one scale side by side over the same rows."""

    title: str
    colour_title: str
    row_title: str
    rows: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def scale(self) -> Scale:
        """What colours mean in all blocks."""
        return self.blocks[0].scale
