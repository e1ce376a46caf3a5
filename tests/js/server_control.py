"""A real server that tests written in JavaScript start, kill and stop over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.behaviour.server.harness import SECRET, Server
from tests.ports import free_port
from tests.waiting import until


class ControlledServer:
    """One server, which keeps its port when it is started again."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._port = free_port()
        self.server = Server(data, *arguments, "--port", str(self._port)).start()
        self._lock = threading.Lock()

    def perform(self, command: str) -> dict[str, Any]:
        """`start`, `kill`, `stop` or `state`."""
        with self._lock:
            match command:
                case "start":
                    # The children of a killed server may hold the port a moment longer than their parent lives.
                    until(self._is_free, "the port of the killed server is still taken")
                    self.server.start()
                case "kill":
                    self.server.kill()
                case "stop":
                    self.server.stop()
            return {"url": self.server.url, "secret": SECRET.decode(), "admin": self.server.admin}

    def _is_free(self) -> bool:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", self._port))
                sock.listen()
            except OSError:
                return False
        return True


@contextlib.contextmanager
def controlled(data: Path, *arguments: str) -> Iterator[tuple[ControlledServer, str]]:
    """The server and the address of its control; what its clients saw is checked in the end."""
    owner = ControlledServer(data, *arguments)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                status, answer = 200, json.dumps(owner.perform(self.path.strip("/")))
            except Exception as error:  # the test in JavaScript shows it
                status, answer = 500, repr(error)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    control = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=control.serve_forever, daemon=True)
    thread.start()
    try:
        yield owner, f"http://127.0.0.1:{control.server_address[1]}"
    finally:
        control.shutdown()
        control.server_close()
        thread.join()
        owner.server.kill()
