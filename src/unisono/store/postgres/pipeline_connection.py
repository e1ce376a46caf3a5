"""One connection of a running node: statements are sent in batches, a batch is one round trip, and none hangs.

The connection stays in libpq's pipeline mode, and every batch ends with a Sync and nothing after it. Leaving pipeline
mode after each batch would send a Flush after the Sync, which resets PostgreSQL's timer of
idle_in_transaction_session_timeout: a node that vanished would keep the head locked.

No ROLLBACK is sent either: psycopg drops every prepared statement when it sees one. A transaction that is abandoned
has written nothing, and is committed.
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
"""How often the deadline of an answer is checked."""

Parameters = Mapping[str, Any] | None


class PipelineConnection:
    """Named queries over one connection.

    Invariant: between two calls no answer is outstanding. After an error the connection is unusable, and its owner
    closes it.
    """

    def __init__(self, connection: Connection[Row], answer_s: float) -> None:
        self.connection = connection
        self._watch = _Watch(connection.pgconn.socket, answer_s)
        self._poll = select.poll()
        self._poll.register(connection.pgconn.socket, select.POLLIN | select.POLLOUT)
        self._stack = ExitStack()
        self._pipeline = self._stack.enter_context(connection.pipeline())

    def send(self, query: str, parameters: Parameters = None) -> Cursor[Row]:
        """Add a query to the batch; its rows are available after `sync`."""
        with self._watch:
            cursor = self.connection.execute(SQL[query], parameters, binary=True)
            self._push()
            return cursor

    def control(self, statement: LiteralString) -> Cursor[Row]:
        """Add BEGIN, COMMIT or SET to the batch."""
        with self._watch:
            return self.connection.execute(statement, prepare=False)

    def sync(self) -> None:
        """End the batch and read all its answers; raises the first error among them."""
        with self._watch:
            self._pipeline.sync()
            if self._pipeline.result_queue:
                raise psycopg.OperationalError("the server did not answer every statement of a batch")

    def _push(self) -> None:
        """Send what libpq still buffers. psycopg sends only what fits into the socket's buffer; waiting for answers
        to the rest, of a group of large events, would never end."""
        pgconn = self.connection.pgconn
        while pgconn.flush():
            for _, event in self._poll.poll():
                if event & ~select.POLLOUT:
                    pgconn.consume_input()  # the server may wait until its answers are read

    def ask(self, query: str, parameters: Parameters = None) -> list[Row]:
        """Run a batch of one query; its rows."""
        cursor = self.send(query, parameters)
        self.sync()
        return cursor.fetchall() if cursor.description else []

    def execute_async_commit(self, query: str, parameters: Parameters = None) -> list[Row]:
        """As `ask`, with synchronous_commit off: for writes that need not survive a crash."""
        self.control("BEGIN")
        self.control("SET LOCAL synchronous_commit = off")
        cursor = self.send(query, parameters)
        self.control("COMMIT")
        self.sync()
        return cursor.fetchall() if cursor.description else []

    def release_locks(self) -> None:
        """End a transaction that wrote nothing, and release its locks."""
        self.control("SET LOCAL synchronous_commit = off")
        self.control("COMMIT")
        self.sync()

    def close(self) -> None:
        """Close at once, whatever state the connection is in."""
        self._watch.close()
        self.connection.close()
        with suppress(psycopg.Error):  # the pipeline has nothing left to wait for
            self._stack.close()


class _Watch:
    """Shuts the socket of a connection, from a thread, when an answer takes too long.

    The server's timeouts cover its own work, and keepalives cover the network. This covers the rest: a suspended
    server, and a COMMIT that waits for a standby, which no timeout of PostgreSQL ends.
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
