"""The admin port: health, readiness, metrics, and admin commands (`/orders/…`)."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from unisono.authority.access_commands import AccessRequest
from unisono.ipc.files import STATUS_FILE, read_pipeline_status, read_status_text
from unisono.ipc.messages import MAINTENANCE_COMMANDS, CommandResult
from unisono.ipc.stats import CounterValues
from unisono.model.replay import Review
from unisono.node.connection_list import ConnectionsFound
from unisono.node.metrics import NodeCollector
from unisono.node.model_reload import OnProgress, ReloadRequest, review_summary
from unisono.node.model_review import ReviewProgress
from unisono.node.pipeline_metrics import PipelineCollector
from unisono.vocabulary import Json

log = logging.getLogger("unisono.admin")

MAX_COMMAND_BODY_BYTES: Final = 128 << 20
"""The pipeline sends about a megabyte at a time; a snapshot is sent whole, and a state can be large."""

MAX_PROGRESS_LINES: Final = 16
"""Lines of a reload's progress that wait to be sent; more are left out."""


SHUTDOWN_S: Final = 2.0
"""How long the end of the node waits for a request that is under way, or that comes only half. Those to a process
that has ended are answered before."""

MAX_REVOKED_S: Final = 10 * 366 * 86_400
"""Longest time for which somebody can be refused."""

MAX_CONNECTIONS_LISTED: Final = 10_000
"""Connections in one list, about a megabyte."""


RELEASE: Final = web.AppKey("release", list[Callable[[], Awaitable[None]]])
"""Called before the processes of the node end: whoever reads the log closes it, so that its writer is the last."""


class AdminHost(Protocol):
    """What the admin port needs from its node."""

    admin_token: str

    @property
    def ready(self) -> bool: ...

    async def stats(self) -> dict[str, CounterValues]: ...

    async def unresponsive(self) -> list[str]: ...

    async def execute(self, command: str, argument: str = "", body: bytes = b"") -> CommandResult: ...

    async def change_access(self, body: bytes = b"{}") -> CommandResult: ...

    async def connections(self, limit: int) -> ConnectionsFound: ...

    async def subscribers(self, partitions: Sequence[str]) -> list[int]: ...

    async def event_times(self, after: int) -> list[Json]: ...

    async def reload(
        self, request: ReloadRequest, on_progress: OnProgress | None = None
    ) -> CommandResult: ...


class AdminServer:
    """HTTP endpoints for machines; anything that changes the server needs the admin token."""

    def __init__(
        self, host: AdminHost, data: Path, extend: Callable[[web.Application], None] | None = None
    ) -> None:
        """`extend` adds routes of its own: the console, and the demo of a development server."""
        self._host = host
        self._status_file = data / STATUS_FILE
        app = web.Application(client_max_size=64 * 1024)
        self._release = app[RELEASE] = []
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/pipeline", self._pipeline)
        app.router.add_post("/orders/reload", self._guarded(self._reload))
        app.router.add_post("/orders/access", self._guarded(self._change_access))
        app.router.add_get("/revocations", self._guarded(self._revocations))
        app.router.add_get("/connections", self._guarded(self._connections))
        app.router.add_post("/orders/snapshot", self._guarded(self._snapshot))
        for command in MAINTENANCE_COMMANDS:
            app.router.add_post(f"/orders/{command}", self._guarded(partial(self._maintain, command)))
        if extend is not None:
            extend(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)

    async def start(self, sock: socket.socket) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def release(self) -> None:
        """Let go of the log; requests that need it are refused from now on."""
        for release in self._release:
            await release()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:  # noqa: ARG002
        if not self._host.ready:
            return web.Response(text="not ready\n", status=503)
        unresponsive = await self._host.unresponsive()
        if unresponsive:
            return web.Response(text=f"not ready: no answer from {', '.join(unresponsive)}\n", status=503)
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
            if not hmac.compare_digest(given.encode("utf-8", "replace"), self._host.admin_token.encode()):
                return web.json_response({"error": "an admin command needs the admin token"}, status=401)
            return await handler(request)

        return guarded

    async def _reload(self, request: web.Request) -> web.StreamResponse:
        """Answers with one object. With `progress` it answers with lines of JSON: the progress of the review, its
        result before the switch, and at last the answer with its status.
        """
        flags = {
            name: request.query.get(name, "") in ("1", "true")
            for name in ("dry_run", "strict", "skip_history")
        }
        reload = ReloadRequest(request.query.get("model", ""), **flags)
        if request.query.get("progress", "") not in ("1", "true"):
            return await self._answered(self._host.reload(reload))
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def work() -> web.Response:
            def on_progress(news: ReviewProgress | Review) -> None:
                if isinstance(news, ReviewProgress) and lines.qsize() >= MAX_PROGRESS_LINES:
                    return  # a slow reader gets fewer lines of progress
                line = news if isinstance(news, ReviewProgress) else {"history": review_summary(news)}
                lines.put_nowait(msgspec.json.encode(line) + b"\n")

            try:
                return await self._answered(self._host.reload(reload, on_progress))
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

    async def _change_access(self, request: web.Request) -> web.Response:
        """Without a body: read the ACL again. Otherwise see AccessRequest."""
        body = await request.read() or b"{}"
        try:
            asked = msgspec.json.decode(body, type=AccessRequest)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": str(error)}, status=400)
        if asked.kind is not None and not (asked.name and 0 <= asked.for_s <= MAX_REVOKED_S):
            return web.json_response({"error": "a name, and a time of at most ten years"}, status=400)
        return await self._answered(self._host.change_access(body))

    async def _revocations(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return await self._execute("revocations")

    async def _connections(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "1000")
        short = len(limit) <= len(str(MAX_CONNECTIONS_LISTED))
        if not (short and limit.isascii() and limit.isdigit() and 0 < int(limit) <= MAX_CONNECTIONS_LISTED):
            return web.json_response({"error": f"limit: 1 to {MAX_CONNECTIONS_LISTED}"}, status=400)
        try:
            found = await self._host.connections(int(limit))
        except (TimeoutError, ConnectionError) as error:
            return web.json_response({"error": str(error)}, status=503)
        return web.json_response({"connections": found.connections, "silent_nodes": found.silent})

    async def _snapshot(self, request: web.Request) -> web.Response:
        partition = request.query.get("partition", "")
        if not partition:
            return web.json_response({"error": "partition is required"}, status=400)
        return await self._execute("snapshot", partition)

    async def _maintain(self, command: str, request: web.Request) -> web.Response:
        """A maintenance command of the pipeline, with its data in the body."""
        body = bytearray()
        size = request.content_length or 0
        while size <= MAX_COMMAND_BODY_BYTES and (chunk := await request.content.readany()):
            body += chunk
            size = max(size, len(body))
        if size > MAX_COMMAND_BODY_BYTES:
            error = f"an admin command has at most {MAX_COMMAND_BODY_BYTES} bytes"
            return web.json_response({"error": error}, status=413)
        return await self._execute(command, body=bytes(body))

    async def _execute(self, command: str, argument: str = "", body: bytes = b"") -> web.Response:
        return await self._answered(self._host.execute(command, argument, body))

    async def _answered(self, executing: Awaitable[CommandResult]) -> web.Response:
        try:
            result = await executing
        except (TimeoutError, ConnectionError) as error:
            return web.json_response({"error": f"no answer from the authority: {error}"}, status=503)
        return web.Response(
            body=result.body, status=200 if result.ok else 409, content_type="application/json"
        )
