"""The envelope, over a real socket: what every message must look like, and what happens when it does not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, new_id, set_event, tree_event

FIELDS = {"type", "msg_id", "timestamp", "protocol_version", "payload"}
WRONG: dict[str, list[Any]] = {
    "type": [None, 1, True, [], {}],
    "msg_id": [None, 1, True, [], {}],
    "timestamp": [None, "1738451200000", True, [], {}],
    "protocol_version": [None, 1, 1.0, True, ["1.0"], {}],
    "payload": [None, "{}", 1, True, []],
}


@pytest.fixture(params=["await_connect", "active"])
def peer(server: Server, who: str, request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A socket in either state of its life."""
    with server.peer() as opened:
        if request.param == "active":
            opened.connect(who, server.token(who))
        yield opened


def still_open(peer: Peer) -> None:
    peer.send("heartbeat", {})
    assert peer.expect("heartbeat_ack") == {}


@pytest.mark.req("ENV-01")
def test_every_message_of_the_server_is_one_text_message_with_the_five_fields(
    server: Server, part: str
) -> None:
    """`Peer.receive` looks at the names of every message of every test; this one looks at their types."""
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        other.subscribe(part)
        origin.send("submit_event", item([part], tree_event("A")))
        origin.send("submit_event", item([part], tree_event("A")))
        origin.send("submit_events", {"events": [item([part], tree_event("B"))]})
        origin.send("sync", {"partitions": [part], "since_committed_id": 0})
        origin.send("heartbeat", {})
        origin.send("nonsense", {})
        messages = [origin.receive() for _ in range(6)] + [other.receive() for _ in range(2)]
    assert {message["type"] for message in messages} == {
        "event_committed", "event_rejected", "submit_events_result", "sync_response", "heartbeat_ack", "error",
        "event_broadcast",
    }  # fmt: skip
    for message in messages:
        assert message.keys() == FIELDS
        assert type(message["msg_id"]) is str
        assert type(message["timestamp"]) is int
        assert type(message["payload"]) is dict
        assert message["protocol_version"] == "1.0"


@pytest.mark.req("ENV-02")
@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_missing_envelope_field_is_bad_request_and_the_connection_stays(peer: Peer, field: str) -> None:
    message = peer.envelope("heartbeat", {})
    del message[field]
    peer.raw(json.dumps(message))
    assert field in peer.expect_error("bad_request")["message"]
    still_open(peer)


@pytest.mark.req("ENV-02")
@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_wrongly_typed_envelope_field_is_bad_request_and_the_connection_stays(
    peer: Peer, field: str
) -> None:
    for value in WRONG[field]:
        peer.raw(json.dumps(peer.envelope("heartbeat", {}) | {field: value}))
        peer.expect_error("bad_request")
    still_open(peer)


@pytest.mark.req("ENV-02", "ERR-01")
@pytest.mark.parametrize(
    "data",
    [
        "",
        "hello",
        "{",
        '{"type":',
        "[]",
        '"text"',
        "17",
        "null",
        "{}",
        "{}{}",
        "\x00",
        "NaN",
        b"",
        b"\xff\x00",
    ],
)
def test_what_is_no_json_object_in_a_text_frame_is_bad_request(peer: Peer, data: str | bytes) -> None:
    peer.raw(data)
    peer.expect_error("bad_request")
    still_open(peer)


@pytest.mark.req("ENV-02")
def test_a_good_message_in_a_binary_frame_is_bad_request(peer: Peer) -> None:
    whole = json.dumps(peer.envelope("heartbeat", {})).encode()
    peer.raw(whole)
    assert "text frame" in peer.expect_error("bad_request")["message"]
    peer.socket.send(iter([whole[:10], whole[10:]]))  # in two binary fragments
    peer.expect_error("bad_request")
    still_open(peer)


@pytest.mark.req("ENV-01")
def test_a_message_may_come_in_fragments_even_cut_within_a_character(peer: Peer) -> None:
    whole = json.dumps(peer.envelope("heartbeat", {"ignored": "é😀"}), ensure_ascii=False).encode()
    peer.socket.send((whole[at : at + 1] for at in range(len(whole))), text=True)
    peer.expect("heartbeat_ack")
    peer.socket.send(iter([b"", whole, b""]), text=True)
    peer.expect("heartbeat_ack")


