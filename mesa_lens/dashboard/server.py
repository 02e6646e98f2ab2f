"""The dashboard's server: routes, and whom it answers: requests whose Host and Origin are this machine's."""

import asyncio
import importlib
import ipaddress
import os
import re
import webbrowser
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from streamlit.web.server.server_util import get_url

from mesa.errors import Refused
from mesa_lens.dashboard.runs import pages_of_packages

HOSTS_VARIABLE = "MESA_LENS_HOSTS"
"""Environment variable that names further hosts, with commas between them."""
_EVERYWHERE = (None, "", "0.0.0.0", "::")  # addresses that a server listens on
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HEADERS = {
    "x-frame-options": "DENY",
    "content-security-policy": "frame-ancestors 'none'; base-uri 'self'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def host_name(text: str) -> str:
    """The host of `HOST[:PORT]` in lower case, an IPv6 address in brackets. Refused for anything else."""
    try:
        parts = urlsplit(f"//{text}")
        name, _ = (parts.hostname or "").rstrip("."), parts.port  # reading the port checks it
        is_complete = parts.netloc == text and "@" not in text
    except ValueError:
        name, is_complete = "", False
    if not is_complete or not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*", name):
        raise Refused(f"{text!r} is not a host, such as lab.example.org or 192.168.0.7")
    return f"[{name}]" if ":" in name else name


def is_foreign(origin: str, host: str, passed: Collection[str]) -> bool:
    """Whether a request to `host` comes from another site's page; passed: the names of --allow-host."""
    try:
        parts = urlsplit(origin if origin.isprintable() else "")
        is_own = parts.netloc.lower() == host.lower() or host_name(parts.netloc) in passed
    except ValueError:
        return True
    return parts.scheme not in ("http", "https") or not is_own


class Guard:
    """ASGI middleware that refuses requests and sockets of other sites, and forbids their pages to frame ours.

    A page of another site can reach this server by a name that it lets point here, which its Host shows
    (`TrustedHostMiddleware`). By an address it cannot; so where the server listens at all addresses, any will do.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers it with 400 for its Host, 403 for its Origin."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers, listening = Headers(scope=scope), config.get_option("server.address")
        passed = [*map(host_name, filter(None, os.environ.get(HOSTS_VARIABLE, "").split(",")))]
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        own = [*_LOOPBACK, *passed]
        if listening in _EVERYWHERE:
            own += [host_name(host) for host in hosts if _is_address(host)]
        else:
            own.append(host_name(listening))
        answer: ASGIApp = TrustedHostMiddleware(self.app, own, www_redirect=False)
        if len(hosts) > 1 or len(origins) > 1 or (hosts and origins and is_foreign(origins[0], hosts[0], passed)):
            answer = PlainTextResponse("a page of another site asks, as its Origin shows\n", 403)
        await answer(scope, receive, partial(_send, send))


async def _send(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
    await send(message)


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host_name(host).strip("[]")))
    except ValueError:
        return False


GUARDED = (Middleware(Guard),)


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
    """Imports what pages draw with, then opens a browser unless that is headless: it would be blank while they load."""

    async def get_ready() -> None:
        imports = asyncio.to_thread(importlib.import_module, "mesa_lens.dashboard.main")
        await asyncio.gather(imports, asyncio.sleep(_DELAY), return_exceptions=True)
        if not config.get_option("server.headless"):
            address = config.get_option("server.address") or "localhost"
            webbrowser.open(get_url("localhost" if address in ("0.0.0.0", "::") else address))

    ready = asyncio.create_task(get_ready())
    yield
    ready.cancel()


async def shell(_: Request) -> HTMLResponse:
    """The HTML page in which Streamlit draws, with one entry a page in the browser's history."""
    page = Path(st.__file__).with_name("static") / "index.html"
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{_ONE_ENTRY}", 1)
    return HTMLResponse(text, headers={"Cache-Control": "no-cache"})


PAGES = "overview mechanism anatomy readouts tokens predict thresholds heatmaps compare results methods".split()
PAGES += ["own-model", "theory"]
"""The names of the pages in the address; those of `main.PAGES`, which loads them."""
ROUTES = [Route(f"/{name}", shell) for name in ("", *PAGES, *pages_of_packages(PAGES))]
app = st.App(SCRIPT, middleware=GUARDED, lifespan=in_browser, routes=ROUTES)
