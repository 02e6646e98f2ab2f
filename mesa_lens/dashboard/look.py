"""How things look: figures that read well on light and dark, texts from stores that stay texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from mesa_lens.dashboard.width import is_narrow
from probe.figures.export import safe_name
from probe.figures.figure_data import Drawable
from probe.figures.mobile_layout import LEAST, least_width, mobile_layout
from probe.figures.render import untitled
from probe.figures.styles import BLACK, GREY, RED

_ON_BOTH = {  # at least 3:1 on white and on Streamlit's dark ground
    BLACK: "#808080",
    GREY: "#8a8a8a",
    RED: "#e04848",
    "black": "#808080",
    "#999999": "#8a8a8a",
    "rgba(255, 255, 255, 0.8)": "rgba(0, 0, 0, 0)",
}
NOTHING = "–"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:&])")


def plain(text: object) -> str:
    """`text` with everything that Streamlit's Markdown would take for markup escaped."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))


def listed(sentences: Iterable[str]) -> str:
    """A line with a bullet for each sentence, as Markdown."""
    return "\n".join(f"- {plain(each)}" for each in sentences)


def on_both_themes(figure: go.Figure) -> go.Figure:
    """The figure in colours that read on light and dark ground; text and ground are the theme's own."""
    drawn = figure.to_dict()
    layout = drawn.get("layout", {})
    layout.pop("template", None)
    layout.get("font", {}).pop("color", None)
    return go.Figure(_recoloured(drawn), skip_invalid=False)


def _recoloured(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _recoloured(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_recoloured(each) for each in part]
    return _ON_BOTH.get(part, part) if isinstance(part, str) else part


def show(figure: Drawable | go.Figure, alt: str, key: str) -> None:
    """Draws a figure over the page's width; `alt` says what it shows to those who do not see it.

    A title stands above it as text; on a narrow page panels stand below each other.
    """
    if isinstance(figure, go.Figure):
        _plot(figure, alt, key)
        return
    st.markdown(f"**{plain(figure.title)}**")
    drawn, width = untitled(figure), least_width(figure)
    if is_narrow():
        drawn.plotly_relayout(mobile_layout(figure, drawn))
        width = LEAST
    with room(key, width):
        _plot(drawn, alt, key)


@contextmanager
def room(key: str, width: int) -> Iterator[None]:
    """A container, nothing in it narrower than `width` pixels: a narrower page scrolls it sideways."""
    name = f"room-{safe_name(key)}"
    with st.container(key=name):
        st.html(f"<style>.st-key-{name} {{overflow-x: auto}} .st-key-{name} > * {{min-width: {width}px}}</style>")
        yield


def _plot(figure: go.Figure, alt: str, key: str) -> None:
    config = {"displaylogo": False, "toImageButtonOptions": {"format": "svg", "filename": key}}
    st.plotly_chart(on_both_themes(figure), key=key, alt=alt, config=config)


def sheet(cells: Any, alt: str, **options: Any) -> None:
    """A table of rows, as dicts, or of anything that Streamlit takes; a cell of nothing shows a dash."""
    cells = columns(cells) if isinstance(cells, list) else cells
    st.dataframe(cells, hide_index=True, alt=alt or None, placeholder=NOTHING, **options)


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, for `st.dataframe`; missing cells are None."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}
