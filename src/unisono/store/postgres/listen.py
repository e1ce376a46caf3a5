"""Wake-ups from other nodes, on a connection of their own.

A wake-up only says where to look; the log is read by whoever is woken. So a lost connection costs no news: it is
made again, and until then the log is looked at by the clock.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
from psycopg import Connection, sql

from unisono.store.port import StoreUnusable
from unisono.store.postgres.rows import Row

RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 30.0
"""Between two tries to listen again, doubling: a try can block the caller for as long as connecting takes."""


class NotificationListener:
    """Listens on channels. Its descriptor stays the same whatever happens to the connection.

    Invariant: the selector holds the socket of `_connection` exactly while there is one.
    """

    def __init__(self, connect: Callable[[], Connection[Row]], channels: Sequence[str]) -> None:
        self._connect = connect
        self._channels = channels
        self._selector = selectors.DefaultSelector()
        self._connection: Connection[Row] | None = None
        self._socket = -1
        self._retry_s = RETRY_FIRST_S
        self._next_try = 0.0
        self.lost = 0
        """How often the connection was lost."""

    def fileno(self) -> int:
        """Readable when something came in; works with select, poll and epoll."""
        return self._selector.fileno()

    def listen(self) -> None:
        """Connect and listen; raises what connecting raises."""
        connection = self._connect()
        try:
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)), prepare=False)
            self._socket = connection.pgconn.socket  # a broken connection cannot tell it any more
            self._selector.register(self._socket, selectors.EVENT_READ)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._retry_s = RETRY_FIRST_S

    def drain(self, seen: int) -> bool:
        """Take in what has arrived, without waiting for more: does it call for a look at the log?

        A wake-up that names a committed_id is about events up to it, and calls for nothing when they were
        `seen`. When the connection is gone nothing calls; it is made again if it is time to.
        """
        if self._connection is None:
            self._try_again()
            return False
        called = False
        try:
            self._connection.pgconn.consume_input()
            while (notify := self._connection.pgconn.notifies()) is not None:
                called = called or not notify.extra.isdigit() or int(notify.extra) > seen
        except psycopg.Error:
            self.lost += 1
            self._drop()
            self._try_again()
            return True
        return called

    def renew(self) -> None:
        """Listen on a new connection, now if it can be had."""
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
