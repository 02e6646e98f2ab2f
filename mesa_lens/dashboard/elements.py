"""Elements of pages: text that stays text, figures, tables, downloads."""

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from markupsafe import Markup

from mesa_lens.dashboard import address
from mesa_lens.dashboard.runs import Context
from probe.figures.export import PANEL_WIDTH, Export, asset, least_width, plots, safe_name
from probe.figures.figure_data import BLACK, GREY, RED, Chart, Drawable
from probe.figures.section import Section, Table
from probe.glossary import help_of, template
from probe.status import Status

_BOTH_THEMES = {  # at least 3:1 on white and on Streamlit's dark background
    BLACK: "#808080",
    GREY: "#8a8a8a",
    RED: "#e04848",
    "black": "#808080",
    "#999999": "#8a8a8a",
    "rgba(255, 255, 255, 0.8)": "rgba(0, 0, 0, 0)",
}
_EMPTY = "–"
_POINTS = 30  # along each side of a heatmap, by which a box is chosen
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:&])")

T = TypeVar("T")
OnPoint = Callable[[Mapping[str, Any]], None]
Clicks = Callable[[Drawable], OnPoint | None]
"""Called with a point as plotly describes it: `x`, `y`, `customdata`, `legendgroup`."""
FORMS = ("png", "svg", "pdf", "csv")
"""The file formats of every figure."""


# Text


def plain(text: object) -> str:
    """`text` with all Markdown escaped."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))


def heading(text: str, level: int = 2) -> None:
    """A heading of a part of the page; level 2 is that below the page's title."""
    (st.header if level == 2 else st.subheader)(plain(text), anchor=False)


def bullets(sentences: Iterable[str]) -> str:
    """The sentences as a Markdown list."""
    return "\n".join(f"- {plain(sentence)}" for sentence in sentences)


def suggest(text: str, command: str) -> None:
    """What is missing, and the command that makes it."""
    st.info(plain(text))
    st.code(command, language=None, wrap_lines=True)


def show_status(*known: Status) -> None:
    """How far runs are, and the commands that go on."""
    st.code("\n".join(status.text() for status in known), language=None, wrap_lines=True)
    if commands := [line for status in known for line in status.resume.values()]:
        st.code("\n".join(commands), language=None, wrap_lines=True)


def written(context: Context, find: Callable[[Path], T | None], command: str) -> T | None:
    """What a command wrote into the run's folder; where it was not run None, and the command is shown."""
    summary = find(context.run.path)
    if summary is None:
        address.keep()
        text = "This run has nothing to show here yet. Run the command, then reload this page:"
        status = context.run.status
        begun = status.resume.get(command) if status else None
        suggest(text, begun or f"mesa-lens {command} --out {quote(str(context.run.path))}")
    return summary


# Figures and tables


def on_both_themes(figure: go.Figure) -> go.Figure:
    """The figure in colours that read on light and dark; text and background are left to the theme."""
    parts = figure.to_dict()
    layout = parts.get("layout", {})
    layout.pop("template", None)
    layout.get("font", {}).pop("color", None)
    return go.Figure(_recoloured(parts), skip_invalid=False)


