"""Lone surrogates: an event keeps its own, anywhere else they are a bad request."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.wire_messages import refused, wire
from unisono.protocol.codec import decode
from unisono.protocol.messages import SubmitEvents
from unisono.protocol.surrogates import mask_lone_surrogates


def submit_raw(event: str, **changes: str) -> bytes:
    item = {"id": '"e1"', "partitions": '["p"]', "event": event} | changes
    inside = ",".join(f'"{name}":{text}' for name, text in item.items())
    return (
        '{"type":"submit_events","msg_id":"m","timestamp":1,"protocol_version":"1.0",'
        f'"payload":{{"events":[{{"id":"e0","partitions":["p"],"event":{{}}}},{{{inside}}}]}}}}'
    ).encode()


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize("escape", [r"\ud800", r"\uDFFF", r"\ud83d\\ude00", r"\ud800\ud800", r"\udc00\ud800"])
def test_a_lone_surrogate_in_an_event_stays_in_that_event(escape: str) -> None:
    """So that the canonical form can refuse the item, and only it."""
    batch = decode(submit_raw(f'{{"type":"set","payload":"x{escape}y"}}'))
    assert isinstance(batch, SubmitEvents)
    assert bytes(batch.events[0].event) == b"{}"
    kept = bytes(batch.events[1].event)
    assert re.search(rb"\\u[dD][89a-fA-F]", kept)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(kept)


@pytest.mark.req("ORD-07")
def test_paired_surrogates_and_escaped_backslashes_are_no_lone_surrogates() -> None:
    event = r'{"a":"\ud83d\ude00","b":"\\ud800"}'
    batch = decode(submit_raw(event))
    assert isinstance(batch, SubmitEvents)
    assert bytes(batch.events[1].event) == event.encode()
    assert mask_lone_surrogates(event.encode()) is None


@pytest.mark.req("ORD-07", "ENV-02", "PART-02")
@pytest.mark.parametrize(
    ("field", "text"),
    [("id", r'"\ud800"'), ("partitions", r'["p","\udfff"]'), ("partition", r'"\ud800"')],
)
def test_a_lone_surrogate_outside_an_event_is_bad_request(field: str, text: str) -> None:
    refused(submit_raw("{}", **{field: text}))
    single = f'{{"id":"e","event":{{}},"{field}":{text}}}'
    refused(wire("submit_event", {"here": 1}).replace(b'{"here": 1}', single.encode()))
    refused(wire("sync").replace(b'["p"]', rb'["\ud800"]'))


@pytest.mark.req("ORD-07")
def test_a_noncharacter_in_the_text_is_never_taken_for_the_mask() -> None:
    event = '{"a":"\ufdd0\\ufdd1","b":"\\ud800"}'
    batch = decode(submit_raw(event, id='"\ufdd0"'))
    assert isinstance(batch, SubmitEvents)
    assert batch.events[1].id == "\ufdd0"
    assert bytes(batch.events[1].event) == event.encode()
    every = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    refused(submit_raw(json.dumps({"a": every}, ensure_ascii=False)[:-1] + r',"b":"\ud800"}'))


@given(st.text(st.characters(codec=None, categories=["Cs", "L", "N", "P"]), max_size=20))
def test_masking_and_restoring_changes_nothing_but_which_surrogate_it_was(text: str) -> None:
    data = json.dumps(text).encode()
    masked = mask_lone_surrogates(data)
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        assert masked is not None
        plain = re.sub(r"[\ud800-\udfff]", masked.mask, json.loads(data))
        assert msgspec.json.decode(masked.text) == plain
        assert mask_lone_surrogates(masked.text) is None
        assert len(masked.restored(masked.text)) == len(data)
    else:
        assert masked is None
