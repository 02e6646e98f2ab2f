"""The dashboard's frame: the choice of a run, the pages, and errors."""

import importlib
import logging
from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import Any

import numpy as np
import streamlit as st
from PIL import Image

from mesa.errors import Refused
from mesa_lens.dashboard import address
from mesa_lens.dashboard.elements import draw, plain, suggest, written
from mesa_lens.dashboard.runs import Context, Entry, entries, pages_of_packages, root_folder
from probe.commands import Command, commands
from probe.figures.export import asset

_FORMER = "former run"  # key of the state: of the run that was displayed last, also by another page
_LOG = logging.getLogger(__name__)

_VIEWS = {
    "overview": ("Overview", ":material/summarize:", "overview.page", True, None),
    "mechanism": ("Where inside?", ":material/my_location:", "inside.located", True, None),
    "anatomy": ("Anatomy", ":material/troubleshoot:", "inside.anatomy", True, "anatomy"),
    "readouts": ("Readouts", ":material/radar:", "inside.readouts", True, "readout"),
    "tokens": ("Tokens", ":material/text_fields:", "inside.tokens", True, "anatomy"),
    "predict": ("Predict", ":material/trending_up:", "predict.page", True, "predict"),
    "thresholds": ("Thresholds", ":material/show_chart:", "thresholds.page", True, None),
    "heatmaps": ("Heatmaps", ":material/grid_on:", "heatmaps.page", True, None),
    "compare": ("Compare runs", ":material/compare_arrows:", "overview.compare", True, None),
    "results": ("Results", ":material/leaderboard:", "results.page", False, "eval"),
    "methods": ("Methods", ":material/apps:", "methods.page", False, None),
    "own-model": ("Run your model", ":material/play_circle:", "own_model.page", False, None),
    "theory": ("Theory", ":material/functions:", "theory.page", False, None),
}
"""Title, icon and function (in a module of views) of each page, whether it needs a run, and the command it shows."""


def _pages() -> dict[str, tuple[str, str, Callable[[Context], None], bool]]:
    """Title, icon and function of each page, and whether it needs a run: those of commands that are installed."""
    known, pages = commands(), {}
    for name, (title, icon, view, needs_run, of) in _VIEWS.items():
        if of is None or of in known:
            module, _, function = view.partition(".")
            page = getattr(importlib.import_module(f"mesa_lens.dashboard.views.{module}"), function)
            pages[name] = title, icon, page, needs_run
    for name in pages_of_packages(_VIEWS):
        pages[name] = name.capitalize(), ":material/extension:", partial(_of_command, known[name]), True
    return pages


def _of_command(command: Command, context: Context) -> None:
    """What a command of another package tells of its results in the report of a run."""
    sections = written(context, lambda folder: list(command.on_page("inside")(folder)) or None, command.name)
    draw(sections or [], command.name)


PAGES = _pages()
_HOW = """mesa-lens probe --length 2048 --out {0}/demo
# or, on your own model
mesa-lens probe --model <hub id or local path> --out {0}/mine"""
_STYLE = f"""<style>
.stMainBlockContainer {{padding: 4.5rem clamp(1rem, 4vw, 4rem) 3rem}}
h1 {{padding-top: 0}}
.stMainBlockContainer h2 {{font-size: 1.5rem !important}}
.stMainBlockContainer h3 {{font-size: 1.25rem !important}}
:is([data-tag], [data-testid="stBaseButton-primary"]) * {{color: light-dark(#fff, #171614)}}
[data-testid="stCaptionContainer"] {{color: inherit !important; opacity: 0.8}}
.js-plotly-plot :is([class$="tick"], .infolayer) text {{fill: currentColor !important}}
{asset("table.css")}</style>"""


def main(start: str = "overview") -> None:
    """Draws the page in the address, or `start`."""
    st.set_page_config("Mesa Lens", _icon(), layout="wide")
    st.html(_STYLE)
    root = root_folder()
    runs = tuple(entries(root))
    pages: dict[str, Any] = {}
    hidden: list[Any] = []
    header = st.container(horizontal=True, vertical_alignment="bottom")
    heading, notice = header.empty(), st.empty()

    def body(url: str) -> None:
        _guarded(url, context)

    for url, (title, icon, _, _) in PAGES.items():
        pages[url] = st.Page(partial(body, url), title=title, icon=icon, url_path=url)
        if url == start:  # at "/", and at its own name
            hidden = [st.Page(partial(body, url), title=title, icon=icon, url_path=url, visibility="hidden")]
            pages[url] = st.Page(partial(body, url), title=title, icon=icon, url_path="", default=True)
    page = st.navigation([*pages.values(), *hidden], position="top")
    heading.title(page.title, anchor=False)
    address.open_page(page.url_path)
    context = Context(str(root), runs, _choose(runs), pages)
    if runs and PAGES[page.url_path or start][3]:
        labels = {entry.name: entry.name if entry.finished else f"{entry.name} (unfinished)" for entry in runs}
        header.selectbox("Run", list(labels), key="run", width=260, help="Newest first", format_func=labels.__getitem__)
    page.run()
    if wrong := address.write():
        notice.warning(plain(f"Not understood in the address: {'; '.join(wrong)}."))


def _choose(runs: tuple[Entry, ...]) -> Entry | None:
    """The run in the address, else the former one, else the newest that opens."""
    if not runs:
        return None
    names = [entry.name for entry in runs]
    default = st.session_state.get(_FORMER)
    if default not in names:
        default = next((entry.name for entry in runs if entry.opens), names[0])
    name = st.session_state[_FORMER] = address.value_of("run", default, address.one_of(names))
    return runs[names.index(name)]


def _guarded(url: str, context: Context) -> None:
    """Draws a page; an error is a message, never a traceback."""
    title, _, draw, needs_run = PAGES[url]
    try:
        if needs_run and context.entry is None:
            address.keep()
            root = context.root
            suggest(f"There is no run under {root} yet. Make one, then reload this page:", _HOW.format(quote(root)))
        else:
            draw(context)
    except (Refused, OSError) as error:
        address.keep()
        st.error(plain(error))
    except Exception as error:
        address.keep()
        _LOG.exception("%s could not be drawn", title)
        remedy = "if the run is damaged, capture it again"
        st.error(plain(f"{title} could not be drawn ({type(error).__name__}: {error}); {remedy}"))


def _icon() -> Image.Image:
    """The mask of Mesa's chunks: each sees itself and the first, the last sees all. Streamlit fetches its own icons."""
    chunk = np.arange(32) // 8
    visible = (chunk[:, None] == chunk[None]) | (chunk[None] == 0) | (chunk[:, None] == 3)
    visible &= np.arange(32)[:, None] >= np.arange(32)[None]
    return Image.fromarray(np.where(visible[..., None], (0, 114, 178), (222, 235, 247)).astype(np.uint8))


if __name__ == "__main__":  # run by Streamlit for `mesa-lens app`
    main()
