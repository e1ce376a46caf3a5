"""The wire as a client sees it: what a server says, typed, and what a client says, encoded.

Unknown message types and unknown fields are let be, so that a newer server is understood as far as it goes
(ENV-03). Events stay raw: they are stored as they came and parsed where they are folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from unisono.protocol.codec import Envelope, encode, encode_payload
from unisono.protocol.partitions import ENTRIES_MAX
from unisono.vocabulary import FieldError, Json, JsonObject


class BadMessage(Exception):
    """Bytes that are not what a server may say; the text says why."""


class Capabilities(msgspec.Struct, frozen=True):
    """What was negotiated. A server of the first draft sends none of it: then the profile is the one asked for."""

    profile: str | None = None
    accepted_event_types: tuple[str, ...] = ()
    tree_policy: str | None = None
    ordered_delivery: bool = False
    snapshots: Any = None


class Limits(msgspec.Struct, frozen=True):
    """Bounds the server advertises; the defaults are the protocol's, None is unknown."""

    max_batch_size: int = 100
    sync_limit_min: int = 50
    sync_limit_max: int = 1000
    max_message_bytes: int | None = None
    max_in_flight_drafts: int | None = None
    max_subscriptions: int = ENTRIES_MAX


class Connected(msgspec.Struct, frozen=True):
    """The handshake is accepted."""

    client_id: str = ""
    server_last_committed_id: int = 0
    capabilities: Capabilities | None = None
    limits: Limits | None = None
    model_version: int | None = None
    model_digest: str | None = None
    log_id: str | None = None
    log_epoch: int | None = None


class CommittedEvent(msgspec.Struct, frozen=True):
    """The one shape of a committed event (BCAST-05)."""

    id: str
    committed_id: int
    partitions: tuple[str, ...]
    event: Raw
    client_id: str = ""
    status_updated_at: int | float = 0


class Broadcast(msgspec.Struct, frozen=True):
    """`event_broadcast`, and `event_committed` of the first draft, which says the same to the origin."""

    event: CommittedEvent


class SyncResponse(msgspec.Struct, frozen=True):
    """One page. What `snapshots` holds is looked at where they were asked for, and only there."""

    events: tuple[CommittedEvent, ...]
    next_since_committed_id: int
    sync_to_committed_id: int
    has_more: bool
    model_version: int | None = None
    model_digest: str | None = None
    log_id: str | None = None
    log_epoch: int | None = None
    snapshots: Raw | UnsetType = UNSET


class ServerSnapshot(msgspec.Struct, frozen=True):
    """One entry of `sync_response.snapshots`: the state of a partition up to `committed_id`."""

    partition: str
    committed_id: int
    state: Raw
    model_version: int | None = None
    model_digest: str | None = None


class SubmitResultItem(msgspec.Struct, frozen=True):
    """What became of one submitted item."""

    id: str
    status: str
    committed_id: int | None = None
    reason: str | None = None
    errors: Any = None
    status_updated_at: int | float = 0


class SubmitResult(msgspec.Struct, frozen=True):
    """`submit_events_result`."""

    results: tuple[SubmitResultItem, ...]


class VersionChanged(msgspec.Struct, frozen=True):
    """The server judges by another model from now on."""

    new_model_version: int | None = None
    old_model_version: int | None = None


class HeartbeatAck(msgspec.Struct, frozen=True):
    """The server is there."""


class ErrorMessage(msgspec.Struct, frozen=True):
    """`error`. What `details` holds depends on the code."""

    code: str
    message: str = ""
    details: Any = None
    retry_after_ms: int | float | None = None


def field_errors(told: Any) -> tuple[FieldError, ...]:
    """The errors a server lists, however loosely it lists them."""
    if not isinstance(told, list):
        return ()
    return tuple(
        FieldError(str(each.get("field", "")), str(each.get("message", "")))
        if isinstance(each, dict)
        else FieldError("", str(each))
        for each in told
    )


ServerMessage: TypeAlias = (
    Connected | Broadcast | SyncResponse | SubmitResult | VersionChanged | HeartbeatAck | ErrorMessage
)

_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_committed = msgspec.json.Decoder(CommittedEvent).decode
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "connected": msgspec.json.Decoder(Connected),
    "sync_response": msgspec.json.Decoder(SyncResponse),
    "submit_events_result": msgspec.json.Decoder(SubmitResult),
    "version_changed": msgspec.json.Decoder(VersionChanged),
    "heartbeat_ack": msgspec.json.Decoder(HeartbeatAck),
    "error": msgspec.json.Decoder(ErrorMessage),
}


_decode_snapshots = msgspec.json.Decoder(tuple[ServerSnapshot, ...]).decode


def decode_snapshots(data: Raw) -> tuple[ServerSnapshot, ...]:
    """What a response says its history starts from; BadMessage when it cannot be told."""
    try:
        return _decode_snapshots(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a list of snapshots: {error}") from None


def decode(data: str | bytes) -> ServerMessage | None:
    """What the server says; None for a type this client does not know; BadMessage when it is no message."""
    try:
        envelope = _decode_envelope(data)
        if envelope.type in ("event_broadcast", "event_committed"):
            return Broadcast(_decode_committed(envelope.payload))
        decoder = _DECODERS.get(envelope.type)
        if decoder is None:
            return None
        message: ServerMessage = decoder.decode(envelope.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a message of this protocol: {error}") from None
    return message


class MessageWriter:
    """Encodes what one connection says, numbering its messages."""

    def __init__(self) -> None:
        self._said = 0

    def say(self, kind: str, payload: bytes, now_ms: int) -> bytes:
        self._said += 1
        return encode(kind, f"c{self._said}", now_ms, payload)


def connect_payload(
    *, token: str, client_id: str, profile: str, last_committed_id: int, snapshots: bool
) -> bytes:
    body: JsonObject = {
        "token": token,
        "client_id": client_id,
        "last_committed_id": last_committed_id,
        "supported_profiles": [profile],
        "required_profile": profile,
    }
    if profile == "compatibility":
        body["required_tree_policy"] = "strict"
    if snapshots:
        body["snapshots"] = True
    return encode_payload(body)


def sync_payload(
    partitions: Sequence[str], since: int, limit: int, subscription: Sequence[str] | None, *, whole: bool
) -> bytes:
    """`whole`: the history and no snapshots, although they were asked for in connect."""
    body: dict[str, Json] = {
        "partitions": list(partitions),
        "since_committed_id": since,
        "limit": limit,
    }
    if subscription is not None:
        body["subscription_partitions"] = list(subscription)
    if whole:
        body["snapshots"] = False
    return encode_payload(body)


def name_bytes(name: str) -> int:
    """What a partition's name takes in the list of a message."""
    return len(encode_payload(name)) + 1


def item_payload(id: str, partitions: Sequence[str], event: bytes) -> bytes:
    """One item of a submit, with the stored text of its event spliced in."""
    return b'{"id":%b,"partitions":%b,"event":%b}' % (encode_payload(id), encode_payload(partitions), event)


def submit_payload(items: Sequence[bytes]) -> bytes:
    return b'{"events":[%b]}' % b",".join(items)


ENVELOPE_BYTES: Final = 256
"""Room to leave in a message for everything around its items."""
