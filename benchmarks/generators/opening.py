"""Connections that are opened, answered and closed, as many as a server takes."""

from __future__ import annotations

import asyncio
import itertools
import time

from benchmarks.generators.json_wires import DIALECTS, JsonConnection
from benchmarks.generators.order import Counted, Order
from benchmarks.generators.tally import Tally

AT_ONCE = 16


async def open_and_close(tally: Tally, order: Order) -> Counted:
    """The clients of the order come in turn, `AT_ONCE` of them at a time."""
    loop, dialect = asyncio.get_running_loop(), DIALECTS[order.wire]
    turns = itertools.cycle(order.clients)
    until = time.perf_counter() + order.warm_s + order.seconds
    source = (order.source_address, 0) if order.source_address else None

    async def one_after_the_other() -> None:
        while time.perf_counter() < until:
            started = time.perf_counter()
            one = JsonConnection(tally, order, next(turns), dialect)
            await loop.create_connection(lambda: one, order.host, order.port, local_addr=source)  # noqa: B023
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
