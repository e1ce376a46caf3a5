"""Who is connected, on all nodes: each node is asked through the shared log, and answers in parts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from unisono.ipc.messages import CommandResult, ListConnections, ListedConnections
from unisono.store.batching import in_batches
from unisono.vocabulary import JsonObject

ANSWER_S: Final = 1.0
"""How long the answers of other nodes are waited for. Of a node that is late, the shared log knows its clients."""

PART_BYTES: Final = 4_096
"""Of connections in one message between nodes; one that is larger goes without its list of partitions."""

ANSWERING_MAX: Final = 4
"""Questions of other nodes that are answered at a time; others are passed over."""

OwnConnections = Callable[[int], Awaitable[list[JsonObject]]]
Execute = Callable[[str, str, bytes], Awaitable[CommandResult]]


class ConnectionsFound(msgspec.Struct, frozen=True):
    """Connections of all nodes. Of a node in `silent`, which did not answer in time, some may have names only."""

    connections: list[JsonObject]
    silent: list[str]


class Answers:
    """What the other nodes say to one question."""

    def __init__(self, nodes: set[str]) -> None:
        self.found: list[JsonObject] = []
        self.complete = asyncio.Event()
        self.missing = nodes

    def add(self, part: ListedConnections) -> None:
        self.found += [{**each, "node": part.node} for each in msgspec.json.decode(part.body)]
        if not part.more:
            self.missing.discard(part.node)
            if not self.missing:
                self.complete.set()


class ConnectionList:
    """The connections of this node, and with those of the others."""

    def __init__(self, node: str, own: OwnConnections, execute: Execute) -> None:
        """`own` gives the connections of this node; `execute` sends a command to the authority."""
        self._node = node
        self._own = own
        self._execute = execute
        self._asked: dict[str, Answers] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def everywhere(self, limit: int) -> ConnectionsFound:
        found = [{**each, "node": self._node} for each in await self._own(limit)]
        known = {each["client_id"] for each in found}
        answer = await self._execute("clients", str(limit), b"")
        clients = msgspec.json.decode(answer.body)["clients"] or ()
        elsewhere = {who: node for who, node in clients if who not in known}
        silent: list[str] = []
        if elsewhere:
            answers = await self._of_others(set(elsewhere.values()), limit)
            found += answers.found
            silent = sorted(answers.missing)
            known = {each["client_id"] for each in found}
        found += [{"client_id": who, "node": node} for who, node in elsewhere.items() if who not in known]
        return ConnectionsFound(found[:limit], silent)

    async def _of_others(self, nodes: set[str], limit: int) -> Answers:
        ticket = secrets.token_hex(8)
        answers = self._asked[ticket] = Answers(nodes)
        try:
            await self._tell(ListConnections(ticket, limit))
            async with asyncio.timeout(ANSWER_S):
                await answers.complete.wait()
        except TimeoutError:
            pass
        finally:
            del self._asked[ticket]
        return answers

    def on_message(self, message: ListConnections | ListedConnections) -> None:
        """Another node asks, or answers."""
        if isinstance(message, ListedConnections):
            if (answers := self._asked.get(message.ticket)) is not None:
                answers.add(message)
        elif len(self._answering) < ANSWERING_MAX:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, question: ListConnections) -> None:
        try:
            rows = [_encoded(each) for each in await self._own(question.limit)]
            parts = list(in_batches(rows, len, count_max=len(rows) or 1, bytes_max=PART_BYTES)) or [[]]
            for number, part in enumerate(parts, 1):
                body = b"[" + b",".join(part) + b"]"
                await self._tell(
                    ListedConnections(question.ticket, self._node, body, more=number < len(parts))
                )
        except (TimeoutError, ConnectionError):
            pass  # this node is ending, or too busy: the other one does without

    async def _tell(self, message: ListConnections | ListedConnections) -> None:
        await self._execute("tell", "", msgspec.msgpack.encode(message))


def _encoded(connection: JsonObject) -> bytes:
    row = msgspec.json.encode(connection)
    return row if len(row) <= PART_BYTES else msgspec.json.encode({**connection, "partitions": []})