@pytest.mark.req("ENV-01")
@pytest.mark.parametrize("data", [b"\xff", b'{"type":"\xc3"}', b'"\xed\xa0\x80"', b"\xf4\x90\x80\x80"])
def test_a_text_frame_that_is_not_utf8_is_closed_with_1007(peer: Peer, data: bytes) -> None:
    """What is no UTF-8 is no text message at all (RFC 6455, 8.1)."""
    peer.socket.send(data, text=True)
    peer.expect_close(1007)


@pytest.mark.req("ENV-03")
def test_unknown_fields_are_ignored_at_every_level(server: Server, who: str, part: str) -> None:
    more: dict[str, Any] = {"x_future": {"deep": [1, {"er": None}]}, "": 0}
    with server.peer() as peer:
        peer.send("heartbeat", more, **more)
        peer.expect("heartbeat_ack")
        peer.send(
            "connect",
            {"token": server.token(who), "client_id": who, "supported_profiles": ["compatibility"], **more},
            **more,
        )
        peer.expect("connected")
        peer.send("submit_event", item([part], tree_event("A"), **more), **more)
        peer.expect("event_committed")
        peer.send("submit_events", {"events": [item([part], tree_event("B"), **more)], **more}, **more)
        (result,) = peer.expect("submit_events_result")["results"]
        assert result["status"] == "committed"
        peer.send("sync", {"partitions": [part], "since_committed_id": 0, **more}, **more)
        events = peer.expect("sync_response")["events"]
        assert [event["event"] for event in events] == [tree_event("A"), tree_event("B")]
        assert not any("x_future" in event for event in events)
        peer.send("disconnect", {"reason": "done", **more}, **more)
        peer.expect_close(1000)


@pytest.mark.req("ENV-03")
def test_inside_an_event_nothing_is_dropped(server: Server, who: str, part: str) -> None:
    event = {
        "type": "event",
        "payload": {
            "schema": "anything",
            "data": {
                "x_future": [1, 2.5, -0.1, 1e-7, "é😀\u2028\u0000", None, True, {}, [[]]],
                "": {"a.b": 1},
            },
            "meta": {"more": {"and": "more"}},
        },
        "beside": {"payload": [1, {"x": "y"}]},
    }
    with server.peer() as peer, server.peer() as other:
        peer.connect(who, server.token(who))
        other.connect(f"{who}-b", server.token(f"{who}-b"))
        other.subscribe(part)
        peer.send("submit_event", item([part], event))
        assert peer.expect("event_committed")["event"] == event
        assert other.expect("event_broadcast")["event"] == event
        assert [held["event"] for held in other.history([part])] == [event]


@pytest.mark.req("ENV-04", "ERR-01")
@pytest.mark.parametrize(
    "kind", ["", "ping", "Heartbeat", "connected", "event_broadcast", "x" * 5000, "\u0000"]
)
def test_an_unknown_type_is_bad_request_and_the_connection_stays(peer: Peer, kind: str) -> None:
    peer.send(kind, {})
    told = peer.expect_error("bad_request")["message"]
    assert "unknown message type" in told
    assert len(told) < 200
    still_open(peer)


@pytest.mark.req("ENV-05", "ERR-01", "CONN-10")
@pytest.mark.parametrize("kind", ["connect", "heartbeat", "sync", "submit_events", "nonsense"])
@pytest.mark.parametrize("version", ["2.0", "", "1"])
def test_another_protocol_version_is_told_which_are_spoken_and_closed(
    peer: Peer, kind: str, version: str
) -> None:
    peer.send(kind, {}, protocol_version=version)
    told = peer.expect_error("protocol_version_unsupported")
    assert told["supported_versions"] == ["1.0"]
    assert told["details"]["supported_versions"] == ["1.0"]
    peer.expect_close(4002)


@pytest.mark.req("ENV-05", "CONN-01")
def test_a_connect_in_another_version_is_refused_whatever_else_it_says(server: Server, who: str) -> None:
    with server.peer() as peer:
        peer.send("connect", {"token": server.token(who), "client_id": who}, protocol_version="1.1")
        peer.expect_error("protocol_version_unsupported")
        peer.expect_close(4002)


