"""Whether the page is as narrow as a phone's; the browser says so, at first and whenever the window changes."""

from __future__ import annotations

import streamlit as st
from streamlit.components.v2 import component

from probe.figures.mobile_layout import NARROW

_KEY = "page width"
_WATCH = component(
    "mesa_lens_width",
    js=f"""export default function({{ data, setStateValue }}) {{
  const query = matchMedia("(max-width: {NARROW}px)");
  const tell = () => {{ if (query.matches !== data.narrow) setStateValue("narrow", query.matches); }};
  query.addEventListener("change", tell);
  tell();
  return () => query.removeEventListener("change", tell);
}}""",
)


def is_narrow() -> bool:
    """What the browser said last; before it did, whether it calls itself a phone's."""
    said = getattr(st.session_state.get(_KEY), "narrow", None)
    return "Mobi" in st.context.headers.get("User-Agent", "") if said is None else said


def watch() -> None:
    """Has the browser say it; a narrow page that is no phone's is drawn a second time, when it is opened."""
    _WATCH(key=_KEY, data={"narrow": is_narrow()}, on_narrow_change=lambda: None, height=1)
