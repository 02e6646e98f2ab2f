"""The server that `mesa-lens app` starts: the pages of main.py behind the guard, and a browser that shows them."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from streamlit import config
from streamlit.web.server.server_util import get_url

from mesa_lens.dashboard.guard import GUARDED

SCRIPT = Path(__file__).with_name("main.py")
_DELAY = 1  # seconds until the server listens
_ONE_ENTRY = """<script>
  // Streamlit adds an entry for a page that is opened, and another for the values that it puts into its address.
  const push = history.pushState;
  history.pushState = function (state, title, url) {
    const isHere = new URL(url, location.href).pathname === location.pathname;
    (isHere ? history.replaceState : push).call(this, state, title, url);
  };
</script>"""


@asynccontextmanager
async def in_browser(_: Any) -> AsyncIterator[None]:
    """Opens a browser once the server is up, unless that is headless."""
    if not config.get_option("server.headless"):
        address = config.get_option("server.address") or "localhost"
        url = get_url("localhost" if address in ("0.0.0.0", "::") else address)
        asyncio.get_running_loop().call_later(_DELAY, webbrowser.open, url)
    yield


async def shell(_: Request) -> HTMLResponse:
    """The HTML page in which Streamlit draws, with one entry a page in the browser's history."""
    page = Path(st.__file__).with_name("static") / "index.html"
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{_ONE_ENTRY}", 1)
    return HTMLResponse(text, headers={"Cache-Control": "no-cache"})


ROUTES = [
    Route(f"/{name}", shell) for name in ("", *sorted(path.stem for path in SCRIPT.parent.glob("views/[a-z]*.py")))
]
"""The addresses of the pages, each named as its module."""
app = st.App(SCRIPT, middleware=GUARDED, lifespan=in_browser, routes=ROUTES)
