"""Bytes ⇄ messages: shape and depth checks on the way in, one splice on the way out.

Incoming bytes are a whole text message, already within the size limit and valid UTF-8. The event of a
submitted item stays raw here: what it holds is application data, looked at once, by `canonical`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from unisono.protocol.errors import SUPPORTED_VERSIONS, BadRequest, ProtocolVersionUnsupported
from unisono.protocol.extensions import ATOMIC
from unisono.protocol.messages import (
    EXTENSION_TYPES,
    MESSAGE_TYPES,
    Item,
    Message,
    SubmitEvent,
    SubmitEvents,
    SubmitMaybeAtomic,
)
from unisono.protocol.surrogates import Masked, mask_lone_surrogates
from unisono.vocabulary import LogIdentity

DEPTH_MAX: Final = 64
"""Nesting of one whole message (LIM-06)."""

VERSION: Final = SUPPORTED_VERSIONS[0]

ENVELOPE_KEYS: Final = frozenset({"msgId", "protocolVersion", "projectId"})
CONNECT_KEYS: Final = frozenset({"clientId", "projectId"})
"""Keys of a later protocol of the same name, in its envelope and in its `connect`."""


class Envelope(msgspec.Struct, frozen=True):
    """The five fields of every message (ENV-01); anything else at this level is ignored (ENV-03)."""

    type: str
    msg_id: str
    timestamp: int | float
    payload: msgspec.Raw
    protocol_version: str


class PlainItem(Item, frozen=True, forbid_unknown_fields=True, gc=False):
    """An item without further fields."""


class PlainSubmitEvent(SubmitEvent, frozen=True, forbid_unknown_fields=True, gc=False):
    """One event in which nothing but the event can be nested."""


class PlainSubmitEvents(SubmitEvents, frozen=True, forbid_unknown_fields=True):
    """A batch in which nothing but the events can be nested."""

    events: list[PlainItem]  # type: ignore[assignment]


class PlainSubmitMaybeAtomic(SubmitMaybeAtomic, frozen=True, forbid_unknown_fields=True):
    """The same, of a connection with the extension `atomic`."""

    events: list[PlainItem]  # type: ignore[assignment]


_Version: TypeAlias = Literal["1.0"]


class _OneEvent(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="submit_event"
):
    """A whole message, with no field beyond those that are defined."""

    msg_id: str
    timestamp: int | float
    payload: PlainSubmitEvent
    protocol_version: _Version


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="submit_events"):
    msg_id: str
    timestamp: int | float
    payload: PlainSubmitEvents
    protocol_version: _Version


class _BatchMaybeAtomic(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="submit_events"
):
    msg_id: str
    timestamp: int | float
    payload: PlainSubmitMaybeAtomic
    protocol_version: _Version


_decode_submit: Callable[[bytes], _OneEvent | _Batch] = msgspec.json.Decoder(_OneEvent | _Batch).decode
_decode_submit_maybe_atomic: Callable[[bytes], _OneEvent | _BatchMaybeAtomic] = msgspec.json.Decoder(
    _OneEvent | _BatchMaybeAtomic
).decode
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_payload_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in MESSAGE_TYPES.items()
}
_extension_decoders: dict[tuple[str, str], msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in EXTENSION_TYPES.items()
}
_SUBMIT: Final = b'"submit_event'
"""Near the start of what is most likely a submit; `_plain_submit` finds out."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

# Possessive, and an unfinished string reaches to the end: no match is tried twice, so malformed text is linear too.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_ONE_BRACKET = bytes.maketrans(b"[]", b"{}")
_NOT_BRACKETS = bytes(code for code in range(256) if code not in b"{}[]")


