"""Connections that are opened, answered and closed, as many as a server takes."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from typing import Final

from benchmarks.generators.json_wires import DIALECTS, JsonConnection
from benchmarks.generators.order import Counted, Order
from benchmarks.generators.tally import Tally

AT_ONCE = 16
IP_BIND_ADDRESS_NO_PORT: Final = 24
"""Of Linux; the interpreter's own name for it is newer."""


async def connected(order: Order) -> socket.socket:
    """A socket whose port is chosen when it connects, by its destination. A port chosen when it binds must be free
    for every destination: that search costs more than everything else here once thousands of ports wait for the end
    of their last connection."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if order.source_address:
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((order.source_address, 0))
    await asyncio.get_running_loop().sock_connect(made, (order.host, order.port))
    return made


async def open_and_close(tally: Tally, order: Order) -> Counted:
    """The clients of the order come in turn, `AT_ONCE` of them at a time."""
    loop, dialect = asyncio.get_running_loop(), DIALECTS[order.wire]
    turns = itertools.cycle(order.clients)
    until = time.perf_counter() + order.warm_s + order.seconds

    async def one_after_the_other() -> None:
        while time.perf_counter() < until:
            started = time.perf_counter()
            one = JsonConnection(tally, order, next(turns), dialect)
            await loop.create_connection(lambda: one, sock=await connected(order))  # noqa: B023
            await one.opened
            tally.items += 1
            tally.latencies.append(time.perf_counter() - started)
            one.close()

    slots = [loop.create_task(one_after_the_other()) for _ in range(AT_ONCE)]
    await tally.wait(order.warm_s)
    tally.start()
    await tally.wait(order.seconds)
    counted = tally.result()
    await asyncio.gather(*slots)
    return counted
