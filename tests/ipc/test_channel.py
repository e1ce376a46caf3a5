"""Framing: every message survives it, however its bytes arrive, and nothing is waited for without end."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.ipc import channel as channels
from unisono.ipc.channel import (
    FRAME_BYTES_MAX,
    Channel,
    ChannelAborted,
    ChannelClosed,
    Unframer,
    frame,
    socket_pair,
)
from unisono.ipc.messages import (
    AccessChanged,
    AdminCommand,
    AskAccess,
    AskConnections,
    AskEventTimes,
    AskHead,
    AskStats,
    AskSubscribers,
    BatchOutcome,
    Candidate,
    Claim,
    Claimed,
    CommandResult,
    Drain,
    Dropped,
    EventCommitted,
    HeadAnswer,
    ListConnections,
    ListedConnections,
    LogFailed,
    Message,
    ModelChanged,
    Offer,
    PeerFailed,
    PresenceChange,
    PresenceChanges,
    Ready,
    RefusedItem,
    Release,
    Replaced,
    RevokedName,
    SingleOutcome,
    Stats,
    Submit,
)
from unisono.ipc.page_messages import AskNewest, AskPage, CancelPage, PageFailed, PageResult
from unisono.vocabulary import FieldError

numbers = st.integers(0, 2**53 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=6)
names = st.lists(texts, max_size=3).map(tuple)
blobs = st.binary(max_size=40)
versions = st.none() | numbers
errors = st.lists(st.builds(FieldError, texts, texts), max_size=2).map(tuple)
reasons = st.sampled_from(["forbidden", "validation_failed"])
items = st.builds(Candidate, texts, names, blobs, blobs) | st.builds(
    RefusedItem, texts, names, reasons, errors
)
offers = st.builds(Offer, numbers, versions, st.dictionaries(texts, names, max_size=2))
presences = st.builds(PresenceChange, texts, texts, texts, st.none() | texts, st.none() | blobs, st.just(1.5))
revoked = st.builds(RevokedName, texts, texts)

MESSAGES: dict[type, st.SearchStrategy[Message]] = {
    Claim: st.builds(Claim, numbers, texts),
    Release: st.builds(Release, numbers),
    Submit: st.builds(
        Submit, numbers, texts, texts, st.booleans(), st.lists(items, max_size=3).map(tuple), numbers
    ),
    AskHead: st.builds(AskHead, numbers),
    Offer: offers,
    Claimed: st.builds(Claimed, numbers, numbers),
    Replaced: st.builds(Replaced, numbers),
    EventCommitted: st.builds(EventCommitted, numbers, numbers, names, blobs, st.booleans()),
    BatchOutcome: st.builds(BatchOutcome, numbers, blobs),
    SingleOutcome: st.builds(SingleOutcome, numbers, st.booleans(), blobs),
    Dropped: st.builds(Dropped, numbers),
    HeadAnswer: st.builds(HeadAnswer, numbers, numbers),
    ModelChanged: st.builds(ModelChanged, versions, offers),
    LogFailed: st.builds(LogFailed, texts, st.booleans()),
    AskPage: st.builds(AskPage, numbers, names, numbers, numbers, numbers, numbers),
    AskNewest: st.builds(AskNewest, numbers, texts, numbers, numbers, numbers),
    CancelPage: st.builds(CancelPage, numbers),
    PageResult: st.builds(PageResult, numbers, blobs, numbers, numbers, st.booleans()),
    PageFailed: st.builds(PageFailed, numbers),
    AskStats: st.builds(AskStats, numbers),
    Stats: st.builds(Stats, numbers, blobs),
    Ready: st.builds(Ready),
    PeerFailed: st.builds(PeerFailed, texts, texts),
    Drain: st.builds(Drain),
    AdminCommand: st.builds(AdminCommand, numbers, texts, texts),
    CommandResult: st.builds(CommandResult, numbers, st.booleans(), blobs),
    AskConnections: st.builds(AskConnections, numbers, numbers),
    AskSubscribers: st.builds(AskSubscribers, numbers, names),
    AskAccess: st.builds(AskAccess, numbers, numbers),
    AskEventTimes: st.builds(AskEventTimes, numbers, numbers),
    ListConnections: st.builds(ListConnections, texts, numbers),
    ListedConnections: st.builds(ListedConnections, texts, texts, blobs, st.booleans()),
    AccessChanged: st.builds(
        AccessChanged, st.lists(revoked, max_size=2).map(tuple), st.booleans(), st.none() | revoked
    ),
    PresenceChanges: st.builds(PresenceChanges, st.lists(presences, max_size=2).map(tuple)),
}


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket_pair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    outside, inside = socket_pair()
    channel = Channel(inside)
    yield outside, channel
    outside.close()
    channel.close()


def test_every_message_type_is_tried() -> None:
    assert set(MESSAGES) == set(get_args(Message))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: str(kind.__name__))
def test_every_message_survives_a_frame(kind: type) -> None:
    @settings(max_examples=25)
    @given(MESSAGES[kind])
    def check(message: Message) -> None:
        assert list(Unframer().feed(frame([message]))) == [message]
        assert [type(one) for one in Unframer().feed(frame([message]))] == [kind]

    check()


@given(st.lists(st.lists(st.one_of(*MESSAGES.values()), max_size=4), max_size=5), st.data())
def test_frames_may_be_cut_anywhere(batches: list[list[Message]], data: st.DataObject) -> None:
    stream = b"".join(frame(batch) for batch in batches)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    unframer = Unframer()
    got: list[Message] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += unframer.feed(stream[start:end])
    assert got == [message for batch in batches for message in batch]


def test_frames_may_come_byte_by_byte() -> None:
    messages: list[Message] = [AskHead(1), Drain(), LogFailed("no")]
    unframer = Unframer()
    got = [m for byte in frame(messages) + frame([Ready()]) for m in unframer.feed(bytes([byte]))]
    assert got == [*messages, Ready()]


def test_a_frame_out_of_bounds_is_refused_by_its_length_alone(raw: tuple[socket.socket, Channel]) -> None:
    outside, channel = raw
    outside.sendall(frame([AskHead(1)]))
    assert channel.receive() == [AskHead(1)]
    outside.sendall(struct.pack("!I", FRAME_BYTES_MAX + 1))
    with pytest.raises(ChannelClosed, match="too large"):
        channel.receive()


@pytest.mark.parametrize("body", [b"", b"\xc1", b"abc", b"\x91\x91\xa5Dance", b"\x91\x92\xa7AskHead\xa1x"])
def test_what_holds_no_messages_ends_the_channel(raw: tuple[socket.socket, Channel], body: bytes) -> None:
    outside, channel = raw
    outside.sendall(struct.pack("!I", len(body)) + body)
    with pytest.raises(ChannelClosed, match="malformed frame"):
        channel.receive()


def test_nothing_there_is_no_message_and_no_wait(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    assert one.receive() == []
    other.send([])
    assert one.receive() == []


def test_messages_pass_both_ways_in_order(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    one.send([AskHead(1), AskHead(2)])
    one.send([AskHead(3)])
    other.send([HeadAnswer(1, 5)])
    assert other.receive() == [AskHead(1), AskHead(2), AskHead(3)]
    assert one.receive() == [HeadAnswer(1, 5)]


def test_what_was_sent_before_the_end_still_arrives(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    other.send([AskHead(1)])
    other.close()
    assert one.receive() == [AskHead(1)]
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            one.receive()
        with pytest.raises(ChannelClosed):
            one.send([AskHead(2)])


def test_a_closed_channel_is_closed_on_this_side_too(pair: tuple[Channel, Channel]) -> None:
    one, _ = pair
    one.close()
    for channel in pair:
        with pytest.raises(ChannelClosed):
            channel.receive()
        with pytest.raises(ChannelClosed):
            channel.send([AskHead(1)])
    assert one.fileno() == -1


@pytest.mark.req("LIM-05")
def test_a_reader_that_takes_nothing_is_given_up_and_learns_of_it(raw: tuple[socket.socket, Channel]) -> None:
    outside, inside = raw
    one, other = Channel(outside, stalled_s=0.05), inside
    with pytest.raises(ChannelAborted, match="stalled"):
        one.send([LogFailed("x" * 8_000_000)])
    left = 10_000
    with suppress(ChannelClosed):  # what was on its way, and then the end
        while left := left - 1:
            assert other.receive() == []
    assert left, "the other side never learns of it"


@pytest.mark.req("LIM-05")
def test_what_is_no_frame_ends_the_channel_on_both_sides(raw: tuple[socket.socket, Channel]) -> None:
    outside, channel = raw
    outside.sendall(struct.pack("!I", FRAME_BYTES_MAX + 1))
    with pytest.raises(ChannelAborted, match="too large"):
        channel.receive()
    assert outside.recv(1) == b""


@pytest.mark.req("LIM-05")
def test_messages_that_are_too_much_for_one_frame_come_in_several(
    raw: tuple[socket.socket, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "FRAME_BYTES_MAX", 1000)
    outside, channel = raw
    messages: list[Message] = [LogFailed(str(number) * 300) for number in range(7)]
    channel.send(messages)
    assert Channel(outside).receive() == messages
    with pytest.raises(ChannelAborted, match=r"LogFailed of .* is too large"):
        channel.send([Ready(), LogFailed("x" * 1000)])
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_a_slow_reader_is_waited_for(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    large = LogFailed("x" * 8_000_000)
    sender = threading.Thread(target=one.send, args=([large, Ready()],))
    sender.start()
    got: list[Message] = []
    while len(got) < 2:
        got += other.receive()
    sender.join()
    assert got == [large, Ready()]