def decode(data: bytes, depth_max: int = DEPTH_MAX, extensions: Sequence[str] = ()) -> Message:
    """The message in `data`, or the WireError that says what is wrong with it (ENV-02, -04, -05).

    `extensions`: those of the connection, whose types and fields of messages it may send.
    """
    if (
        data.find(_SUBMIT, 0, 64) >= 0
        and (submit := _plain_submit(data, depth_max, ATOMIC in extensions)) is not None
    ):
        return submit
    if deeper_than(data, depth_max):
        raise BadRequest(f"JSON is nested deeper than {depth_max} levels")
    try:
        envelope = _decode_envelope(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _has_camel_case(data, ENVELOPE_KEYS, {"msg_id", "protocol_version"}):
            raise ProtocolVersionUnsupported(None) from None
        masked = mask_lone_surrogates(data)
        if masked is None:
            raise BadRequest(f"not a message: {error}") from None
        return _unmasked(decode(masked.text, depth_max=depth_max, extensions=extensions), masked)
    if envelope.protocol_version not in SUPPORTED_VERSIONS:
        raise ProtocolVersionUnsupported(envelope.protocol_version)
    decoder = _payload_decoders.get(envelope.type)
    for name in extensions:
        decoder = _extension_decoders.get((name, envelope.type), decoder)
    if decoder is None:
        raise BadRequest(f"unknown message type {envelope.type[:64]!r}")
    try:
        message: Message = decoder.decode(envelope.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if envelope.type == "connect" and _has_camel_case(envelope.payload, CONNECT_KEYS, {"client_id"}):
            raise ProtocolVersionUnsupported(None) from None
        raise BadRequest(f"{envelope.type}: payload: {error}") from None
    return message


def _plain_submit(data: bytes, depth_max: int, maybe_atomic: bool) -> SubmitEvent | SubmitEvents | None:
    """A submit whose fields are all defined; None for anything else, and for what is nested too deeply.

    Its events stand two levels deep, or four. Looking at the depth of each is much cheaper than at that of the whole
    text.
    """
    try:
        whole = _decode_submit_maybe_atomic(data) if maybe_atomic else _decode_submit(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    submit = whole.payload
    opened = _opened(data)
    if opened <= depth_max:
        return submit
    single = isinstance(submit, PlainSubmitEvent)
    items = (submit,) if isinstance(submit, PlainSubmitEvent) else submit.events
    below = depth_max - (2 if single else 4)
    opened -= 2 if single else 3 + len(items)
    for item in items:
        event = bytes(item.event)
        within = _opened(event)
        if within > below and deeper_than(event, below):
            return None
        opened -= within if item.partitions is UNSET else within + 1
    # What else is open stands in a string, or in a field that was given twice: the whole text is looked at.
    return None if opened else submit


def _opened(data: bytes) -> int:
    """How many brackets open, those in strings included: what `replace` takes away, in half the time of `count`."""
    return 2 * len(data) - len(data.replace(b"{", b"")) - len(data.replace(b"[", b""))


def _has_camel_case(data: bytes | msgspec.Raw, keys: frozenset[str], ours: set[str]) -> bool:
    """Whether this is part of a message of a later protocol, which writes `msgId` and `clientId`.

    Only what has such a key and none of ours: anything else is malformed and nothing more (ENV-02).
    """
    text = bytes(data)
    if not any(f'"{key}"'.encode() in text for key in keys):
        return False
    try:
        fields = _decode_fields(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(fields.keys() & keys) and not fields.keys() & ours


def _unmasked(message: Message, masked: Masked) -> Message:
    match message:
        case SubmitEvents():
            items = [_unmasked_item(item, masked) for item in message.events]
            return msgspec.structs.replace(message, events=items)
        case SubmitEvent():
            return _unmasked_item(message, masked)
        case _:
            raise BadRequest("not a message: a lone surrogate is not text")


_I = TypeVar("_I", bound=Item)


def _unmasked_item(item: _I, masked: Masked) -> _I:
    named = [item.id, *(item.partitions or ()), item.partition or ""]
    if any(masked.mask in name for name in named):
        raise BadRequest("a lone surrogate is not text: id and partitions must be valid Unicode")
    return msgspec.structs.replace(item, event=msgspec.Raw(masked.restored(bytes(item.event))))


def deeper_than(data: bytes, depth_max: int) -> bool:
    """Whether brackets nest deeper than `depth_max`; linear passes, no recursion.

    Meaningful for well-formed JSON; anything else is refused by the decoder afterwards.
    """
    if _opened(data) <= depth_max:
        return False
    brackets = _STRING.sub(b"", data).translate(_ONE_BRACKET, _NOT_BRACKETS)
    # Each pass removes the innermost level everywhere, so the passes count the levels.
    for _ in range(depth_max):
        if not brackets:
            return False
        shorter = brackets.replace(b"{}", b"")
        if len(shorter) == len(brackets):
            return False
        brackets = shorter
    return bool(brackets)


MESSAGE_FORMAT: Final = b'{"type":"%b","msg_id":"%b","timestamp":%d,"protocol_version":"1.0","payload":%b}'
"""For `encode`, and for who has the time for one call and no more."""


def encode(kind: str, msg_id: str, timestamp: int, payload: bytes) -> bytes:
    """One outgoing message around an already encoded payload. `kind` and `msg_id` are ours: plain ASCII."""
    return MESSAGE_FORMAT % (kind.encode(), msg_id.encode(), timestamp, payload)


def encode_payload(value: object) -> bytes:
    """JSON of a payload that is not an event."""
    return _encode(value)


def encode_connected(client_id: str, server_time: int, head: int, fields: bytes) -> bytes:
    """The payload of `connected`; `fields`: what `connected_fields` says, encoded."""
    return b'{"client_id":%b,"server_time":%d,"server_last_committed_id":%d,%b' % (
        _encode(client_id),
        server_time,
        head,
        fields[1:],
    )


@lru_cache(maxsize=512)
def encode_names(partitions: tuple[str, ...]) -> bytes:
    """JSON of the partitions of an event: the same few sets come again and again."""
    return _encode(partitions)


EVENT_FORMAT: Final = (
    b'{"id":%b,"client_id":%b,"partitions":%b,"committed_id":%d,"event":%b,"status_updated_at":%d}'
)
"""For `encode_event`, and for who encodes many events and has their fields as JSON already."""


def encode_event(
    committed_id: int,
    id: str,
    client_id: str,
    partitions: tuple[str, ...],
    event: bytes,
    status_updated_at: int,
) -> bytes:
    """The one shape of a committed event on the wire (BCAST-05), with the stored text spliced in."""
    return EVENT_FORMAT % (
        _encode(id),
        _encode(client_id),
        encode_names(partitions),
        committed_id,
        event,
        status_updated_at,
    )


def with_author(event: bytes, author: str) -> bytes:
    """An event of the wire with the fields of its author; `author` is a JSON object, or empty (EXT-03)."""
    return event[:-1] + b"," + author[1:].encode() if author else event


def encode_snapshot(
    partition: str, committed_id: int, model_version: int | None, model_digest: str, state: bytes
) -> bytes:
    """One entry of `sync_response.snapshots` (SYNC-12), with the stored state spliced in."""
    return b'{"partition":%b,"committed_id":%d,%b,"state":%b}' % (
        _encode(partition),
        committed_id,
        _model_fields(model_version, model_digest) or b'"model_version":null',
        state,
    )


def _model_fields(model_version: int | None, model_digest: str) -> bytes:
    """The fields that name a model; none where none is configured."""
    if model_version is None:
        return b""
    return b'"model_version":%d,"model_digest":%b' % (model_version, _encode(model_digest))


def encode_sync_response(
    *,
    partitions: Sequence[str],
    subscriptions: Sequence[str],
    events: bytes,
    next_since: int,
    sync_to: int,
    has_more: bool,
    model_version: int | None,
    model_digest: str = "",
    log: LogIdentity | None = None,
    snapshots: Sequence[bytes] | None = None,
) -> bytes:
    """The payload of a `sync_response`; `snapshots` and `events`, with commas between them, are in wire form."""
    model = b"" if model_version is None else b"," + _model_fields(model_version, model_digest)
    past = b"" if log is None else b',"log_id":%b,"log_epoch":%d' % (_encode(log.log_id), log.log_epoch)
    started = b"" if snapshots is None else b',"snapshots":[%b]' % b",".join(snapshots)
    return (
        b'{"partitions":%b,"effective_subscriptions":%b,"events":[%b],"next_since_committed_id":%d,'
        b'"sync_to_committed_id":%d,"has_more":%b%b%b%b}'
    ) % (
        _encode(partitions),
        _encode(subscriptions),
        events,
        next_since,
        sync_to,
        b"true" if has_more else b"false",
        model,
        past,
        started,
    )


def encode_history_result(request_id: str, partition: str, events: bytes, next_before: int | None) -> bytes:
    """The payload of a `history_result` (EXT-20); `events`, with commas between them, are in wire form."""
    return b'{"request_id":%b,"partition":%b,"events":[%b],"next_before":%b}' % (
        _encode(request_id),
        _encode(partition),
        events,
        _encode(next_before),
    )
