"""Connections that are opened, answered and closed, as many as a server takes.

Bare sockets behind one epoll, and bytes made beforehand: a connection costs the server little more than it costs a
client, so a client that does anything else would be what is measured.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from itertools import cycle
from typing import Final

from benchmarks.generators.json_wires import DIALECTS
from benchmarks.generators.order import Counted, Order
from benchmarks.generators.websocket import frame, upgrade

AT_ONCE: Final = 16
STALLED_S: Final = 30.0
IP_BIND_ADDRESS_NO_PORT: Final = 24
"""Of Linux; the interpreter's own name for it is newer."""

_UPGRADED: Final = b"HTTP/1.1 101"


class Opening:
    """One connection until it is answered; `data` is what has arrived since the last request."""

    __slots__ = ("connect", "data", "sock", "started", "upgraded")

    def __init__(self, sock: socket.socket, connect: bytes, started: float) -> None:
        self.sock = sock
        self.connect = connect
        self.started = started
        self.upgraded = False
        self.data = b""


def open_and_close(order: Order, now: Callable[[], float] = time.perf_counter) -> Counted:
    """The clients of the order come in turn, `AT_ONCE` of them at a time; raises ConnectionError."""
    dialect = DIALECTS[order.wire]
    request = upgrade(order.host, order.port, dialect.path)
    turns = cycle([frame(dialect.connect(client).encode()) for client in order.clients])
    poll, openings = select.epoll(), dict[int, Opening]()
    latencies: list[float] = []
    began = now()
    counted_from, until = began + order.warm_s, began + order.warm_s + order.seconds
    cpu = time.process_time()
    warm = False

    def begin() -> None:
        started = now()
        sock = connected(order)
        sock.send(request)
        openings[sock.fileno()] = Opening(sock, next(turns), started)
        poll.register(sock.fileno(), select.EPOLLIN)

    try:
        for _ in range(AT_ONCE):
            begin()
        while (at := now()) < until:
            if not warm and at >= counted_from:
                warm, counted_from, cpu = True, at, time.process_time()
                latencies.clear()
            ready = poll.poll(STALLED_S)
            if not ready:
                raise ConnectionError(f"no answer in {STALLED_S:g} s")
            for descriptor, _ in ready:
                one = openings[descriptor]
                if answered(one, dialect.connected):
                    latencies.append(now() - one.started)
                    del openings[descriptor]
                    one.sock.close()
                    begin()
        elapsed, cpu = now() - counted_from, time.process_time() - cpu
    finally:
        for one in openings.values():
            one.sock.close()
        poll.close()
    return Counted(len(latencies), elapsed, cpu, sorted(round(taken * 1e6) for taken in latencies))


def connected(order: Order) -> socket.socket:
    """A socket whose port is chosen when it connects, by its destination. A port chosen when it binds must be free
    for every destination: that search costs more than everything else here once thousands of ports wait for the end
    of their last connection."""
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if order.source_address:
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((order.source_address, 0))
    made.connect((order.host, order.port))
    return made


def answered(one: Opening, marker: bytes) -> bool:
    """Take what has arrived, and send the next message if it is complete; whether it was the last answer."""
    some = one.sock.recv(65536)
    if not some:
        raise ConnectionError(f"the server closed the connection after {one.data[:300]!r}")
    one.data += some
    if not one.upgraded:
        end = one.data.find(b"\r\n\r\n")
        if end < 0:
            return False
        if not one.data.startswith(_UPGRADED):
            raise ConnectionError(f"no upgrade but {one.data[:80]!r}")
        one.upgraded, one.data = True, one.data[end + 4 :]
        one.sock.send(one.connect)
    if marker in one.data:
        return True
    if b'"type":"error"' in one.data:
        raise ConnectionError(f"not connected: {one.data[:300]!r}")
    return False
