"""Generators: frames cut anywhere, and loads against a real server of this tree."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from benchmarks.comparison import works
from benchmarks.comparison.fill_log import fill_log
from benchmarks.comparison.measure import GeneratorFailed, measure, order
from benchmarks.comparison.raw import echo_server, floor
from benchmarks.generators.grpc_umadb import DATA, END_STREAM, FRAME_BYTES_MAX, UmaWriter
from benchmarks.generators.order import Client, Order
from benchmarks.generators.tally import Tally
from benchmarks.generators.websocket import WebSocketConnection, frame
from benchmarks.peers.ours import Unisono

from tests.waiting import PATIENCE_S
from unisono.store.sqlite.log import SqliteLog

SHORT_S = 0.3


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unisono]:
    system = Unisono(judging=True)
    system.start(tmp_path_factory.mktemp("bench") / "server")
    yield system
    system.stop()


class Collecting(WebSocketConnection):
    def __init__(self, tally: Tally) -> None:
        super().__init__(tally, b"")
        self.messages: list[bytes] = []

    def message(self, payload: bytes) -> None:
        self.messages.append(payload)


def unmasked(payload: bytes) -> bytes:
    """A frame as a server sends it: without a mask."""
    masked = frame(payload)
    head = len(masked) - len(payload) - 4
    return bytes([masked[0], masked[1] & 127]) + masked[2:head] + payload


@pytest.mark.parametrize("step", [1, 2, 3, 7, 125, 126, 127, 4096, 200_000])
def test_messages_are_whole_however_they_arrive(step: int) -> None:
    sent = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 65535, b"e" * 65536, b"f"]
    data = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"".join(map(unmasked, sent))

    async def received() -> list[bytes]:
        connection = Collecting(Tally())
        for start in range(0, len(data), step):
            connection.data_received(data[start : start + step])
        return connection.messages

    assert asyncio.run(received()) == sent


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """The fields of a protobuf message that has only ones with a length."""
    found, place = [], 0
    while place < len(message):
        number, kind, size, shift = message[place] >> 3, message[place] & 7, 0, 0
        assert kind == 2
        while True:
            place += 1
            size |= (message[place] & 127) << shift
            shift += 7
            if message[place] < 128:
                break
        place += 1
        assert place + size <= len(message)
        found.append((number, message[place : place + size]))
        place += size
    return found


@pytest.mark.parametrize("batch", [1, 100])
def test_an_append_is_a_well_formed_call(batch: int) -> None:
    async def requests() -> list[bytes]:
        order = Order("submit", "umadb", "127.0.0.1", 1, [], "run", 1.0, batch=batch)
        writer = UmaWriter(Tally(), order, Client("one", ["tag-1", "tag-2"]))
        return [writer.request(), writer.request()]

    ids = []
    for number, data in enumerate(asyncio.run(requests())):
        message, place, ended = b"", 0, False
        while place < len(data):
            size, kind, flags = (
                int.from_bytes(data[place : place + 3], "big"),
                data[place + 3],
                data[place + 4],
            )
            assert int.from_bytes(data[place + 5 : place + 9], "big") == 2 * number + 1
            assert size <= FRAME_BYTES_MAX
            assert not ended
            if kind == DATA:
                message += data[place + 9 : place + 9 + size]
                ended = flags == END_STREAM
            place += 9 + size
        assert ended
        assert message[:1] == b"\0"
        assert int.from_bytes(message[1:5], "big") == len(message) - 5
        events = [fields(event) for name, event in fields(message[5:]) if name == 1]
        assert len(events) == batch
        for event in events:
            assert [name for name, _ in event] == [1, 2, 3, 4]
            assert event[1][1] in (b"tag-1", b"tag-2")
            assert json.loads(event[2][1])["amount"] == 1
            ids.append(str(uuid.UUID(event[3][1].decode())))
    assert len(set(ids)) == 2 * batch


@pytest.mark.soak
def test_a_load_of_each_kind_runs_against_this_tree(judging: Unisono) -> None:
    batches = works.submit(judging, 2, 100, SHORT_S * 4)
    assert batches.rate > 0
    assert batches.p50_ms > 0
    works.fill(judging, [works.DENSE_TOPIC], 2_000, PATIENCE_S)
    read = works.read(judging, judging.whole(works.DENSE_TOPIC), 2, SHORT_S)
    assert read.rate > 0
    assert read.generator_cores > 0
    assert works.fan_out(judging, 10, SHORT_S * 4).rate > 0
    assert works.opening(judging, SHORT_S * 4).rate > 0


def test_a_fill_writes_as_many_events_as_it_says(tmp_path: Path) -> None:
    system = Unisono()
    fill_log(tmp_path / "server" / "data", 2_500)
    system.start(tmp_path / "server")
    try:
        works.fill(system, works.SPREAD_TOPICS, 1_000, PATIENCE_S)
    finally:
        system.stop()
    log = SqliteLog.open(tmp_path / "server" / "data")
    try:
        head = log.begin([]).head
        log.abandon()
    finally:
        log.close()
    assert head >= 3_500  # and what was under way when the thousand were answered


def test_a_refused_load_says_why(judging: Unisono) -> None:
    asked = order(judging, "submit", [], run="refused", seconds=PATIENCE_S)
    refused = msgspec.structs.replace(asked, clients=[Client("writer", ["x"], "no token")])
    with pytest.raises(GeneratorFailed, match="auth_failed"):
        measure(judging, [refused])


def test_the_floor_is_a_sync_and_an_echo(tmp_path: Path) -> None:
    with echo_server() as port:
        found = floor(tmp_path, port, SHORT_S)
    assert found.p50_ms > 0
    assert found.rate == pytest.approx(1000 / found.p50_ms)
