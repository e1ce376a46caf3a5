"""One connection of a running node: statements go out in batches, a batch is one round trip, and none hangs.

The connection stays in libpq's pipeline mode for its life, and every batch ends with a Sync and nothing after it.
Leaving pipeline mode after each batch would send a Flush behind the Sync, and PostgreSQL takes that for a sign of
life: it stops the clock of idle_in_transaction_session_timeout, so a node that vanished would keep the head locked.

For the same reason no ROLLBACK is sent: psycopg forgets every prepared statement when it sees one. A transaction
that is given up has written nothing and is committed.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, LiteralString, Self

import psycopg
from psycopg import Connection, Cursor

from unisono.store.postgres.connect import SQL
from unisono.store.postgres.rows import Row

WATCH_S: Final = 0.5
"""How often the clock of an answer is looked at."""

Parameters = Mapping[str, Any] | None


class PipelineConnection:
    """Named queries over one connection.

    Invariant: between two calls nothing is on its way; errors leave the connection unusable, and its owner closes it.
    """

    def __init__(self, connection: Connection[Row], answer_s: float) -> None:
        self.connection = connection
        self._watch = _Watch(connection.pgconn.socket, answer_s)
        self._poll = select.poll()
        self._poll.register(connection.pgconn.socket, select.POLLIN | select.POLLOUT)
        self._stack = ExitStack()
        self._pipeline = self._stack.enter_context(connection.pipeline())

    def send(self, query: str, parameters: Parameters = None) -> Cursor[Row]:
        """Add a query to the batch; its rows are there after `sync`."""
        with self._watch:
            cursor = self.connection.execute(SQL[query], parameters, binary=True)
            self._push()
            return cursor

    def control(self, statement: LiteralString) -> Cursor[Row]:
        """Add BEGIN, COMMIT or SET to the batch."""
        with self._watch:
            return self.connection.execute(statement, prepare=False)

    def sync(self) -> None:
        """End the batch and take in all its answers; raises the first error among them."""
        with self._watch:
            self._pipeline.sync()
            if self._pipeline.result_queue:
                raise psycopg.OperationalError("the server did not answer everything it was asked")

    def _push(self) -> None:
        """Send what libpq still holds. Waiting for answers to it would take for ever: psycopg sends only what
        fits into the socket's buffer, which a group of large events does not."""
        pgconn = self.connection.pgconn
        while pgconn.flush():
            for _, event in self._poll.poll():
                if event & ~select.POLLOUT:
                    pgconn.consume_input()  # the server may be waiting in turn until its answers are taken

    def ask(self, query: str, parameters: Parameters = None) -> list[Row]:
        """A batch of one query, and its rows."""
        cursor = self.send(query, parameters)
        self.sync()
        return cursor.fetchall() if cursor.description else []

    def execute_async_commit(self, query: str, parameters: Parameters = None) -> list[Row]:
        """The same for what need not be durable: the disk is not waited for."""
        self.control("BEGIN")
        self.control("SET LOCAL synchronous_commit = off")
        cursor = self.send(query, parameters)
        self.control("COMMIT")
        self.sync()
        return cursor.fetchall() if cursor.description else []

    def release_locks(self) -> None:
        """End a transaction that wrote nothing, and free its locks."""
        self.control("SET LOCAL synchronous_commit = off")
        self.control("COMMIT")
        self.sync()

    def close(self) -> None:
        """At once, whatever state the connection is in."""
        self._watch.close()
        self.connection.close()
        with suppress(psycopg.Error):  # the pipeline has nothing left to wait for
            self._stack.close()


class _Watch:
    """Ends a connection whose answer does not come, from a thread, by shutting its socket.

    Timeouts of the server cover its own work, keepalives cover the network. This covers the rest: a server that is
    stopped, and a COMMIT that waits for a standby, which no timeout of PostgreSQL ends.
    """

    def __init__(self, descriptor: int, answer_s: float) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._answer_s = answer_s
        self._until: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self._until = time.monotonic() + self._answer_s
        return self

    def __exit__(self, *_error: object) -> None:
        self._until = None

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self._socket.close()

    def _run(self) -> None:
        while not self._closed.wait(WATCH_S):
            until = self._until
            if until is not None and time.monotonic() > until:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