def _recoloured(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _recoloured(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_recoloured(value) for value in part]
    return _BOTH_THEMES.get(part, part) if isinstance(part, str) else part


def show(
    figure: Drawable | go.Figure,
    key: str,
    alt: str = "",
    on_box: Callable[[], None] | None = None,
    file: str = "",
    on_point: OnPoint | None = None,
) -> None:
    """Draws a figure over the page's width, its title above it as text, and below it what is seen.

    alt: describes it to screen readers; default: its title, and what is seen. on_box: called when a region of heatmaps
    is chosen by dragging, which `chosen_box` returns. file: the name of the picture that plotly saves; default `key`.
    on_point: called with the point of a chart of one panel, or the tile of heatmaps, that is clicked.
    """
    file = file or key
    if isinstance(figure, go.Figure):
        _plot(figure, alt, key, file)
        return
    st.markdown(f"**{plain(figure.title)}**")
    name, alt = f"wide-{safe_name(key)}", alt or f"{figure.title}. {figure.seen}"
    point = None
    if isinstance(figure, Chart) and len(figure.panels) > 1 and not figure.crosshair:
        _panels(figure, name, key, alt, file)
    else:
        width = least_width(figure)
        with st.container(key=name):  # a page narrower than `width` pixels scrolls it sideways
            st.html(f"<style>.st-key-{name} {{overflow-x: auto}} .st-key-{name} > * {{min-width: {width}px}}</style>")
            point = _plot(plots(figure)[0], alt, key, file, on_box, is_clicked=on_point is not None)
    if figure.seen:
        st.caption(plain(figure.seen))
    if on_point and point:
        on_point(point)


def _panels(chart: Chart, name: str, key: str, alt: str, file: str) -> None:
    """A figure a panel: side by side, below each other where the page is narrow."""
    style = f".st-key-{name} > div {{flex: 1 1 {PANEL_WIDTH}px; min-width: min({PANEL_WIDTH}px, 100%)}}"
    with st.container(key=name, horizontal=True):
        st.html(f"<style>{style}</style>")
        for number, (panel, drawn) in enumerate(zip(chart.panels, plots(chart), strict=True)):
            with st.container(key=f"panel-{number}-{name}"):
                _plot(drawn, f"{panel.title}. {alt}", f"{key}-{number}", f"{file}-{number}")


def _plot(
    figure: go.Figure,
    alt: str,
    key: str,
    file: str,
    on_box: Callable[[], None] | None = None,
    is_clicked: bool = False,
) -> Mapping[str, Any] | None:
    """Draws it; the point that is clicked, or None."""
    config = {"displaylogo": False, "toImageButtonOptions": {"format": "svg", "filename": file}}
    options: Any = {"on_select": on_box, "selection_mode": "box"} if on_box else {}
    if is_clicked:
        options = {"on_select": "rerun", "selection_mode": "points"}
    drawn = on_both_themes(_selectable(figure) if on_box else _clickable(figure) if is_clicked else figure)
    chosen: Any = st.plotly_chart(drawn, key=key, alt=alt, config=config, **options)
    return next(iter(chosen["selection"]["points"]), None) if is_clicked else None


def _clickable(figure: go.Figure) -> go.Figure:
    """The heatmaps with an unseen point on each tile, which has the tile's text: plotly selects points alone."""
    traces: Any = figure.data
    for trace in [trace for trace in traces if trace.type == "heatmap"]:
        texts = np.asarray(trace.customdata, object)
        rows, columns = np.nonzero(texts != "")
        marker = {"opacity": 0, "size": 60}  # of overlapping ones the nearest is clicked
        look: Any = {"mode": "markers", "marker": marker, "showlegend": False}
        at = {"x": np.asarray(trace.x)[columns], "y": np.asarray(trace.y)[rows], "customdata": texts[rows, columns]}
        figure.add_trace(
            go.Scatter(**at, **look, xaxis=trace.xaxis, yaxis=trace.yaxis, hovertemplate=trace.hovertemplate)
        )
    return figure


def _selectable(figure: go.Figure) -> go.Figure:
    """The heatmaps with unseen points on them: plotly selects points alone."""
    traces: Any = figure.data
    for trace in [trace for trace in traces if trace.type == "heatmap"]:
        x, y = (np.linspace(np.min(axis), np.max(axis), _POINTS) for axis in (trace.x, trace.y))
        points = [axis.ravel() for axis in np.meshgrid(x, y)]
        look: Any = {"mode": "markers", "opacity": 0, "hoverinfo": "skip", "showlegend": False}
        figure.add_trace(go.Scatter(x=points[0], y=points[1], xaxis=trace.xaxis, yaxis=trace.yaxis, **look))
    figure.update_layout(dragmode="select")
    return figure


def chosen_box(key: str) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The x and y ranges that were chosen by dragging in the figure of that key, each from low to high; None: none."""
    boxes = st.session_state[key]["selection"]["box"]
    if not boxes:
        return None
    x, y = (sorted(boxes[-1][axis]) for axis in ("x", "y"))
    return (x[0], x[-1]), (y[0], y[-1])


_FOCUS = """<script>
window.focusSheets ??= () =>
  document.querySelectorAll(".dvn-scroller:not([tabindex])").forEach(part => { part.tabIndex = 0; });
window.focusSheets();
window.sheetObserver ??= new MutationObserver(window.focusSheets);
window.sheetObserver.observe(document.body, { childList: true, subtree: true });
</script>"""
"""Lets the keyboard reach what `st.dataframe` scrolls."""


def sheet(cells: Any, alt: str, **options: Any) -> None:
    """A table from rows as dicts, or from anything that `st.dataframe` takes; an empty cell is a dash.

    Heads of columns explain their terms on hovering.
    """
    if isinstance(cells, list):
        names = list(dict.fromkeys(name for row in cells for name in row))
        cells = {name: [row.get(name) for row in cells] for name in names}
    if isinstance(cells, dict):
        helps = {name: st.column_config.Column(help=text) for name in cells if (text := help_of(name))}
        options["column_config"] = helps | options.get("column_config", {})
    st.dataframe(cells, hide_index=True, alt=alt or None, placeholder=_EMPTY, **options)
    st.html(_FOCUS, unsafe_allow_javascript=True)


def table(values: Table) -> None:
    """A table under its title, whose cells wrap; where it is wider than the page it scrolls sideways."""
    script = f"<script>{asset('table.js')}</script>"
    st.html(template("figures/table.html").render(table=values) + script, unsafe_allow_javascript=True)


# Sections


def draw(sections: Iterable[Section], key: str, level: int = 2, clicks: Clicks | None = None) -> None:
    """Sections of a result page, with widgets for what is folded. key: of the figures, before their names.

    level: of their headings; 2 is that below the page's title. clicks: `on_point` of each figure, see `show`.
    """
    for section in sections:
        place = st.expander(section.title) if section.folded else st.container()
        with place:
            if section.title and not section.folded:
                heading(section.title, level)
            one = len(section.sentences) == 1
            st.markdown(plain(section.sentences[0]) if one else bullets(section.sentences))
            for name, figure in section.figures.items():
                if isinstance(figure, Markup):
                    st.html(figure)
                else:
                    show(figure, f"{key}-{name}", on_point=clicks(figure) if clicks else None)
            for values in section.tables:
                table(values)
            draw(section.parts, key, level + bool(section.title), clicks)


def choose_part(parts: Sequence[Section], key: str, clicks: Clicks | None = None) -> None:
    """Of sections the texts, and that part which is chosen by its title. clicks: as for `draw`."""
    draw([part for part in parts if part.is_text], key)
    others = {part.title: part for part in parts if not part.is_text}
    if others:
        chosen = others[address.select_button("Show", list(others), key)]
        draw([replace(chosen, title="", folded=False)], key, clicks=clicks)


# Widgets


def choose_labels(
    labels: Mapping[str, Sequence[Any]], first: Mapping[str, object], prefix: str, text: Callable[[Any], str] = str
) -> dict[str, Any]:
    """Up to three select boxes in a row, in the address as PREFIX_NAME; `first`: the default values."""
    return {
        name: address.select(
            column, name.replace("_", " ").capitalize(), values, f"{prefix}_{name}", first[name], format_func=text
        )
        for column, (name, values) in zip(st.columns(3), labels.items(), strict=False)
    }


# Downloads


def file_stem(*parts: object) -> str:
    """The name of a download without suffix: run, prompt and view."""
    return "-".join(safe_name(str(part)) for part in parts)


def download(label: str, data: str | Callable[[], bytes], name: str, key: str | None = None) -> None:
    """A download button for one file."""
    st.download_button(label, data, name, key=key, on_click="ignore", icon=":material/download:")


def buttons(make: Callable[[], Export], stem: str, forms: Sequence[str] = FORMS, several: Sequence[str] = ()) -> None:
    """A download button for each format; those in `several` have more than one file and come as a zip."""
    with st.container(horizontal=True):
        for form in forms:
            name = f"{stem}-{form}.zip" if form in several else f"{stem}.{form}"
            download(form.upper(), partial(content, make, form, form in several), name, f"{stem}.{form}")


def content(make: Callable[[], Export], form: str, several: bool) -> bytes:
    """The one file of a format, or a zip of all its files."""
    files = list(make().files(form))
    if not several:
        return files[0][1]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return packed.getvalue()
