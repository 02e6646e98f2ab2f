"""The dashboard's server: routes, and whom it answers: requests whose Host and Origin are this machine's."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import webbrowser
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
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
_HEADERS = {
    "x-frame-options": "DENY",
    "content-security-policy": "frame-ancestors 'none'; base-uri 'self'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def host_name(text: str) -> str:
    """The host of `HOST[:PORT]` in lower case; an address in its usual form. Refused for anything else."""
    try:
        parts = urlsplit(f"//{text}")
        name, _ = (parts.hostname or "").rstrip("."), parts.port  # reading the port checks it
        is_whole = parts.netloc == text and "@" not in text
    except ValueError:
        name, is_whole = "", False
    if not is_whole or not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*", name):
        raise Refused(f"{text!r} is not a host, such as lab.example.org or 192.168.0.7")
    address = _address(name)
    return name if address is None else str(address)


def refusal(hosts: list[str], origins: list[str], listening: str | None, given: Iterable[str]) -> str | None:
    """Why a request with these headers is not answered; None where it is. listening, given: --host, --allow-host.

    A page of another site can reach this server by a name that it lets point here, which its Host shows. By an address
    it cannot; so where the server listens at all addresses, any of them will do.
    """
    given = {*map(host_name, given)}
    try:
        (host,) = hosts
        name = host_name(host)
    except ValueError:
        return "a request needs one header Host that names a host"
    address, own = _address(name), {"localhost", *given, *(() if listening in _EVERYWHERE else (listening.lower(),))}
    is_here = address is not None and (address.is_loopback or listening in _EVERYWHERE)
    if name not in own and not is_here:
        return f"host {name} is not served here; allow it: mesa-lens app --allow-host {name}"
    for origin in origins:
        parts = urlsplit(origin) if origin.isprintable() else urlsplit("")
        try:
            is_own = parts.netloc.lower() == host.lower() or host_name(parts.netloc) in given
        except Refused:
            is_own = False
        if parts.scheme not in ("http", "https") or not is_own or len(origins) > 1:
            return "a page of another site asks, as its Origin shows"
    return None


class Guard:
    """ASGI middleware that refuses requests and sockets by `refusal`, and forbids pages of others to frame ours."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers it with 403."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = filter(None, os.environ.get(HOSTS_VARIABLE, "").split(","))
        listening = config.get_option("server.address")
        wrong = refusal(headers.getlist("host"), headers.getlist("origin"), listening, given)
        if scope["type"] == "websocket":
            if wrong is None:
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008, "reason": wrong})
            return
        answer = self.app if wrong is None else PlainTextResponse(f"{wrong}\n", 403)
        await answer(scope, receive, partial(_send, send))


async def _send(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
    await send(message)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


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


_VIEWS = sorted(path.stem for path in SCRIPT.parent.glob("views/[a-z]*.py"))
ROUTES = [Route(f"/{name}", shell) for name in ("", *_VIEWS, *pages_of_packages())]
"""The addresses of the pages, each named as its module, or as the command that it is of."""
app = st.App(SCRIPT, middleware=GUARDED, lifespan=in_browser, routes=ROUTES)
