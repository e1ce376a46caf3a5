from __future__ import annotations

import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.front.client_sockets import READ_BYTES
from unisono.front.frame_reader import FrameReader
from unisono.front.unmasking import unmask, unmask_slowly

MAX_BYTES = 200_000
PING, TEXT, BINARY = 0x89, 0x81, 0x02


class Receiver:
    max_message_bytes = MAX_BYTES

    def __init__(self, taken: list[tuple[str, bytes]]) -> None:
        self._taken = taken

    def on_data_frame(self, first: int, payload: bytes) -> None:
        self._taken.append(("data", bytes([first]) + payload))

    def on_oversized(self) -> None:
        self._taken.append(("oversized", b""))

    def on_control_frames(self, frames: bytes) -> None:
        while frames:  # whole ones with short payloads, or a header that is not valid
            size = 6 + (frames[1] & 0x7F) if frames[1] & 0x80 else len(frames)
            self._taken.append(("control", frames[:size]))
            frames = frames[size:]

    def pause_writing(self) -> None:
        raise AssertionError("nothing was written")

    def on_peer_closed(self) -> None:
        raise AssertionError("nobody closed")

    def on_lost(self) -> None:
        raise AssertionError("nothing was lost")


def header(first: int, size: int, mask: bytes) -> bytes:
    if size < 126:
        return bytes((first, 0x80 | size)) + mask
    if size < 65536:
        return bytes((first, 0xFE)) + size.to_bytes(2, "big") + mask
    return bytes((first, 0xFF)) + size.to_bytes(8, "big") + mask


def masked(first: int, payload: bytes, mask: bytes) -> bytes:
    return header(first, len(payload), mask) + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def read(sent: bytes, cuts: list[int]) -> list[tuple[str, bytes]]:
    taken: list[tuple[str, bytes]] = []
    buffer = memoryview(bytearray(READ_BYTES))
    reader = FrameReader(Receiver(taken), buffer)
    places = sorted({0, len(sent), *(cut % (len(sent) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        for at in range(start, end, len(buffer)):
            piece = sent[at : min(end, at + len(buffer))]
            buffer[: len(piece)] = piece
            reader.buffer_updated(len(piece))
    return taken


SIZES = st.one_of(st.integers(0, 300), st.sampled_from([125, 126, 127, 4000, 65_535, 65_536, 70_000]))
FRAMES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([TEXT, BINARY, 0x00, 0x80, 0xF1]), SIZES),
        st.tuples(st.sampled_from([PING, 0x8A, 0x88]), st.integers(0, 125)),
    ),
    max_size=6,
)


@pytest.mark.req("ENV-01", "LIM-02")
@given(
    frames=FRAMES, cuts=st.lists(st.integers(0, 2**20), max_size=8), mask=st.binary(min_size=4, max_size=4)
)
def test_frames_are_taken_in_order_however_they_are_cut(
    frames: list[tuple[int, int]], cuts: list[int], mask: bytes
) -> None:
    noise = os.urandom(MAX_BYTES + 1)
    sent = b"".join(masked(first, noise[:size], mask) for first, size in frames)
    expected = [
        ("control", masked(first, noise[:size], mask))
        if first & 8
        else ("data", bytes([first]) + noise[:size])
        for first, size in frames
    ]
    assert read(sent, cuts) == expected


@pytest.mark.req("LIM-02")
@given(cuts=st.lists(st.integers(0, 2**20), max_size=5))
def test_a_frame_that_is_too_long_is_passed_over(cuts: list[int]) -> None:
    mask, short = b"\x01\x02\x03\x04", b"short"
    sent = header(TEXT, MAX_BYTES + 1, mask) + bytes(MAX_BYTES + 1) + masked(TEXT, short, mask)
    assert read(sent, cuts) == [("oversized", b""), ("data", bytes([TEXT]) + short)]


@pytest.mark.req("ENV-01")
@pytest.mark.parametrize(
    "wrong",
    [
        b"\x81\x05",  # not masked
        b"\x83\x85\0\0\0\0",  # an opcode that is not defined
        b"\x89\xfe\x00\x7e\0\0\0\0",  # a long ping
        b"\x81\xfe\x00\x7d\0\0\0\0",  # a short length in the form of a longer one
        b"\x81\xff\x00\x00\x00\x00\x00\x00\xff\xff\0\0\0\0",
        b"\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00\0\0\0\0",
    ],
)
def test_the_receiver_is_told_of_a_header_that_is_not_valid(wrong: bytes) -> None:
    taken = read(masked(TEXT, b"before", b"abcd") + wrong + masked(TEXT, b"after", b"abcd"), [])
    assert taken[0] == ("data", bytes([TEXT]) + b"before")
    assert [kind for kind, _ in taken[1:]] == ["control"]


@pytest.mark.req("ENV-01")
@given(mask=st.binary(min_size=4, max_size=4), payload=st.binary(max_size=300))
def test_both_ways_to_take_off_a_mask_agree(mask: bytes, payload: bytes) -> None:
    fast, slow = bytearray(payload), bytearray(payload)
    unmask(mask, fast)
    unmask_slowly(mask, slow)
    assert fast == slow == bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def test_the_compiled_way_is_there() -> None:
    assert unmask is not unmask_slowly
