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

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from unisono.ipc.files import STATUS_FILE, read_pipeline_status, read_status_text
from unisono.ipc.messages import MAINTENANCE_COMMANDS, CommandResult
from unisono.ipc.stats import CounterValues
from unisono.model.replay import Review
from unisono.node.metrics import NodeCollector
from unisono.node.model_reload import ReloadWish, Tell, described
from unisono.node.model_review import ReviewProgress
from unisono.node.pipeline_metrics import PipelineCollector

log = logging.getLogger("unisono.admin")

MAX_COMMAND_BODY_BYTES: Final = 128 << 20

MAX_PROGRESS_LINES: Final = 16
"""Lines of a reload's progress that wait to be read."""
"""The pipeline sends about a megabyte at a time; one snapshot goes whole, and a state can be large."""


class AdminHost(Protocol):
    """What the admin port needs of its node."""

    order_token: str

    @property
    def ready(self) -> bool: ...

    async def stats(self) -> dict[str, CounterValues]: ...

    async def silent(self) -> list[str]: ...

    async def order(self, command: str, argument: str = "", body: bytes = b"") -> CommandResult: ...

    async def reload(self, wish: ReloadWish, tell: Tell | None = None) -> CommandResult: ...


class AdminServer:
    """Small pages for machines; anything that changes the server asks for the order token."""

    def __init__(self, host: AdminHost, data: Path) -> None:
        self._host = host
        self._status_file = data / STATUS_FILE
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/pipeline", self._pipeline)
        app.router.add_post("/orders/reload", self._guarded(self._reload))
        app.router.add_post("/orders/snapshot", self._guarded(self._snapshot))
        for command in MAINTENANCE_COMMANDS:
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
        status = await asyncio.to_thread(read_pipeline_status, self._status_file)
        registry.register(PipelineCollector(status))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _pipeline(self, request: web.Request) -> web.Response:  # noqa: ARG002
        text = await asyncio.to_thread(read_status_text, self._status_file)
        if text is None:
            return web.json_response({"error": "no pipeline keeps its status here"}, status=404)
        return web.Response(body=text, content_type="application/json")

    def _guarded(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._host.order_token.encode()):
                return web.json_response({"error": "an order needs the admin token"}, status=401)
            return await handler(request)

        return guarded

    async def _reload(self, request: web.Request) -> web.StreamResponse:
        """The answer is one object. With `progress` it is lines: how far the log is read, what came of that before
        anything switches, and at last the answer with its status.
        """
        flags = {
            name: request.query.get(name, "") in ("1", "true")
            for name in ("dry_run", "strict", "skip_history")
        }
        wish = ReloadWish(request.query.get("model", ""), **flags)
        if request.query.get("progress", "") not in ("1", "true"):
            return await self._answered(self._host.reload(wish))
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def work() -> web.Response:
            def tell(told: ReviewProgress | Review) -> None:
                if isinstance(told, ReviewProgress) and lines.qsize() >= MAX_PROGRESS_LINES:
                    return  # whoever does not read learns of the rest later
                line = told if isinstance(told, ReviewProgress) else {"history": described(told)}
                lines.put_nowait(msgspec.json.encode(line) + b"\n")

            try:
                return await self._answered(self._host.reload(wish, tell))
            finally:
                lines.put_nowait(None)

        working = asyncio.create_task(work())
        try:
            while (line := await lines.get()) is not None:
                await stream.write(line)
            answer = await working
            assert isinstance(answer.body, bytes)
            await stream.write(b'{"status":%d,"answer":%b}\n' % (answer.status, answer.body))
        finally:
            working.cancel()
        await stream.write_eof()
        return stream

    async def _snapshot(self, request: web.Request) -> web.Response:
        partition = request.query.get("partition", "")
        if not partition:
            return web.json_response({"error": "partition is required"}, status=400)
        return await self._ordered("snapshot", partition)

    async def _keep(self, command: str, request: web.Request) -> web.Response:
        """An order of the pipeline; what it carries is in the body."""
        body = bytearray()
        size = request.content_length or 0
        while size <= MAX_COMMAND_BODY_BYTES and (chunk := await request.content.readany()):
            body += chunk
            size = max(size, len(body))
        if size > MAX_COMMAND_BODY_BYTES:
            error = f"an order carries at most {MAX_COMMAND_BODY_BYTES} bytes"
            return web.json_response({"error": error}, status=413)
        return await self._ordered(command, body=bytes(body))

    async def _ordered(self, command: str, argument: str = "", body: bytes = b"") -> web.Response:
        return await self._answered(self._host.order(command, argument, body))

    async def _answered(self, ordered: Awaitable[CommandResult]) -> web.Response:
        try:
            report = await ordered
        except (TimeoutError, ConnectionError) as error:
            return web.json_response({"error": f"no answer from the authority: {error}"}, status=503)
        return web.Response(
            body=report.body, status=200 if report.ok else 409, content_type="application/json"
        )
