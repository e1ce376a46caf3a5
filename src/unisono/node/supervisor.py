"""The node: watches its processes, answers for them, and ends them in order.

`unisono.node.start` starts them; the ready line is printed when all of them are ready. End, on SIGTERM or
SIGINT: fronts drain (stop accepting, finish queued work, close with 1001), then reader and authority end. When a
child ends by itself the node ends with an error, for its supervisor to start again: recovery is an ordinary start.
The same when authority or reader gives up a front that reads nothing: its clients would wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from aiohttp.web import Application

from unisono.authority.stuck_rules import CallWatch, is_standing
from unisono.config import Settings
from unisono.front.access import Acl, AclError
from unisono.ipc.files import ADMIN_FILE, COMMAND_TIMEOUT_S, AdminFile, write_admin_file
from unisono.ipc.link import Link
from unisono.ipc.messages import (
    AdminCommand,
    AskAccess,
    AskConnections,
    AskEventTimes,
    AskStats,
    AskSubscribers,
    CommandResult,
    Drain,
    ListConnections,
    ListedConnections,
    Message,
    PeerFailed,
    Ready,
    Stats,
)
from unisono.ipc.stats import CounterValues, parse
from unisono.node.admin import AdminHost, AdminServer
from unisono.node.connection_list import ConnectionList, ConnectionsFound
from unisono.node.model_reload import ModelReloader, OnProgress, ReloadRequest
from unisono.node.processes import (
    EXIT_FAILED,
    Child,
    now_ms,
)
from unisono.vocabulary import Json, JsonObject

log = logging.getLogger("unisono.node")

STATS_TIMEOUT_S: Final = 2.0
"""A process that cannot send its counters within this is left out of the scrape."""

RULE_CHECK_EVERY_S: Final = 0.5
"""How often the node checks whether a rule blocks the authority."""

EXIT_GRACE_S: Final = 2.0
"""For a process to exit after its control channel was closed: only clean-up is left."""


class AdminSite(Protocol):
    """Adds routes to the admin port, for pages that connect to the WebSocket address or ask the node."""

    def __call__(self, app: Application, ws_url: str, host: AdminHost) -> None: ...


class Supervisor:
    """One server: its children and its admin port.

    Invariant: a child is in `_links` exactly while its control channel is open.
    """

    def __init__(
        self, settings: Settings, children: list[Child], urls: tuple[str, str], calls: CallWatch
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._children = children
        self._ws_url, self._admin_url = urls
        self._links: dict[str, Link] = {}
        self._ready: set[str] = set()
        self._tickets = count(1)
        self._answers: dict[int, tuple[str, asyncio.Future[Stats | CommandResult]]] = {}
        """Who is asked, and what waits for the answer."""
        self._given_up: set[str] = set()
        self._stopping = False
        self._changed = asyncio.Event()
        self._failed = False
        self.admin_token = secrets.token_urlsafe(32)
        self._reloader = ModelReloader(settings, self.execute)
        name = settings.node_name or socket.gethostname()
        self._connection_list = ConnectionList(name, self._own_connections, self.execute)

    async def run(
        self, admin_socket: socket.socket, announce: Callable[[str], None], site: AdminSite | None = None
    ) -> int:
        for child in self._children:
            self._links[child.role] = await Link.open(
                child.control,
                child.role,
                lambda message, role=child.role: self._on_message(role, message),  # type: ignore[misc]
                lambda role=child.role: self._on_lost(role),  # type: ignore[misc]
            )
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        extend = None if site is None else partial(site, ws_url=self._ws_url, host=self)
        admin = AdminServer(self, Path(self._settings.data), extend)
        await admin.start(admin_socket)
        self._ready.update(("authority", "reader"))  # they said so before the fronts were started
        await self._until(lambda: self.ready or self._stopping)
        if self.ready:
            admin_file = AdminFile(self._admin_url, self.admin_token)
            write_admin_file(Path(self._settings.data), admin_file)
            announce(f"unisono ready {self._ws_url} admin {self._admin_url}")
        watching = loop.create_task(self._watch_rules())
        await self._until(lambda: self._stopping)
        self._reloader.stop()
        watching.cancel()
        # Before the log is released: the next server writes a file of its own.
        (Path(self._settings.data) / ADMIN_FILE).unlink(missing_ok=True)
        await admin.release()
        await self._end()
        await admin.close()
        return EXIT_FAILED if self._failed else 0

    async def _watch_rules(self) -> None:
        (authority,) = (child for child in self._children if child.role == "authority")
        while True:
            await asyncio.sleep(RULE_CHECK_EVERY_S)
            standing = is_standing(authority.pid)
            if self._calls.look(time.monotonic(), now_ms(), standing=standing):
                os.kill(authority.pid, signal.SIGKILL)
                return

    # -- for the admin port --------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return not self._stopping and self._ready == {child.role for child in self._children}

    async def stats(self) -> dict[str, CounterValues]:
        """The counters of every child that answers in time."""

        async def ask(role: str) -> tuple[str, CounterValues | None]:
            try:
                answer = await self._ask(role, AskStats, STATS_TIMEOUT_S)
            except (TimeoutError, ConnectionError):
                return role, None
            assert isinstance(answer, Stats)
            return role, parse(answer.body)

        answers = await asyncio.gather(*(ask(role) for role in list(self._links)))
        return {role: snapshot for role, snapshot in answers if snapshot is not None}

    async def unresponsive(self) -> list[str]:
        """The processes that do not answer, and the log if it is unavailable."""
        answering = await self.stats()
        unresponsive = [child.role for child in self._children if child.role not in answering]
        authority = answering.get("authority")
        if authority is not None and not authority.gauges.get("store_reachable", 1):
            unresponsive.append("the log")
        return unresponsive

    async def execute(self, command: str, argument: str = "", body: bytes = b"") -> CommandResult:
        """Send an admin command to the authority and wait for its result."""
        answer = await self._ask(
            "authority", lambda t: AdminCommand(t, command, argument, body), COMMAND_TIMEOUT_S
        )
        assert isinstance(answer, CommandResult)
        return answer

    async def change_access(self, body: bytes = b"{}") -> CommandResult:
        """Refuse somebody, or read the ACL again, on all nodes; an ACL that cannot be read changes nothing.

        When it returns, the fronts of this node have applied it; those of other nodes do so a moment later.
        """
        try:
            if self._settings.acl is not None:
                await asyncio.to_thread(Acl.load, self._settings.acl)
        except AclError as error:
            return CommandResult(0, False, msgspec.json.encode({"error": str(error)}))
        result = await self.execute("access", body=body)
        if result.ok:
            number = msgspec.json.decode(result.body)["number"]
            await self._ask_fronts(partial(AskAccess, number=number), COMMAND_TIMEOUT_S)
        return result

    async def connections(self, limit: int) -> ConnectionsFound:
        """The connections of all nodes."""
        return await self._connection_list.everywhere(limit)

    async def _own_connections(self, limit: int) -> list[JsonObject]:
        answers = await self._ask_fronts(partial(AskConnections, limit=limit))
        return [each for answer in answers for each in answer][:limit]

    async def subscribers(self, partitions: Sequence[str]) -> list[int]:
        """How many connections of this node subscribe to each partition."""
        answers = await self._ask_fronts(partial(AskSubscribers, partitions=tuple(partitions)))
        return [sum(counts) for counts in zip(*answers, strict=True)]

    async def event_times(self, after: int) -> list[Json]:
        """When events after an id were submitted to this node and delivered by it: EventTimes of all fronts."""
        answers = await self._ask_fronts(partial(AskEventTimes, after=after))
        return [each for answer in answers for each in answer]

    async def reload(self, request: ReloadRequest, on_progress: OnProgress | None = None) -> CommandResult:
        """Review the log under another model, and switch to it unless something speaks against it."""
        return await self._reloader.reload(request, on_progress)

    async def _ask_fronts(
        self, message: Callable[[int], Message], timeout_s: float = STATS_TIMEOUT_S
    ) -> list[Any]:
        """The answer of each front."""
        fronts = [role for role in self._links if role.startswith("front")]
        answers = await asyncio.gather(*(self._ask(role, message, timeout_s) for role in fronts))
        return [msgspec.json.decode(answer.body) for answer in answers]

    async def _ask(
        self, role: str, message: Callable[[int], Message], timeout_s: float
    ) -> Stats | CommandResult:
        link = self._links.get(role)
        if link is None:
            raise ConnectionError(f"{role} is gone")
        if role not in self._ready:
            raise ConnectionError(f"{role} has not started yet")
        ticket = next(self._tickets)
        future: asyncio.Future[Stats | CommandResult] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = role, future
        try:
            link.send(message(ticket))
            return await asyncio.wait_for(future, timeout_s)
        finally:
            del self._answers[ticket]

    # -- children ------------------------------------------------------------------------------------------

    def _on_message(self, role: str, message: Message) -> None:
        match message:
            case Ready():
                self._ready.add(role)
                self._changed.set()
            case Stats() | CommandResult():
                _, future = self._answers.get(message.ticket, (role, None))
                if future is not None and not future.done():
                    future.set_result(message)
            case ListConnections() | ListedConnections():
                self._connection_list.on_message(message)
            case PeerFailed():
                self._given_up.add(message.role)
                self._fail(
                    f"{role} gave up {message.role}: {message.reason}",
                    {"child": message.role, "given_up_by": role, "reason": message.reason},
                )
            case _:
                unexpected = type(message).__name__
                log.error(
                    "node: unexpected message %s from %s",
                    unexpected,
                    role,
                    extra={"message_type": unexpected, "child": role},
                )

    def _on_lost(self, role: str) -> None:
        self._links.pop(role, None)
        for asked, future in self._answers.values():  # the end of the node waits for who waits for them
            if asked == role and not future.done():
                future.set_exception(ConnectionError(f"{role} is gone"))
        if role == "authority" and not self._stopping:
            self._calls.ended(time.monotonic(), now_ms())
        self._fail(f"{role} ended unexpectedly", {"child": role})

    def _fail(self, why: str, fields: Mapping[str, str]) -> None:
        """End the node with an error: only a new start repairs what happened."""
        if not self._stopping:
            log.critical("%s: stopping the node", why, extra=fields)
            self._failed = True
            self._stopping = True
        self._changed.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _stop(self) -> None:
        if not self._stopping:
            log.info("node stopping: finishing queued work")
        self._stopping = True
        self._changed.set()

    def _reload(self) -> None:
        async def reload() -> None:
            try:
                result = await self._reloader.reload(ReloadRequest())
            except (TimeoutError, ConnectionError) as error:
                log.error(
                    "reload failed: no answer from the authority: %s", error, extra={"error": str(error)}
                )
                return
            await self._reload_access()
            outcome = "done" if result.ok else "refused"
            fields = {"outcome": outcome, "result": msgspec.json.decode(result.body)}
            log.info("reload %s: %s", outcome, result.body.decode(), extra=fields)

        self._reloading = asyncio.get_running_loop().create_task(reload())

    async def _reload_access(self) -> None:
        try:
            result = await self.change_access()
        except (TimeoutError, ConnectionError) as error:
            log.error(
                "ACL not reloaded: no answer from the authority: %s", error, extra={"error": str(error)}
            )
            return
        if result.ok:
            log.info("ACL reloaded")
        else:
            reason = result.body.decode()
            log.error("ACL not reloaded: %s", reason, extra={"error": reason})

    async def _end(self) -> None:
        """End fronts first, then the processes they depend on; kill what does not end in time.

        Fronts that lost authority or reader, or were given up by them, end by themselves: a Drain that arrives before
        they notice would close clients with 1001 instead of `server_error` (DUR-04).
        """
        settings = self._settings
        fronts = {child.role for child in self._children if child.role.startswith("front")}
        orphaned = not {"authority", "reader"} <= self._links.keys()
        drain_s = settings.drain_timeout_s + settings.close_grace_s + 1
        await self._await_end(fronts - self._given_up, drain_s, drain=not orphaned)
        await self._await_end(self._given_up, settings.close_grace_s + 1, drain=False)
        # The authority last: SQLite removes the write-ahead log when the last connection to close is the writer's.
        await self._await_end({"reader"}, settings.drain_timeout_s)
        await self._await_end({"authority"}, settings.drain_timeout_s)
        for child in self._children:
            code = await self._exit_code(child)
            if code != 0:
                log.error(
                    "%s exited with code %d", child.role, code, extra={"child": child.role, "exit_code": code}
                )
                self._failed = True

    async def _exit_code(self, child: Child) -> int:
        deadline = asyncio.get_running_loop().time() + EXIT_GRACE_S
        while (code := child.poll()) is None:
            if asyncio.get_running_loop().time() > deadline:
                log.error("%s does not exit: killing it", child.role, extra={"child": child.role})
                os.kill(child.pid, signal.SIGKILL)
                return child.reap()
            await asyncio.sleep(0.01)
        return code

    async def _await_end(self, roles: Set[str], timeout_s: float, *, drain: bool = True) -> None:
        for role in roles:
            if drain and role in self._links:
                self._links[role].send(Drain())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._until(lambda: not any(role in self._links for role in roles)), timeout_s
            )
