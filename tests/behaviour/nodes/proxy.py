"""A network between a node and its database that can be cut, stopped, and pointed elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

IDLE = b"Z\0\0\0\5I"
"""PostgreSQL says that it is ready and in no transaction: what was to be committed is."""


class Proxy:
    """Forwards every connection to `target`, a port of this machine, as long as nothing is the matter.

    `at_commit`: the next group's COMMIT is cut off, before the server hears it or after it has done it.
    `silent`: nothing passes any more in either direction, and nobody is told.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.at_commit: Literal["before", "after"] | None = None
        self.silent = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """End every connection there is."""
        for pair in self._pairs:
            _end(*pair)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
                deaf = threading.Event()
                for work in (self._to_server, self._to_client):
                    thread = threading.Thread(target=work, args=(client, server, deaf))
                    self._threads.append(thread)
                    thread.start()

    def _to_server(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        before = b""
        with suppress(OSError):
            while data := client.recv(65536):
                if self.silent.is_set():
                    continue
                if self.at_commit is not None and _commits_a_group(before, data):
                    if self.at_commit == "before":
                        break
                    deaf.set()
                before = data[-1000:]
                server.sendall(data)
        if not deaf.is_set():
            _end(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if deaf.is_set():
                    if data.endswith(IDLE):
                        break
                elif not self.silent.is_set():
                    client.sendall(data)
        _end(client, server)


def _commits_a_group(before: bytes, data: bytes) -> bool:
    """Whether `data` ends a group. What need not be durable is committed, too, and says so just before."""
    stream = before + data
    place = stream.rfind(b"COMMIT", max(0, len(before) - 5))
    return place >= 0 and b"synchronous_commit" not in stream[max(0, place - 500) : place]


def _end(*sockets: socket.socket) -> None:
    for sock in sockets:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


@contextmanager
def proxied(target: int) -> Iterator[Proxy]:
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