@pytest.mark.req("ENV-06", "ENV-07")
@pytest.mark.parametrize("timestamp", [0, -1, 1, 0.25, 2**53, 2**63, 10**25, 1e300])
def test_a_clients_clock_is_never_believed_and_never_held_against_it(
    server: Server, who: str, part: str, timestamp: float
) -> None:
    with server.peer() as peer:
        before = time.time_ns() // 1_000_000
        peer.send(
            "connect",
            {"token": server.token(who), "client_id": who, "supported_profiles": ["compatibility"]},
            timestamp=timestamp,
        )
        connected = peer.expect("connected")
        peer.send("submit_event", item([part], set_event("x", 1)), timestamp=timestamp)
        committed = peer.expect("event_committed")
        peer.send("submit_event", item([part], tree_event("x", "x")), timestamp=timestamp)
        rejected = peer.expect("event_rejected")
        (stored,) = peer.history([part])
        after = time.time_ns() // 1_000_000
    assert before <= connected["server_time"] <= after
    assert connected["server_time"] <= committed["status_updated_at"] <= after
    assert committed["status_updated_at"] <= rejected["status_updated_at"] <= after
    assert stored["status_updated_at"] == committed["status_updated_at"]


@pytest.mark.req("ENV-07")
def test_the_servers_clock_stamps_its_messages_and_does_not_run_backwards(server: Server, part: str) -> None:
    before = time.time_ns() // 1_000_000
    with server.client(f"{part}-a") as peer:
        stamps = []
        for number in range(5):
            peer.send("submit_event", item([part], set_event("n", number)))
            message = peer.receive()
            stamps += [message["payload"]["status_updated_at"], message["timestamp"]]
    assert [before, *stamps] == sorted([before, *stamps])


@pytest.mark.req("ENV-06")
def test_the_servers_msg_ids_are_unique_on_a_connection(server: Server, part: str) -> None:
    with server.peer() as peer, server.client(f"{part}-b") as other:
        peer.send("heartbeat", {})
        peer.send("sync", {})
        peer.send("connect", {"token": server.token(part), "client_id": part})
        peer.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": [part]})
        messages = [peer.receive() for _ in range(4)]
        for number in range(20):
            other.commit([part], tree_event(f"n{number}"))
            peer.send("heartbeat", {}, msg_id="always the same")
        peer.send("submit_events", {"events": [item([part], set_event("x", 1), new_id())]})
        messages += [peer.receive() for _ in range(41)]
        assert {message["type"] for message in messages} >= {"event_broadcast", "heartbeat_ack", "error"}
        ids = [message["msg_id"] for message in messages]
        assert len(set(ids)) == len(ids) == 45


CAMEL = {
    "type": "connect",
    "msgId": "m1",
    "timestamp": 1,
    "protocolVersion": "2.0",
    "payload": {"clientId": "c"},
}


@pytest.mark.req("ENV-05", "ERR-01", "CONN-10")
@pytest.mark.parametrize(
    "message",
    [
        CAMEL,
        CAMEL | {"protocolVersion": "1.0"},
        {"type": "heartbeat", "msgId": "m1"},
        {"protocolVersion": 1},
        {"type": "connect", "projectId": "p", "payload": {}},
        {
            "type": "connect",
            "msg_id": "m1",
            "timestamp": 1,
            "protocol_version": "1.0",
            "payload": {"token": "t", "clientId": "c", "projectId": "p"},
        },
        {"msgId": None, "payload": {"msg_id": "m", "protocol_version": "1.0"}},
    ],
)
def test_an_envelope_in_camel_case_is_told_which_protocol_is_spoken(
    peer: Peer, message: dict[str, Any]
) -> None:
    peer.raw(json.dumps(message))
    error = peer.expect_error("protocol_version_unsupported")
    assert "Insieme protocol, version 1.0" in error["message"]
    assert "@unisono/client" in error["message"]
    assert all(field in error["message"] for field in FIELDS)
    assert error["supported_versions"] == error["details"]["supported_versions"] == ["1.0"]
    peer.expect_close(4002)


@pytest.mark.req("ENV-02")
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CAMEL | {"msg_id": "m1"}),
        json.dumps(CAMEL | {"protocol_version": "1.0"}),
        json.dumps([CAMEL]),
        json.dumps({"type": "heartbeat", "payload": {"msgId": "m1", "protocolVersion": "2.0"}}),
        json.dumps({"type": "msgId"}),
        json.dumps(CAMEL)[:-1],
        '"msgId"',
    ],
)
def test_what_is_only_malformed_leaves_the_connection_open(peer: Peer, text: str) -> None:
    peer.raw(text)
    peer.expect_error("bad_request")
    still_open(peer)


@pytest.mark.req("ENV-03")
def test_fields_in_camel_case_beside_the_five_are_passed_over(peer: Peer) -> None:
    peer.send("heartbeat", {}, msgId="m1", protocolVersion="2.0")
    assert peer.expect("heartbeat_ack") == {}
