"""A study: how well thresholds and drift predict failure, beside the arithmetic prediction, as tables and figures."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st
import xarray as xr

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.dark import darkened
from mesa_lens.dashboard.downloads import MIMES, named
from mesa_lens.dashboard.look import in_dark, plain, room
from mesa_lens.dashboard.results import Result
from mesa_lens.dashboard.runs import changed
from mesa_lens.dashboard.views.evaluated import table
from mesa_lens.dashboard.width import is_narrow
from probe.evaluation.summary import Table
from probe.study.report import dims_figure, lengths_figure
from probe.study.results import read_results, seeds_of
from probe.study.table import all_rows, settings

_FIRST = ("kind", "prompt", "rule", "difference", "Spearman", "arithmetic there")
"""Columns that begin the first table."""
_FORMS = ("png", "svg", "pdf")
_FIGURES = {
    "lengths": ("Predicted over measured failure length", lengths_figure, 1100),
    "dims": ("Rank correlation over the number of dims", dims_figure, 500),
}


def page(context: Context, result: Result) -> None:
    """The tables, the first with the differences to the arithmetic prediction, then the figures."""
    found, tables = _read(str(result.file), changed(result.file))
    asked = settings(found)
    about = f"trained window M = {asked['trained_length']} tokens, read up to {asked['length']}"
    seeds = f"{asked['seeds']} seeds" + (f" from {first} on" if (first := seeds_of(asked).start) else "")
    st.markdown(plain(f"Model {asked['model']}, {about}; {found.sizes['config']} configs, {seeds}."))
    (title, rows), *others = tables
    head = rows[0]
    order = sorted(range(len(head)), key=lambda at: _FIRST.index(head[at]) if head[at] in _FIRST else len(_FIRST))
    table(_table(title, [[row[at] for at in order] for row in rows]))
    for name, (title, draw, width) in _FIGURES.items():
        _figure(result, name, title, partial(draw, found), width)
    for each in others:
        table(_table(*each))


@st.cache_resource(max_entries=4, show_spinner="Reading the study …")
def _read(path: str, stamp: float) -> tuple[xr.Dataset, list[tuple[str, list[Sequence[str]]]]]:
    try:
        found = read_results(Path(path))
        return found, all_rows(found)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        folder = Path(path).parent
        raise ValueError(f"{path} is damaged ({error!r}); write it anew: `mesa-lens study --out {folder}`") from error


def _table(title: str, rows: Sequence[Sequence[str]]) -> Table:
    return Table(title, tuple(rows[0]), tuple(map(tuple, rows[1:])))


def _figure(result: Result, name: str, title: str, draw: Callable[..., Any], width: int) -> None:
    st.markdown(f"**{plain(title)}**")
    narrow = is_narrow()
    with nullcontext() if narrow else room(name, width):
        st.image(_shown(draw, narrow), width="content")
    with st.container(horizontal=True):
        for form in _FORMS:
            stem = named(result.name, name)
            st.download_button(
                form.upper(),
                partial(_drawn, draw, form),
                f"{stem}.{form}",
                MIMES[form],
                key=f"{stem}.{form}",
                on_click="ignore",
                icon=":material/download:",
            )


def _shown(draw: Callable[..., Any], narrow: bool) -> bytes:
    return _drawn(lambda: darkened(draw(narrow=narrow)) if in_dark() else draw(narrow=narrow), "png")


def _drawn(draw: Callable[[], Any], form: str) -> bytes:
    file = io.BytesIO()
    draw().savefig(file, format=form)
    return file.getvalue()
