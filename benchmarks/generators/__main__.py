"""One generator process: its order on the first line of stdin, `ready` when connected, then a line for the start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import msgspec
import uvloop

from benchmarks.generators.echo import EchoConnection
from benchmarks.generators.grpc_umadb import UmaWriter
from benchmarks.generators.http_streams import StreamsReader, StreamsWriter
from benchmarks.generators.json_wires import DIALECTS, JsonConnection, JsonListener, JsonReader, JsonWriter
from benchmarks.generators.nats_wire import NatsReader, NatsWriter
from benchmarks.generators.opening import open_and_close
from benchmarks.generators.order import Client, Order
from benchmarks.generators.tally import LoopConnection, Tally
from benchmarks.generators.yjs import YjsListener, YjsWriter

OPENING_AT_ONCE = 50
OPENING_TIMEOUT_S = 120.0

_PLAIN: dict[tuple[str, str], Callable[[Tally, Order, Client], LoopConnection]] = {
    ("echo", "submit"): EchoConnection,
    ("umadb", "submit"): UmaWriter,
    ("nats", "submit"): NatsWriter,
    ("nats", "read"): NatsReader,
    ("streams", "submit"): StreamsWriter,
    ("streams", "read"): StreamsReader,
    ("hocuspocus", "submit"): YjsWriter,
    ("hocuspocus", "listen"): YjsListener,
}
_JSON: dict[str, type[JsonConnection]] = {
    "submit": JsonWriter,
    "read": JsonReader,
    "listen": JsonListener,
    "hold": JsonConnection,
}


def connection(tally: Tally, order: Order, client: Client) -> LoopConnection:
    if order.wire in DIALECTS:
        return _JSON[order.work](tally, order, client, DIALECTS[order.wire])
    return _PLAIN[order.wire, order.work](tally, order, client)


async def open_all(tally: Tally, order: Order) -> list[LoopConnection]:
    """Some at a time, so that the accept queue of a server holds them."""
    loop = asyncio.get_running_loop()
    made: list[LoopConnection] = []
    for start in range(0, len(order.clients), OPENING_AT_ONCE):
        some = [connection(tally, order, client) for client in order.clients[start : start + OPENING_AT_ONCE]]
        for one in some:
            await loop.create_connection(lambda one=one: one, order.host, order.port)  # type: ignore[misc]
        async with asyncio.timeout(OPENING_TIMEOUT_S):
            await asyncio.gather(*(one.opened for one in some))
        made += some
    return made


async def generate(order: Order, wait_for_line: Callable[[], None]) -> None:
    loop, tally = asyncio.get_running_loop(), Tally(order.items_max)
    if order.work == "connect":
        print("ready", flush=True)
        await loop.run_in_executor(None, wait_for_line)
        print(msgspec.json.encode(open_and_close(order)).decode(), flush=True)
        return
    connections = await open_all(tally, order)
    print("ready", flush=True)
    await loop.run_in_executor(None, wait_for_line)
    if order.work != "hold":
        tally.running = True
        for one in connections:
            one.begin()
        await tally.wait(order.warm_s)
        tally.start()
        await tally.wait(order.seconds)
        print(msgspec.json.encode(tally.result()).decode(), flush=True)
        tally.running = False
    for one in connections:
        one.close()


def _wait_for_line() -> None:
    sys.stdin.readline()


def main() -> int:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    try:
        uvloop.run(generate(order, _wait_for_line))
    except (OSError, TimeoutError) as error:
        print(f"{order.wire} {order.work}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
