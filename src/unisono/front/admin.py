"""The admin port: health, readiness, metrics, and an operator's orders."""

from __future__ import annotations

import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from unisono.authority.channel import Report
from unisono.authority.stats import Snapshot
from unisono.front.metrics import NodeCollector

log = logging.getLogger("unisono.admin")


class Host(Protocol):
    """What the admin port needs of its node."""

    order_token: str

    @property
    def ready(self) -> bool: ...

    async def stats(self) -> dict[str, Snapshot]: ...

    async def silent(self) -> list[str]: ...

    async def order(self, command: str, argument: str) -> Report: ...


class AdminServer:
    """Small pages for machines; anything that changes the server asks for the order token."""

    def __init__(self, host: Host) -> None:
        self._host = host
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/orders/reload", self._guarded(self._reload))
        app.router.add_post("/orders/snapshot", self._guarded(self._snapshot))
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, sock: socket.socket) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:  # noqa: ARG002
        if not self._host.ready:
            return web.Response(text="not ready\n", status=503)
        silent = await self._host.silent()
        if silent:
            return web.Response(text=f"not ready: no answer from {', '.join(silent)}\n", status=503)
        return web.Response(text="ready\n")

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        registry = CollectorRegistry(auto_describe=False)
        registry.register(NodeCollector(await self._host.stats()))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _guarded(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._host.order_token.encode()):
                return web.json_response({"error": "an order needs the admin token"}, status=401)
            return await handler(request)

        return guarded

    async def _reload(self, request: web.Request) -> web.Response:
        return await self._ordered("reload", request.query.get("model", ""))

    async def _snapshot(self, request: web.Request) -> web.Response:
        partition = request.query.get("partition", "")
        if not partition:
            return web.json_response({"error": "partition is required"}, status=400)
        return await self._ordered("snapshot", partition)

    async def _ordered(self, command: str, argument: str) -> web.Response:
        try:
            report = await self._host.order(command, argument)
        except (TimeoutError, ConnectionError) as error:
            return web.json_response({"error": f"no answer from the authority: {error}"}, status=503)
        return web.Response(
            body=report.body, status=200 if report.ok else 409, content_type="application/json"
        )
