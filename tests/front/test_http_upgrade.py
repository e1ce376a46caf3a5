"""The request for an upgrade: which are accepted, whoever wrote them and however they are cut."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.behaviour.server.frames import UPGRADE_LINES
from unisono.config import Settings
from unisono.front.client_sockets import ClientSocket, Poll
from unisono.front.http_upgrade import RefusedUpgrade, accepting_answer, read_upgrade, refusing_answer
from unisono.front.openings import HEAD_END, MAX_HEAD_BYTES, Openings, PendingUpgrade
from unisono.front.upgrades import MAX_KNOWN, UpgradeCheck
from unisono.ipc.stats import Counters

LINE, *HEADERS = UPGRADE_LINES
KEYS = st.binary(min_size=16, max_size=16).map(b64encode)
NAMES = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=20).map(lambda name: b"X-" + name.encode())
VALUES = st.lists(st.sampled_from([*range(0x20, 0x7F), 9, *range(0x80, 0x100)]), max_size=40).map(bytes)


def check(*origins: str) -> UpgradeCheck:
    return UpgradeCheck(Settings(allowed_origins=origins), Counters())


def outcome(asked: UpgradeCheck, head: bytes) -> bytes | HTTPStatus:
    try:
        return asked.answer(head)
    except RefusedUpgrade as refused:
        return refused.status


def test_the_example_of_the_standard() -> None:
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in accepting_answer(
        b"dGhlIHNhbXBsZSBub25jZQ=="
    )


@given(
    data=st.data(),
    more=st.lists(st.tuples(NAMES, VALUES), max_size=10),
    key=KEYS,
    space=st.sampled_from([b"", b" ", b"\t", b"  \t"]),
)
def test_headers_come_in_any_order_and_case(
    data: st.DataObject, more: list[tuple[bytes, bytes]], key: bytes, space: bytes
) -> None:
    own = [header.partition(b": ")[::2] for header in HEADERS if b"Key" not in header]
    pairs = data.draw(st.permutations([*own, (b"Sec-WebSocket-Key", key), *more]))
    recased = [name.swapcase() if data.draw(st.booleans()) else name for name, _ in pairs]
    lines = [name + b":" + space + value + space for name, (_, value) in zip(recased, pairs, strict=True)]
    assert read_upgrade(b"\r\n".join([LINE, *lines])).key == key


@given(head=st.one_of(st.binary(max_size=400), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_refused(head: bytes) -> None:
    with pytest.raises(RefusedUpgrade) as refused:
        read_upgrade(head)
    answer = refusing_answer(refused.value)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nConnection: close\r\n" in answer


@given(
    heads=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"\r\n".join([LINE, *HEADERS]),
                    b"\r\n".join([LINE, *HEADERS, b"Origin: https://a.example"]),
                    b"\r\n".join([LINE, *HEADERS, b"Origin: https://evil.example"]),
                    b"\r\n".join([LINE, *HEADERS, b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="]),
                    b"\r\n".join([LINE, b"X: 1", *reversed(HEADERS)]),
                ]
            ),
            st.integers(0, 300),
            st.binary(max_size=30),
            st.integers(0, 40),
        ),
        max_size=8,
    )
)
def test_what_is_remembered_changes_no_answer(heads: list[tuple[bytes, int, bytes, int]]) -> None:
    """A request as it is, and damaged somewhere: whoever has seen others answers like one who has seen none."""
    used = check("https://a.example")
    for head, at, instead, length in heads:
        for one in (head, head[:at] + instead + head[at + length :]):
            assert outcome(used, one) == outcome(check("https://a.example"), one)


def test_what_is_remembered_is_bounded() -> None:
    used = check()
    for number in range(3 * MAX_KNOWN):
        assert isinstance(used.answer(b"\r\n".join([LINE, *HEADERS, b"X: %d" % number])), bytes)
        used.answer(b"\r\n".join([LINE, *HEADERS, b"X: " + b"x" * 9000]))
    assert len(used._known) == MAX_KNOWN


def opened(pieces: list[bytes]) -> tuple[list[tuple[bytes, bool]], bool]:
    """What is asked of a front when a client sends these pieces; whether its socket is still there."""
    asked: list[tuple[bytes, bool]] = []

    async def scenario() -> bool:
        poll = Poll(asyncio.get_running_loop())
        openings = Openings(poll.loop, 60, Counters(), lambda: 10, lambda: None)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            one = ClientSocket(ours, ours.fileno(), poll)
            one.protocol = PendingUpgrade(one, lambda _, head, more: asked.append((head, more)), openings)
            poll.add(one.descriptor, one)
            openings.add(one)
            for piece in pieces:
                theirs.send(piece)
                one.read()
            there = ours.fileno() >= 0
            assert there or not len(openings)
            openings.close()
            poll.close()
        await asyncio.sleep(0)
        return there

    return asked, asyncio.run(scenario())


@given(cuts=st.lists(st.integers(0, 300), max_size=8), tail=st.sampled_from([b"", b"\x81\x80", b"\r\n"]))
def test_a_request_is_the_same_however_it_is_cut(cuts: list[int], tail: bytes) -> None:
    head = b"\r\n".join([LINE, *HEADERS])
    sent = head + HEAD_END
    places = sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})
    pieces = [sent[start:end] for start, end in pairwise(places)]
    pieces[-1] += tail
    asked, _ = opened(pieces)
    assert asked == [(head, bool(tail))]


@pytest.mark.req("LIM-05")
@pytest.mark.parametrize("size", [1, 700, 20_000])
def test_a_request_without_an_end_is_closed(size: int) -> None:
    pieces = [b"x" * size] * (MAX_HEAD_BYTES // size + 1)
    assert opened(pieces) == ([], False)
    assert opened(pieces[:-1])[1]
