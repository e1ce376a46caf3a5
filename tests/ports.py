"""Ports for programs that must be told one, and take it only some time later."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

FIRST, LAST = 20_000, 30_000
"""Below the range from which systems choose, so that no connection and no other server is given one meanwhile."""

_given: set[int] = set()


def free_port() -> int:
    """A port of this machine that nobody has; two test processes, and two calls, are never given the same."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = [port for port in range(FIRST, LAST) if port % workers == int(worker) and port not in _given]
    for port in random.sample(own, 100):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise AssertionError("a hundred ports, and none of them is free")
