"""Who may use the console: whoever knows the admin token, in a header or by a session that it opened.

The token is given once, in the body of a request; the browser then has a cookie that its pages cannot read. A request
must also carry a header that a page of another origin cannot send without being asked for permission first, which is
never given: neither reading nor acting is possible from another site, nor from another port of the same machine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from aiohttp import web

SESSIONS_MAX: Final = 64
"""One more ends the one that was used least recently."""

SESSION_S: Final = 12 * 3600.0
HEADER: Final = "X-Unisono-Console"


class ConsoleSessions:
    """Sessions in memory; a restart of the server ends them, as it changes the token."""

    def __init__(self, token: Callable[[], str], clock: Callable[[], float]) -> None:
        self._token = token
        self._clock = clock
        self._ends_at: OrderedDict[bytes, float] = OrderedDict()

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token().encode())

    def open(self, request: web.Request, response: web.Response) -> None:
        name = secrets.token_urlsafe(32)
        self._ends_at[_key(name)] = self._clock() + SESSION_S
        while len(self._ends_at) > SESSIONS_MAX:
            self._ends_at.popitem(last=False)
        response.set_cookie(
            cookie_name(request),
            name,
            max_age=int(SESSION_S),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )

    def close(self, request: web.Request, response: web.Response) -> None:
        self._ends_at.pop(_key(request.cookies.get(cookie_name(request), "")), None)
        response.del_cookie(cookie_name(request), path="/")

    def has(self, request: web.Request) -> bool:
        """Whether the request belongs to a session."""
        key = _key(request.cookies.get(cookie_name(request), ""))
        ends_at = self._ends_at.get(key)
        if ends_at is None:
            return False
        if self._clock() >= ends_at:
            del self._ends_at[key]
            return False
        self._ends_at.move_to_end(key)
        return True

    def admits(self, request: web.Request) -> bool:
        """Whether the request may ask for data or act: with the token itself, or of a page of this console."""
        given = request.headers.get("Authorization", "")
        if given.startswith("Bearer "):
            return self.is_token(given.removeprefix("Bearer "))
        return HEADER in request.headers and same_origin(request) and self.has(request)


def cookie_name(request: web.Request) -> str:
    """Cookies are shared by the ports of a host: each server has a name of its own."""
    port = request.url.port or 0
    return f"unisono_console_{port}"


def same_origin(request: web.Request) -> bool:
    """Whether the request was made by a page of this server, or by no page."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or origin.partition("://")[2] == request.host


def _key(name: str) -> bytes:
    """Sessions are looked up by a digest, so that the time of the lookup tells nothing of their names."""
    return hashlib.sha256(name.encode("utf-8", "replace")).digest()
