"""The result of `mesa-lens norms`, its figure, and what a run's report tells of it. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic.dataclasses import dataclass

from probe.figures.export import Export
from probe.figures.figure_data import Chart, Line, Panel, style
from probe.figures.section import Section, report_link, write_page
from probe.store.result_file import ResultFile, RunSummary, having


@dataclass(frozen=True)
class Norm:
    method: str
    length: int
    norm: float


@dataclass(frozen=True, kw_only=True)
class Norms(RunSummary):
    norms: list[Norm]
    tasks_left: int
    version: Literal[1] = 1


NORMS = ResultFile(Path("norms", "summary.json"), Norms)


def chart(summary: Norms) -> Chart:
    lines = []
    for method in summary.methods:
        rows = having(summary.norms, method=method)
        x, y = (np.array([getattr(row, name) for row in rows], float) for name in ("length", "norm"))
        lines.append(Line(method, x, y, *style(method)))
    most = max(row.norm for row in summary.norms)
    return Chart("Norms", (Panel("", "tokens", "norm", tuple(lines), (0, 1.1 * most)),))


def sections(summary: Norms) -> list[Section]:
    return [Section("Norms", [f"The norm of {len(summary.norms)} passes' last states."], {"norms": chart(summary)})]


def inside(folder: Path) -> Iterator[Section]:
    if summary := NORMS.find(folder):
        section = sections(summary)[0]
        yield Section(section.title, section.sentences, section.figures, links=report_link(folder, "norms", "Norms"))


def export(folder: Path, lengths: list[int] | None = None) -> Export:
    summary = NORMS.read(folder)
    rows = [row for row in summary.norms if lengths is None or row.length in lengths]
    numbers = pd.DataFrame(rows).set_index(["method", "length"]).to_xarray()
    return Export({"norms": chart(summary)}, {"norms": numbers})


def write_norms(folder: Path, summary: Norms) -> None:
    write_page(folder / "norms", "Norms", sections(summary), {})


def rewrite(folder: Path) -> None:
    if summary := NORMS.find(folder):
        write_norms(folder, summary)
