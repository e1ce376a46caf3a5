"""The console: pages for operators on the admin port, at `/`, and the JSON they are made from, under `/api/`.

Everything needs the admin token or a session opened with it; without, the answer is 401 and at `/` a page that asks
for the token. All answers carry headers that forbid inline scripts, foreign content, framing and caching of data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from unisono.config import Settings
from unisono.console import parameters
from unisono.console.api import ConsoleApi
from unisono.console.errors import ConsoleBusy, ConsoleRefused
from unisono.console.log_views import LogViews
from unisono.console.metric_history import MetricHistory
from unisono.console.parameters import BadParameter
from unisono.console.pipeline_api import REPORT_HEADERS, PipelineApi
from unisono.console.process_client import ProcessClient
from unisono.console.process_requests import StartReplays
from unisono.console.sessions import HEADER, ConsoleSessions, same_origin
from unisono.node.admin import RELEASE, AdminHost
from unisono.vocabulary import Json

log = logging.getLogger("unisono.console")

STATIC: Final = Path(__file__).parent / "static"

REQUESTS_MAX: Final = 32
"""Requests for data that are being answered; one more is refused."""

PUBLIC: Final = frozenset({"login.html", "login.js", "console.css"})
"""What a browser needs to ask for the token."""

_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LoginRequest(msgspec.Struct, frozen=True):
    """The body of a login."""

    token: str


class ConsoleSite:
    """The routes of the console, for the admin port."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir())}
        self._answering = 0

    def add_routes(self, app: web.Application, host: AdminHost) -> None:
        self._sessions = ConsoleSessions(lambda: host.admin_token, time.monotonic)
        history = MetricHistory(host.stats)
        views = LogViews(self._settings)
        replays = ProcessClient("replay", "unisono.console.replay_process", StartReplays(self._settings))
        queries = ProcessClient("query", "unisono.console.sql_process")
        pipeline = PipelineApi(self._settings, queries)
        api = ConsoleApi(self._settings, host, history, views, replays, pipeline)
        router = app.router
        router.add_get("/", self._index)
        router.add_get("/console/{name:[A-Za-z0-9._-]*}", self._file)
        router.add_post("/api/login", self._login)
        router.add_post("/api/logout", self._logout)
        for path, read in api.reads.items():
            router.add_get(f"/api/{path}", partial(self._answered, read))
        for path, act in api.actions.items():
            router.add_post(f"/api/{path}", partial(self._answered, act))
        router.add_get("/reports/{name:[a-z]*}", partial(self._report, pipeline))
        router.add_get("/api/{rest:.*}", self._unknown)

        async def lifetime(_: web.Application) -> AsyncIterator[None]:
            sampling = asyncio.create_task(history.run())
            yield
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling

        app.cleanup_ctx.append(lifetime)
        app[RELEASE] += [replays.close, queries.close, views.close]

    async def _index(self, request: web.Request) -> web.Response:
        if self._sessions.has(request):
            return self._static("index.html", 200)
        return self._static("login.html", 401)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in PUBLIC and not self._sessions.has(request):
            return _refusal("log in first", 401)
        if name not in self._files or name.endswith(".html"):
            return _refusal("the console has no such file", 404)
        return self._static(name, 200)

    def _static(self, name: str, status: int) -> web.Response:
        headers = {**HEADERS, "Cache-Control": "no-cache"}
        kind = _TYPES[Path(name).suffix]
        return web.Response(
            body=self._files[name], status=status, content_type=kind, charset="utf-8", headers=headers
        )

    async def _report(self, pipeline: PipelineApi, request: web.Request) -> web.Response:
        """A page of the pipeline, for a frame."""
        if not self._sessions.has(request):
            return _refusal("log in first", 401)
        try:
            page = await pipeline.report(request.match_info["name"])
        except ConsoleRefused as error:
            return _refusal(str(error), 404)
        headers = {**HEADERS, **REPORT_HEADERS}
        return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)

    async def _login(self, request: web.Request) -> web.Response:
        if HEADER not in request.headers or not same_origin(request):
            return _refusal("log in by a page of this console", 403)
        try:
            given = await parameters.body(request, LoginRequest)
        except BadParameter:
            return _refusal("the body is an object with the token", 400)
        if not self._sessions.is_token(given.token.strip()):
            log.warning("console: login refused for %s", request.remote, extra={"remote": request.remote})
            return _refusal("this is not the admin token of the running server", 401)
        log.info("console: login from %s", request.remote, extra={"remote": request.remote})
        response = _json({"ok": True})
        self._sessions.open(request, response)
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        if not self._sessions.admits(request):
            return _refusal("log in first", 401)
        response = _json({"ok": True})
        self._sessions.close(request, response)
        return response

    async def _unknown(self, request: web.Request) -> web.Response:
        if not self._sessions.admits(request):
            return _refusal("log in first", 401)
        return _refusal("there is nothing of this name", 404)

    async def _answered(
        self, handler: Callable[[web.Request], Awaitable[Json]], request: web.Request
    ) -> web.Response:
        if not self._sessions.admits(request):
            return _refusal("log in first", 401)
        if self._answering >= REQUESTS_MAX:
            return _refusal("too many requests at once; try again", 503)
        self._answering += 1
        try:
            return _json(await handler(request))
        except BadParameter as error:
            return _refusal(str(error), 400)
        except ConsoleRefused as error:
            return _refusal(str(error), 409)
        except (ConsoleBusy, TimeoutError, ConnectionError) as error:
            return _refusal(str(error) or "a process of the server does not answer", 503)
        finally:
            self._answering -= 1


def _json(value: Json, status: int = 200) -> web.Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=headers
    )


def _refusal(error: str, status: int) -> web.Response:
    return _json({"error": error}, status)
