"""Submits are decoded in one pass where they have the usual form; they mean the same in any other."""

from __future__ import annotations

import pytest

from tests.protocol.wire_messages import refused
from unisono.protocol.codec import DEPTH_MAX, decode
from unisono.protocol.errors import WireError
from unisono.protocol.messages import MESSAGE_TYPES


def submitted(kind: str, items: str, more: str = "") -> bytes:
    payload = items if kind == "submit_event" else f'{{"events":[{items}]}}'
    start = f'{{"type":"{kind}","msg_id":"m","timestamp":1,"protocol_version":"1.0"'
    return f'{start},"payload":{payload}{more}}}'.encode()


def at_depth(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.req("LIM-06")
@pytest.mark.parametrize(("kind", "around"), [("submit_event", 2), ("submit_events", 4)])
@pytest.mark.parametrize("partitions", ['"partitions":["p"],', '"partition":"p",', '"partitions":["{[p"],'])
def test_the_depth_of_a_submit_is_that_of_the_whole_message(kind: str, around: int, partitions: str) -> None:
    def message(levels: int, before: str = "") -> bytes:
        items = f'{{"id":"e",{partitions}{before}"event":{at_depth(levels)}}}'
        return submitted(kind, items if kind == "submit_event" else ",".join([items] * 30))

    deepest = DEPTH_MAX - around
    found = decode(message(deepest))
    assert isinstance(found, MESSAGE_TYPES[kind])
    assert "deeper than 64" in refused(message(deepest + 1))
    # What the decoder passes over is part of the message too.
    assert isinstance(decode(message(1, f'"event":{at_depth(deepest)},')), MESSAGE_TYPES[kind])
    assert "deeper than 64" in refused(message(1, f'"event":{at_depth(deepest + 1)},'))


@pytest.mark.req("ENV-01")
@pytest.mark.parametrize(
    "more",
    [
        "",
        ',"type":"heartbeat"',
        ',"type":"submit_event"',
        ',"payload":{}',
        ',"payload":{"events":[]}',
        ',"protocol_version":"2.0"',
        ',"protocol_version":"1.0"',
        ',"unknown":[{}]',
        ',"msg_id":5',
    ],
)
def test_a_field_given_twice_means_the_same_whatever_the_order_of_the_others(more: str) -> None:
    """The usual order is decoded in one pass, any other one by one."""
    usual = submitted("submit_events", '{"id":"e","partitions":["p"],"event":{}}', more)
    padded = usual.replace(b"{", b"{" + b" " * 64, 1)

    def outcome(data: bytes) -> object:
        try:
            found = decode(data)
        except WireError as error:
            return error.code
        return [kind for kind in MESSAGE_TYPES.values() if isinstance(found, kind)], str(found).count(
            "id='e'"
        )

    assert outcome(usual) == outcome(padded)
