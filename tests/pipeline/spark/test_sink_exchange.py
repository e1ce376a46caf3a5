"""One task of the sink and the server: limits, refusals, lost connections, and servers that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from websockets.sync.server import ServerConnection, serve

from tests.behaviour.server.harness import Server, running
from tests.pipeline.history import read_store
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until
from unisono.pipeline.spark.sinking.answers import SinkTarget
from unisono.pipeline.spark.sinking.connection import ExchangeRefused
from unisono.pipeline.spark.sinking.exchange import Exchange, ExchangeFailed
from unisono.pipeline.spark.sinking.items import SinkItem, to_items
from unisono.pipeline.spark.sinking.tokens import Tokens
from unisono.protocol.codec import encode


def items(prefix: str, count: int) -> list[SinkItem]:
    event = '{"type":"treePush","payload":{"target":"t","value":{"id":"%s"},"options":{"parent":"%s"}}}'
    rows = [
        {
            "id": f"{prefix}-{number}",
            "partitions": [prefix],
            "event": event % (f"n{number}", f"n{number - 1}" if number else "_root"),
        }
        for number in range(count)
    ]
    return list(to_items(pa.RecordBatch.from_pylist(rows), from_content=False))


def exchange(server: Server, **changes: Any) -> Exchange:
    tokens = Tokens.of({"jwt_secret_file": str(server.secret_file)}, "alone")
    speaking = SinkTarget(
        changes.get("url", server.url),
        "compatibility",
        changes.get("batch", 10),
        changes.get("in_flight", 4),
        changes.get("timeout_s", PATIENCE_S),
    )
    return Exchange(speaking, tokens.of_task(0))


def test_a_rate_limit_delays_and_breaks_nothing(tmp_path: Path) -> None:
    """Every event rests on the one before it; those that overtook a refused one are submitted again."""
    limits = ("--rate-events-per-s", "400", "--rate-burst-events", "25")
    with running(tmp_path / "data", "--model", "open", *limits) as server:
        with exchange(server) as conversation:
            rejections = list(conversation.submit(iter(items("chain", 300))))
            assert (rejections, conversation.committed) == ([], 300)
        assert [record.id for record in read_store(server.data)] == [f"chain-{n}" for n in range(300)]


def test_a_request_refused_whole_is_taken_apart(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open", "--require-uuid-ids") as server:
        fine = [f"00000000-0000-4000-8000-{number:012d}" for number in range(20)]
        asked = [
            SinkItem(id, item.partitions, item.event)
            for id, item in zip([*fine[:7], "no uuid", *fine[7:]], items("p", 21), strict=True)
        ]
        # Without its parent the rest of the chain is refused, and said so in order.
        with exchange(server, batch=100) as conversation:
            rejections = list(conversation.submit(iter(asked)))
        assert [rejection.reason for rejection in rejections] == ["bad_request"] + ["validation_failed"] * 13
        assert [record.id for record in read_store(server.data)] == fine[:7]


def is_free(port: int) -> bool:
    """Whether the last process of a killed server has let go of its port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.req("DUR-03")
def test_the_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    server = Server(tmp_path / "data", "--model", "open", "--port", str(port)).start()
    try:
        with exchange(server) as conversation:

            def slowly() -> Iterator[SinkItem]:
                for number, item in enumerate(items("chain", 400)):
                    if number == 200:
                        server.kill()
                        until(lambda: is_free(port), "the port of the killed server is still in use")
                        threading.Thread(target=server.start).start()
                    yield item

            assert list(conversation.submit(slowly())) == []
            assert conversation.committed == 400
        assert [record.id for record in read_store(server.data)] == [f"chain-{n}" for n in range(400)]
    finally:
        server.kill()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The URL of a server that says one thing after the other, then nothing but goodbye."""

    def talk(connection: ServerConnection) -> None:
        for answer, _ in zip(answers, connection, strict=False):
            connection.send(answer, text=True)
        connection.recv()

    with serve(talk, "127.0.0.1", 0) as stub:
        thread = threading.Thread(target=stub.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{stub.socket.getsockname()[1]}"
        stub.shutdown()
        thread.join()


def test_a_server_that_falls_over_each_time_is_given_up(server: Server) -> None:
    """It is there and lets everyone in; but what is submitted is never answered."""
    with (
        answering(encode("connected", "s1", 0, b"{}")) as url,
        exchange(server, url=url, timeout_s=0.2) as conversation,
        pytest.raises(ExchangeFailed, match="gave no answer for 0 s: closed: 1000"),
    ):
        list(conversation.submit(iter(items("chain", 3))))


def test_a_server_that_will_not_have_us(server: Server) -> None:
    """Its no to `connect` is not taken for a yes."""
    error = encode("error", "s1", 0, b'{"code":"bad_request","message":"not like this"}')
    with answering(error) as url, pytest.raises(ExchangeRefused, match="bad_request: not like this"):
        exchange(server, url=url).__enter__()


def test_an_address_without_a_server_is_refused_at_once(server: Server) -> None:
    """A wrong path would be tried for a minute, by each try of the task."""
    url = server.url.removesuffix("/sync")
    with pytest.raises(
        ExchangeRefused, match=r"HTTP 404: there is no Unisono server at this path; its own is"
    ):
        exchange(server, url=url).__enter__()
