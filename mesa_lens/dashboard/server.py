"""The server that `mesa-lens app` starts: the pages of main.py behind the guard, and a browser that shows them."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit import config
from streamlit.web.server.server_util import get_url

from mesa_lens.dashboard.guard import GUARDED

SCRIPT = Path(__file__).with_name("main.py")
_DELAY = 1  # seconds until the server listens


@asynccontextmanager
async def in_browser(_: Any) -> AsyncIterator[None]:
    """Opens a browser once the server is up, unless that is headless."""
    if not config.get_option("server.headless"):
        address = config.get_option("server.address") or "localhost"
        url = get_url("localhost" if address in ("0.0.0.0", "::") else address)
        asyncio.get_running_loop().call_later(_DELAY, webbrowser.open, url)
    yield


app = st.App(SCRIPT, middleware=GUARDED, lifespan=in_browser)
