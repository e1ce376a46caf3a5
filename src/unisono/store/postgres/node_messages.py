"""Short messages between nodes that are never stored, as payloads of NOTIFY.

A payload has at most 8,000 bytes and no U+0000, so messages are packed together, up to that, as base85 text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

NODE_MESSAGES_CHANNEL: Final = "unisono_told"

PAYLOAD_BYTES_MAX: Final = 7_900
"""Of one NOTIFY; PostgreSQL takes less than 8,000."""

PACKED_BYTES_MAX: Final = PAYLOAD_BYTES_MAX * 4 // 5 - 64
"""Bytes of messages in one payload: base85 makes five characters of four bytes."""


class MessagePayload(msgspec.Struct, frozen=True, array_like=True):
    """The content of a payload."""

    node_id: int
    messages: list[bytes]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(MessagePayload).decode


def message_payloads(messages: Sequence[bytes], node_id: int | None) -> Iterator[str]:
    """The payloads that carry these messages, in order; one that fits into none is left out."""
    some: list[bytes] = []
    size = 0
    for message in messages:
        if len(message) > PACKED_BYTES_MAX:
            continue
        if some and size + len(message) + 8 > PACKED_BYTES_MAX:
            yield _payload(some, node_id)
            some, size = [], 0
        some.append(message)
        size += len(message) + 8
    if some:
        yield _payload(some, node_id)


def _payload(messages: list[bytes], node_id: int | None) -> str:
    return base64.b85encode(_encode(MessagePayload(node_id or 0, messages))).decode("ascii")


def messages_of_others(payloads: Iterable[str], node_id: int | None) -> list[bytes]:
    """The messages of other nodes; NOTIFY reaches its own sender, too."""
    found: list[bytes] = []
    for payload in payloads:
        try:
            content = _decode(base64.b85decode(payload))
        except (ValueError, msgspec.MsgspecError):
            continue  # somebody else uses this channel
        if content.node_id != node_id:
            found += content.messages
    return found
