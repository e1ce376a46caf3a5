"""A proxy between a node and its database that cuts or swallows what passes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.waiting import PATIENCE_S


class Proxy:
    """Forwards to PostgreSQL, until a COMMIT passes: then it cuts, before the server saw it or after."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cut: str | None = None
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                deaf = threading.Event()
                for work in (self._to_server, self._to_client):
                    thread = threading.Thread(target=work, args=(client, server, deaf), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _to_server(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        tail = b""
        with suppress(OSError):
            while data := client.recv(65536):
                at_commit = self.cut is not None and b"COMMIT" in tail + data
                tail = data[-6:]
                if at_commit and self.cut == "before":
                    break
                if at_commit:
                    deaf.set()
                server.sendall(data)
        if not deaf.is_set():
            _end(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if deaf.is_set() and data.endswith(b"Z\0\0\0\5I"):  # ready for query, idle: it is committed
                    break
                if not deaf.is_set():
                    client.sendall(data)
        _end(client, server)


def _end(*sockets: socket.socket) -> None:
    for sock in sockets:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
