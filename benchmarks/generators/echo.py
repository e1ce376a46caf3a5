"""The raw limit of the network: a WebSocket server that sends back what comes, and its client."""

from __future__ import annotations

import asyncio
import sys

import picows
import uvloop

from benchmarks.generators.order import EVENT_BYTES, Client, Order
from benchmarks.generators.tally import Tally
from benchmarks.generators.websocket import WebSocketConnection, frame, upgrade


class EchoConnection(WebSocketConnection):
    def __init__(self, tally: Tally, order: Order, client: Client) -> None:  # noqa: ARG002 - all are alike
        super().__init__(tally, upgrade(order.host, order.port, "/"))
        self._frame = frame(b"x" * (EVENT_BYTES + 100))

    def upgraded(self) -> None:
        self.opened.set_result(None)

    def request(self) -> bytes:
        return self._frame

    def message(self, payload: bytes) -> None:  # noqa: ARG002
        self.answered(1)


class Echo(picows.WSListener):
    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
            return
        transport.send(frame.msg_type, frame.get_payload_as_bytes())


async def serve() -> None:
    server = await picows.ws_create_server(lambda _: Echo(), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
