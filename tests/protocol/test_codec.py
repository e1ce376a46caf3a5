"""Bytes ⇄ messages: nothing but WireError for whatever comes in, and one exact shape for what goes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocol.wire_messages import ITEM, PAYLOADS, message, refused, wire
from unisono.protocol.codec import (
    DEPTH_MAX,
    decode,
    deeper_than,
    encode,
    encode_event,
    encode_payload,
    encode_sync_response,
)
from unisono.protocol.errors import BadRequest, ProtocolVersionUnsupported, WireError
from unisono.protocol.messages import (
    MESSAGE_TYPES,
    Connect,
    Disconnect,
    Heartbeat,
    Item,
    Message,
    SubmitEvent,
    SubmitEvents,
    Sync,
)
from unisono.vocabulary import LogIdentity

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
names = st.text(st.sampled_from('abc"\\[]{}é\U0001f600'), max_size=6)
trees = st.recursive(
    scalars | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=30,
)


# -- in ------------------------------------------------------------------------------------------------------


@pytest.mark.req("ENV-01")
@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_every_message_type_is_decoded_into_its_own_kind(kind: str) -> None:
    found = type(decode(wire(kind)))
    assert [each for each in MESSAGE_TYPES.values() if issubclass(found, each)] == [MESSAGE_TYPES[kind]]


@pytest.mark.req("ENV-01")
def test_fields_arrive_as_they_were_sent() -> None:
    assert decode(
        wire("connect", {"token": "t", "client_id": "c", "last_committed_id": 7, "supported_profiles": ["x"]})
    ) == Connect("t", "c", 7, ["x"])
    assert decode(wire("disconnect", {"reason": "tired"})) == Disconnect(reason="tired")
    sync = decode(wire("sync", {"partitions": ["b", "a"], "since_committed_id": 3, "limit": 9}))
    assert sync == Sync(3, ["b", "a"], limit=9)
    batch = decode(wire("submit_events", {"events": [ITEM, ITEM | {"client_id": "c"}]}))
    assert isinstance(batch, SubmitEvents)
    assert [item.client_id for item in batch.events] == [None, "c"]


@pytest.mark.req("ENV-01", "SYNC-02")
@pytest.mark.parametrize("written", ["5", "5.0", "5e0", "0.5e1", "50e-1"])
def test_a_whole_number_is_one_however_it_is_written(written: str) -> None:
    asked = json.dumps(PAYLOADS["sync"] | {"since_committed_id": "N", "limit": "N"})
    whole = wire("sync", "PAYLOAD").replace(b'"PAYLOAD"', asked.replace('"N"', written).encode())
    sync = decode(whole)
    assert isinstance(sync, Sync)
    assert (sync.since_committed_id, sync.limit) == (5, 5)
    assert type(sync.since_committed_id) is type(sync.limit) is int
    connect = decode(wire("connect", PAYLOADS["connect"] | {"last_committed_id": float(written)}))
    assert isinstance(connect, Connect)
    assert connect.last_committed_id == 5


@pytest.mark.req("ENV-02")
@pytest.mark.parametrize("wrong", [5.5, -0.5, True, "5", [5]])
@pytest.mark.parametrize(
    ("kind", "field"), [("sync", "since_committed_id"), ("sync", "limit"), ("connect", "last_committed_id")]
)
def test_what_is_no_whole_number_is_refused(kind: str, field: str, wrong: Any) -> None:
    with pytest.raises(BadRequest, match=field):
        decode(wire(kind, PAYLOADS[kind] | {field: wrong}))


@pytest.mark.req("ENV-03")
def test_unknown_fields_are_ignored_and_an_event_keeps_its_own_text() -> None:
    event = '{"type":"event","payload":{"b":1,"a":[1.50,"\\u00e9"]},"extra":{"deep":null}}'
    data = wire("submit_events", {"events": [ITEM | {"more": [{}]}], "more": {}}, more=1).replace(
        b'{"type": "set"}', event.encode()
    )
    batch = decode(data)
    assert isinstance(batch, SubmitEvents)
    assert bytes(batch.events[0].event) == event.encode()


@pytest.mark.req("ENV-02")
@pytest.mark.parametrize("field", ["type", "msg_id", "timestamp", "protocol_version", "payload"])
@pytest.mark.parametrize("value", [..., None, True, 1, "text", [], {}], ids=repr)
def test_every_envelope_field_is_required_and_typed(field: str, value: Any) -> None:
    good: dict[str, tuple[type, ...]] = {"timestamp": (int, float), "payload": (dict,)}
    if value is not ... and type(value) in good.get(field, (str,)):
        return
    whole = {name: kept for name, kept in (message() | {field: value}).items() if kept is not ...}
    assert refused(json.dumps(whole).encode()).startswith(("not a message", "heartbeat: payload"))


@pytest.mark.req("ENV-02")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nul",
        b"[]",
        b'"text"',
        b"1",
        b"null",
        b"{}{}",
        b"\xff",
        b'{"type":"\xff"}',
        b"\x00",
        b"[" * 60,
    ],
)
def test_what_is_no_json_object_is_bad_request(data: bytes) -> None:
    refused(data)


@pytest.mark.req("ENV-04")
@pytest.mark.parametrize("kind", ["", "Connect", "connected", "event_broadcast", "x" * 1000, "\u2028"])
def test_an_unknown_type_is_named_and_not_repeated_at_length(kind: str) -> None:
    told = refused(wire(payload={}, type=kind))
    assert "unknown message type" in told
    assert len(told) < 150


@pytest.mark.req("ENV-05")
@pytest.mark.parametrize("version", ["", "1", "1.1", "2.0", "01.0", " 1.0", "9" * 5000])
def test_another_version_is_refused_before_anything_else_is_looked_at(version: str) -> None:
    with pytest.raises(ProtocolVersionUnsupported) as caught:
        decode(wire(payload={"client_id": 5}, type="no such type", protocol_version=version))
    payload = caught.value.payload()
    assert payload["supported_versions"] == ["1.0"]
    assert payload["details"] == {"supported_versions": ["1.0"]}
    assert len(caught.value.message) < 200


@pytest.mark.req("ENV-06")
@pytest.mark.parametrize("timestamp", [0, -1, 0.5, 2**53, 2**63, 2**64, 10**30, 1e300, -1e-300])
def test_any_number_is_a_timestamp(timestamp: float) -> None:
    assert decode(wire(timestamp=timestamp)) == Heartbeat()


def told_or_decoded(data: bytes) -> Message | WireError:
    try:
        return decode(data)
    except WireError as error:
        return error


@given(
    st.binary(max_size=300) | st.text(max_size=200).map(str.encode) | trees.map(json.dumps).map(str.encode)
)
@example(b"[" * 5000)
@example(b'{"a":' * 5000 + b"1" + b"}" * 5000)
@example(b'{"type":' + b"9" * 5000 + b"}")
@example(b'{"timestamp":1' + b"e" * 3 + b"}")
def test_arbitrary_bytes_raise_nothing_but_wire_errors(data: bytes) -> None:
    told_or_decoded(data)


@given(
    kind=st.sampled_from([*MESSAGE_TYPES, "other"]),
    payload=trees
    | st.fixed_dictionaries(
        {},
        optional={
            "token": st.text(),
            "client_id": trees,
            "events": trees | st.lists(st.fixed_dictionaries({"id": st.text(), "event": trees})),
            "id": scalars,
            "event": trees,
            "partitions": trees,
            "partition": trees,
            "since_committed_id": scalars,
            "subscription_partitions": trees,
            "limit": scalars,
        },
    ),
)
def test_arbitrary_payloads_raise_nothing_but_wire_errors(kind: str, payload: Any) -> None:
    told_or_decoded(json.dumps(message("heartbeat", payload, type=kind)).encode())


@given(st.data())
def test_a_damaged_message_raises_nothing_but_wire_errors(data: st.DataObject) -> None:
    good = wire(data.draw(st.sampled_from(sorted(MESSAGE_TYPES))))
    at = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, 5))
    told_or_decoded(good[:at] + data.draw(st.binary(max_size=8)) + good[at + cut :])


# -- depth ---------------------------------------------------------------------------------------------------


def naive_depth(text: str) -> int:
    """Level by level, character by character."""
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


@pytest.mark.req("LIM-06")
@given(value=trees, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_depth_agrees_with_a_naive_count(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    depth = naive_depth(text)
    for limit in range(depth + 3):
        assert deeper_than(text.encode(), limit) == (depth > limit)


@pytest.mark.req("LIM-06")
@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(0, 200))
def test_depth_of_long_chains_agrees_with_a_naive_count(arrays: list[bool], limit: int) -> None:
    opening = "".join("[" if array else '{"]}":' for array in arrays)
    closing = "".join("]" if array else "}" for array in reversed(arrays))
    text = f'[{opening}"\\"[[["{closing}, {{}}]'
    assert deeper_than(text.encode(), limit) == (naive_depth(text) > limit)


@pytest.mark.req("LIM-06")
def test_the_limit_counts_every_level_of_the_message() -> None:
    def nested(levels: int) -> bytes:
        # The envelope, its payload and the event's own object are three levels.
        inner = b"[" * (levels - 3) + b"]" * (levels - 3)
        event = b'{"type":"set","payload":' + inner + b"}"
        return wire("submit_event").replace(b'{"type": "set"}', event)

    assert naive_depth(nested(DEPTH_MAX).decode()) == DEPTH_MAX == 64
    assert isinstance(decode(nested(DEPTH_MAX)), SubmitEvent)
    assert "deeper than 64" in refused(nested(DEPTH_MAX + 1))
    assert "deeper than 64" in refused(nested(100_000))
    assert isinstance(decode(nested(80), depth_max=80), SubmitEvent)


@pytest.mark.req("LIM-06")
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "tail",
    [b'"' + b'\\"' * 500_000, b'"' * 999_999, b'"' + b"\\" * 999_999, b'"' + b"a" * 999_999, b"[" * 999_999],
    ids=["escaped quotes", "quotes", "backslashes", "letters", "brackets"],
)
def test_a_malformed_message_costs_time_in_proportion_to_its_size(tail: bytes) -> None:
    refused(b"[" * 100 + tail)


# -- out -----------------------------------------------------------------------------------------------------


@pytest.mark.req("ENV-01")
@given(trees)
def test_an_encoded_message_is_one_envelope_around_its_payload(payload: Any) -> None:
    told = json.loads(encode("connected", "s1", 17, encode_payload({"inside": payload})))
    assert told == {
        "type": "connected",
        "msg_id": "s1",
        "timestamp": 17,
        "protocol_version": "1.0",
        "payload": {"inside": json.loads(encode_payload(payload))},
    }


@pytest.mark.req("BCAST-05")
@given(id=st.text(min_size=1), client_id=st.text(), partitions=st.lists(st.text(), min_size=1))
def test_an_encoded_event_has_the_one_shape_and_its_stored_text(
    id: str, client_id: str, partitions: list[str]
) -> None:
    event = b'{"payload":{"x":[1,2.5,"\xc3\xa9"]},"type":"event"}'
    data = encode_event(9, id, client_id, tuple(partitions), event, 1738451205000)
    assert event in data
    assert json.loads(data) == {
        "id": id,
        "client_id": client_id,
        "partitions": partitions,
        "committed_id": 9,
        "event": json.loads(event),
        "status_updated_at": 1738451205000,
    }


@pytest.mark.req("SYNC-08", "DUR-08")
@pytest.mark.parametrize("model_version", [None, 3])
@pytest.mark.parametrize("events", [[], [b'{"a":1}'], [b'{"a":1}', b'{"b":2}']])
def test_an_encoded_page_splices_its_events(model_version: int | None, events: list[bytes]) -> None:
    data = encode_sync_response(
        partitions=("a", "é"),
        subscriptions=("b",),
        events=b",".join(events),
        next_since=5,
        sync_to=7,
        has_more=len(events) == 2,
        model_version=model_version,
        model_digest="" if model_version is None else "ab12",
        log=LogIdentity("0f" * 16, 7),
    )
    expected = {
        "partitions": ["a", "é"],
        "effective_subscriptions": ["b"],
        "events": [json.loads(event) for event in events],
        "next_since_committed_id": 5,
        "sync_to_committed_id": 7,
        "has_more": len(events) == 2,
        "log_id": "0f" * 16,
        "log_epoch": 7,
    }
    model = {} if model_version is None else {"model_version": model_version, "model_digest": "ab12"}
    assert json.loads(data) == expected | model


def test_an_item_and_a_single_submission_share_their_fields() -> None:
    assert Item.__struct_fields__ == SubmitEvent.__struct_fields__
