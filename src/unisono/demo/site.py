"""The demo: a page in the browser with a shared outline and a board, served by `unisono serve --dev` alone.

The page is built on the published JavaScript client (`static/client.js`, made by `npm run build` in `clients/js`) and
talks to the server as any client does. What it needs besides is a token, which a development server gives to anybody
on this machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from unisono.front.auth.verify import sign_token

STATIC: Final = Path(__file__).parent / "static"
TOKEN_TTL_S: Final = 24 * 3600
PARTITION: Final = "demo"
NAME_CHARS_MAX: Final = 20

_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_POLICY: Final = (
    "default-src 'self'; connect-src *; worker-src blob:; img-src data:; "
    "base-uri 'none'; frame-ancestors 'none'"
)


def reachable_url(url: str, host: str = "127.0.0.1") -> str:
    """The address for clients of this machine: a server that listens on all addresses (0.0.0.0) has none itself."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):  # noqa: S104
        return url
    named = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{named}:{parts.port}").geturl()


class DemoSite:
    """The routes of the demo, for the admin port of a development server."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir())}

    def add_routes(self, app: web.Application, ws_url: str) -> None:
        app.router.add_get("/demo", self._redirect)
        app.router.add_get("/demo/session", self._session(ws_url))
        app.router.add_get("/demo/{name:[a-z.]*}", self._file)

    async def _redirect(self, request: web.Request) -> web.Response:  # noqa: ARG002
        raise web.HTTPFound("/demo/")

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"] or "index.html"
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound(text="the demo has no such file\n")
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
        return web.Response(
            body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=headers
        )

    def _session(self, ws_url: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def session(request: web.Request) -> web.Response:
            """A token for a client_id; only for pages of this site, whatever name a foreign one gave this machine."""
            host = urlsplit(f"//{request.host}").hostname
            if host not in ("localhost", "127.0.0.1", "::1"):
                raise web.HTTPForbidden(text="open the demo by the address that the server printed\n")
            client_id = request.query.get("client_id", "")
            if not _CLIENT_ID.fullmatch(client_id):
                raise web.HTTPBadRequest(text="client_id has letters, digits, - and _, 64 at most\n")
            name = request.query.get("name", "").strip()[:NAME_CHARS_MAX] or None
            token = sign_token(self._secret, client_id, ttl_s=TOKEN_TTL_S, now_s=time.time(), user_id=name)
            url = reachable_url(ws_url, host)
            return web.json_response({"url": url, "token": token, "partition": PARTITION})

        return session
