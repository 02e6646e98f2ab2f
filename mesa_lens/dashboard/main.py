"""The dashboard's frame: the choice of a run, the pages, and what is said where something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import streamlit as st
from PIL import Image

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.look import plain
from mesa_lens.dashboard.offered import offer
from mesa_lens.dashboard.runs import Entry, entries, root_folder
from mesa_lens.dashboard.state import NotWorkedOut, can_open
from mesa_lens.dashboard.views import (
    anatomy,
    compare,
    heatmaps,
    mechanism,
    methods,
    new_run,
    overview,
    results,
    theory,
    thresholds,
)
from mesa_lens.dashboard.width import watch

_WRITTEN = "run in the address"
_LOG = logging.getLogger(__name__)

# Title, icon and function of each page, and whether it needs a run.
PAGES: dict[str, tuple[str, str, Callable[[Context], None], bool]] = {
    "overview": ("Overview", ":material/summarize:", overview.page, True),
    "mechanism": ("Where inside?", ":material/my_location:", mechanism.page, True),
    "anatomy": ("Anatomy", ":material/troubleshoot:", anatomy.page, True),
    "thresholds": ("Thresholds", ":material/show_chart:", thresholds.page, True),
    "heatmaps": ("Heatmaps", ":material/grid_on:", heatmaps.page, True),
    "compare": ("Compare runs", ":material/compare_arrows:", compare.page, True),
    "results": ("Results", ":material/leaderboard:", results.page, False),
    "methods": ("Methods", ":material/apps:", methods.page, False),
    "theory": ("Theory", ":material/functions:", theory.page, False),
    "new": ("New run", ":material/add_circle:", new_run.page, False),
}

MAKE_ONE = "make demo\n# or, on your own model\nmesa-lens probe --model <hub id or local path> --out runs/mine"


_STYLE = """<style>
.stMainBlockContainer {padding: 4.5rem clamp(1rem, 4vw, 4rem) 3rem}
h1 {padding-top: 0}
</style>"""

_BACK = """<script>
if (!window.mesaLensBack) {  // a changed widget would replace the address, so that Back left the page
  window.mesaLensBack = true;
  let returning = false, acted = false;
  const [replace, push] = [history.replaceState.bind(history), history.pushState.bind(history)];
  history.pushState = (...to) => (acted ? push : replace)(...to);
  history.replaceState = (state, title, url) => {
    const to = new URL(url ?? location.href, location.href);
    const changed = to.pathname === location.pathname && to.search !== location.search;
    (changed && acted && !returning ? push : replace)(state, title, url);
  };
  addEventListener("popstate", () => { returning = true; }, true);
  for (const act of ["pointerdown", "keydown"]) addEventListener(act, () => { returning = false; acted = true; }, true);
}
</script>"""


def main(start: str = "overview") -> None:
    """Draws the page that the URL names, or `start` where it names none."""
    st.set_page_config("Mesa Lens", _icon(), layout="wide")
    st.html(_STYLE)
    st.html(_BACK, unsafe_allow_javascript=True)
    root = root_folder()
    found = tuple(entries(root))
    pages: dict[str, Any] = {}
    header = st.container(horizontal=True, vertical_alignment="bottom")
    heading = header.empty()
    context = Context(str(root), found, _chosen(found), pages)
    for url, (title, icon, draw, needs_run) in PAGES.items():
        body = partial(_guarded, draw, context, title, needs_run)
        pages[url] = st.Page(body, title=title, icon=icon, url_path=url, default=url == start)
    chosen = st.navigation(list(pages.values()), position="top")
    heading.title(chosen.title, anchor=False)
    if found and PAGES[chosen.url_path or start][3]:
        names = [entry.name for entry in found]
        header.selectbox("Run", names, key="run", width=260, help="Newest first", format_func=_told(found))
    chosen.run()
    _write_run(context.entry)
    watch()


def _chosen(found: tuple[Entry, ...]) -> Entry | None:
    """The chosen run: the URL's, else the newest that opens. It is in the URL in any case."""
    if not found:
        return None
    names = [entry.name for entry in found]
    first = st.session_state.get("run")
    if first not in names:
        first = next((entry.name for entry in found if can_open(entry)), names[0])
    asked = st.query_params.get("run")
    if asked is not None and asked != st.session_state.get(_WRITTEN):  # a link, or Back
        st.session_state["run"] = asked if asked in names else first
        if asked not in names:
            st.warning(plain(f"There is no run {asked} under the folder of runs; shown is {first}."))
    else:
        st.session_state["run"] = first  # written anew each time, so that it outlives pages that draw no box for it
    return found[names.index(st.session_state["run"])]


def _write_run(entry: Entry | None) -> None:
    """Puts the run into the URL; `bind` would leave out the first one, which is another tomorrow."""
    if entry is not None and st.query_params.get("run") != entry.name:
        st.query_params["run"] = entry.name
    st.session_state[_WRITTEN] = None if entry is None else entry.name


def _told(found: tuple[Entry, ...]) -> Callable[[str], str]:
    """A run's name, with what it lacks as the page is drawn."""
    told = {entry.name: entry.name if entry.finished else f"{entry.name} (unfinished)" for entry in found}
    return lambda name: told[name]


def _guarded(draw: Callable[[Context], None], context: Context, title: str, needs_run: bool) -> None:
    """Draws a page; what is wrong with a store is explained, never a traceback."""
    try:
        if needs_run and context.entry is None:
            _no_run(context)
        else:
            draw(context)
    except NotWorkedOut as lacking:
        offer(lacking)
    except (ValueError, OSError) as error:
        st.error(plain(error))
    except Exception as error:
        _LOG.exception("%s could not be drawn", title)
        remedy = "if the run is damaged, capture it again"
        st.error(plain(f"{title} could not be drawn ({type(error).__name__}: {error}); {remedy}"))


def _icon() -> Image.Image:
    """Mesa's chunks, as an image: each with itself and the first, the last with all."""
    chunk = np.arange(32) // 8
    seen = (chunk[:, None] == chunk[None]) | (chunk[None] == 0) | (chunk[:, None] == 3)
    seen &= np.arange(32)[:, None] >= np.arange(32)[None]
    return Image.fromarray(np.where(seen[..., None], (0, 114, 178), (222, 235, 247)).astype(np.uint8))


def _no_run(context: Context) -> None:
    st.info(plain(f"There is no run under {context.root} yet. Make one, then reload this page:"))
    st.code(MAKE_ONE, language="bash")


if __name__ == "__main__":  # how `mesa-lens app` has Streamlit run it
    main()
