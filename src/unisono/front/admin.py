"""The admin port: health, readiness, metrics, and an operator's orders."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from unisono.authority.channel import KEEPING, Report
from unisono.authority.stats import Snapshot
from unisono.front.metrics import NodeCollector
from unisono.front.pipelines import PipelineCollector, read_status, read_text

log = logging.getLogger("unisono.admin")

KEEPING_BODY_BYTES_MAX: Final = 128 << 20
"""The pipeline sends about a megabyte at a time; one snapshot goes whole, and a state can be large."""


class Host(Protocol):
    """What the admin port needs of its node."""

    order_token: str

    @property
    def ready(self) -> bool: ...

    async def stats(self) -> dict[str, Snapshot]: ...

    async def silent(self) -> list[str]: ...

    async def order(self, command: str, argument: str = "", body: bytes = b"") -> Report: ...


class AdminServer:
    """Small pages for machines; anything that changes the server asks for the order token."""

    def __init__(self, host: Host, data: Path) -> None:
        self._host = host
        self._data = data
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/pipeline", self._pipeline)
        app.router.add_post("/orders/reload", self._guarded(self._reload))
        app.router.add_post("/orders/snapshot", self._guarded(self._snapshot))
        for command in KEEPING:
            app.router.add_post(f"/orders/{command}", self._guarded(partial(self._keep, command)))
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
        registry.register(PipelineCollector(await asyncio.to_thread(read_status, self._data)))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _pipeline(self, request: web.Request) -> web.Response:  # noqa: ARG002
        text = await asyncio.to_thread(read_text, self._data)
        if text is None:
            return web.json_response({"error": "no pipeline keeps its status here"}, status=404)
        return web.Response(body=text, content_type="application/json")

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

    async def _keep(self, command: str, request: web.Request) -> web.Response:
        """An order of the pipeline; what it carries is in the body."""
        body = bytearray()
        size = request.content_length or 0
        while size <= KEEPING_BODY_BYTES_MAX and (chunk := await request.content.readany()):
            body += chunk
            size = max(size, len(body))
        if size > KEEPING_BODY_BYTES_MAX:
            error = f"an order carries at most {KEEPING_BODY_BYTES_MAX} bytes"
            return web.json_response({"error": error}, status=413)
        return await self._ordered(command, body=bytes(body))

    async def _ordered(self, command: str, argument: str = "", body: bytes = b"") -> web.Response:
        try:
            report = await self._host.order(command, argument, body)
        except (TimeoutError, ConnectionError) as error:
            return web.json_response({"error": f"no answer from the authority: {error}"}, status=503)
        return web.Response(
            body=report.body, status=200 if report.ok else 409, content_type="application/json"
        )
