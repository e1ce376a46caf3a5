"""LISTEN for wake-ups of other nodes, on a second connection.

A notification only says that there is something to read; the log itself is read by `catch_up`. So a lost connection
loses nothing: it is opened again, and until then `catch_up` polls.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
from psycopg import Connection, sql

from unisono.store.port import StoreUnusable
from unisono.store.postgres.node_messages import NODE_MESSAGES_CHANNEL
from unisono.store.postgres.rows import Row

RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 30.0
"""Delay between two attempts to listen again, doubling: an attempt blocks the caller while it connects."""


NODE_MESSAGES: Final = NODE_MESSAGES_CHANNEL.encode()

MESSAGES_MAX: Final = 4_000
"""Payloads that wait to be taken, about 30 MB; the oldest are dropped."""


class NotificationListener:
    """Listens on channels. Its file descriptor stays the same when the connection is replaced.

    Invariant: the selector has the socket of `_connection` registered exactly while there is one.
    """

    def __init__(self, connect: Callable[[], Connection[Row]], channels: Sequence[str]) -> None:
        self._connect = connect
        self._channels = channels
        self._selector = selectors.DefaultSelector()
        self._connection: Connection[Row] | None = None
        self._socket = -1
        self._retry_s = RETRY_FIRST_S
        self._next_try = 0.0
        self._messages: deque[str] = deque(maxlen=MESSAGES_MAX)
        self.lost = 0
        """How often the connection was lost."""

    def fileno(self) -> int:
        """Readable when a notification may have arrived; works with select, poll and epoll."""
        return self._selector.fileno()

    def listen(self) -> None:
        """Connect and listen; raises what connecting raises."""
        connection = self._connect()
        try:
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)), prepare=False)
            self._socket = connection.pgconn.socket  # a broken connection no longer has it
            self._selector.register(self._socket, selectors.EVENT_READ)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._retry_s = RETRY_FIRST_S

    def drain(self, seen: int) -> bool:
        """Read the notifications that have arrived, without waiting; whether the log should be read.

        A notification that names a committed_id is about events up to it, and needs no read when they were `seen`.
        Without a connection the answer is False, and a reconnect is attempted if it is due.
        """
        if self._connection is None:
            self._try_again()
            return False
        called = False
        try:
            self._connection.pgconn.consume_input()
            while (notify := self._connection.pgconn.notifies()) is not None:
                if notify.relname == NODE_MESSAGES:
                    self._messages.append(notify.extra.decode("ascii", "replace"))
                    continue
                called = called or not notify.extra.isdigit() or int(notify.extra) > seen
        except psycopg.Error:
            self.lost += 1
            self._drop()
            self._try_again()
            return True
        return called

    def take_messages(self) -> list[str]:
        """The payloads on NODE_MESSAGES_CHANNEL since the last call."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def renew(self) -> None:
        """Replace the connection, at once if the server accepts one."""
        self._drop()
        self._retry_s, self._next_try = RETRY_FIRST_S, 0.0
        self._try_again()

    def close(self) -> None:
        self._drop()
        self._selector.close()

    def _try_again(self) -> None:
        if time.monotonic() < self._next_try:
            return
        try:
            self.listen()
        except (psycopg.Error, StoreUnusable):
            self._next_try = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _drop(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._socket)
            self._connection.close()
            self._connection = None
