"""The protocol as a client speaks it: server messages decoded into types, client messages encoded.

Used by the Python client, the commands `tail` and `submit`, and the Spark sink. Unknown message types and unknown
fields are ignored, so that a newer server is understood as far as possible (ENV-03). Events stay raw: they are stored
as received and parsed where they are folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from unisono.protocol.codec import Envelope, encode, encode_payload
from unisono.protocol.identities import unverified_claims
from unisono.protocol.partitions import ENTRIES_MAX
from unisono.vocabulary import FieldError, Json, JsonObject


class BadMessage(Exception):
    """Bytes that are no server message; the text says why."""


class Capabilities(msgspec.Struct, frozen=True):
    """What was negotiated. A server of the first draft sends none of it: the profile is then the requested one."""

    profile: str | None = None
    accepted_event_types: tuple[str, ...] = ()
    tree_policy: str | None = None
    ordered_delivery: bool = False
    snapshots: Any = None
    extensions: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """Bounds the server advertises; the defaults are the protocol's, None is unknown."""

    max_batch_size: int = 100
    sync_limit_min: int = 50
    sync_limit_max: int = 1000
    max_message_bytes: int | None = None
    max_in_flight_drafts: int | None = None
    max_subscriptions: int = ENTRIES_MAX
    max_presence_bytes: int | None = None
    presence_ttl_ms: int | float | None = None


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
    user_id: str | None = None
    claims: dict[str, Any] | None = None

    @property
    def author(self) -> str:
        """Who this connection submits as, in the form of `CommittedEvent.author`."""
        return _author(self.user_id, self.claims)


class CommittedEvent(msgspec.Struct, frozen=True):
    """The one shape of a committed event (BCAST-05), with its author where the client asked for it (EXT-03)."""

    id: str
    committed_id: int
    partitions: tuple[str, ...]
    event: Raw
    client_id: str = ""
    status_updated_at: int | float = 0
    user_id: str | None = None
    claims: dict[str, Any] | None = None

    @property
    def author(self) -> str:
        """The `user_id` and the `claims` as JSON; empty where there are none."""
        return _author(self.user_id, self.claims)


def _author(user_id: str | None, claims: dict[str, Any] | None) -> str:
    if user_id is None and not claims:
        return ""
    author = {"claims": claims, "user_id": user_id}
    return encode_payload({name: value for name, value in author.items() if value}).decode()


def author_in(token: str, claims: Sequence[str]) -> str:
    """What a server would store with the events of this token, if `sub` names the user there; nobody verified it."""
    found = unverified_claims(token)
    user_id = found.get("sub")
    kept = {name: found[name] for name in claims if name in found}
    return _author(user_id if isinstance(user_id, str) else None, kept)


class Broadcast(msgspec.Struct, frozen=True):
    """`event_broadcast`, and `event_committed` of the first draft, the same message for the event's origin."""

    event: CommittedEvent


class SyncResponse(msgspec.Struct, frozen=True):
    """One page. `snapshots` stays raw: it is decoded only where snapshots were requested."""

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
    """The outcome of one submitted item."""

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
    """The server uses another model from now on."""

    new_model_version: int | None = None
    old_model_version: int | None = None


class PresenceEntry(msgspec.Struct, frozen=True):
    """One client that is in a partition."""

    client_id: str
    value: Any = None
    user_id: str | None = None


class PresenceUpdate(msgspec.Struct, frozen=True):
    """`presence_update`: who is there, or with `complete: false` who says something else, and who is gone."""

    partition: str
    present: tuple[PresenceEntry, ...] = ()
    gone: tuple[str, ...] = ()
    complete: bool = False


class HistoryResult(msgspec.Struct, frozen=True):
    """`history_result`: a page from the newest event backwards, or why there is none (EXT-20)."""

    request_id: str
    partition: str = ""
    events: tuple[CommittedEvent, ...] = ()
    next_before: int | None = None
    error: ErrorMessage | None = None


class HeartbeatAck(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""


class ErrorMessage(msgspec.Struct, frozen=True):
    """`error`. The content of `details` depends on the code."""

    code: str
    message: str = ""
    details: Any = None
    retry_after_ms: int | float | None = None


def field_errors(listed: Any) -> tuple[FieldError, ...]:
    """The field errors of a result or an error, whatever shape the server gives them."""
    if not isinstance(listed, list):
        return ()
    return tuple(
        FieldError(str(each.get("field", "")), str(each.get("message", "")))
        if isinstance(each, dict)
        else FieldError("", str(each))
        for each in listed
    )


ServerMessage: TypeAlias = (
    Connected
    | Broadcast
    | SyncResponse
    | SubmitResult
    | VersionChanged
    | PresenceUpdate
    | HistoryResult
    | HeartbeatAck
    | ErrorMessage
)

_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_committed = msgspec.json.Decoder(CommittedEvent).decode
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "connected": msgspec.json.Decoder(Connected),
    "sync_response": msgspec.json.Decoder(SyncResponse),
    "submit_events_result": msgspec.json.Decoder(SubmitResult),
    "version_changed": msgspec.json.Decoder(VersionChanged),
    "presence_update": msgspec.json.Decoder(PresenceUpdate),
    "history_result": msgspec.json.Decoder(HistoryResult),
    "heartbeat_ack": msgspec.json.Decoder(HeartbeatAck),
    "error": msgspec.json.Decoder(ErrorMessage),
}


_decode_snapshots = msgspec.json.Decoder(tuple[ServerSnapshot, ...]).decode


def decode_snapshots(data: Raw) -> tuple[ServerSnapshot, ...]:
    """The snapshots of a sync_response; BadMessage when they do not have the right shape."""
    try:
        return _decode_snapshots(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a list of snapshots: {error}") from None


def decode(data: str | bytes) -> ServerMessage | None:
    """The server's message; None for an unknown type; BadMessage when it is no message."""
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
    """Encodes and numbers the messages of one connection; several threads may use it."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def encode(self, kind: str, payload: bytes, now_ms: int) -> bytes:
        return encode(kind, f"c{next(self._numbers)}", now_ms, payload)


def connect_payload(
    *,
    token: str,
    client_id: str,
    profile: str,
    last_committed_id: int,
    snapshots: bool,
    extensions: Sequence[str] = (),
) -> bytes:
    """The connect of a client with a store, which follows one profile."""
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
    if extensions:
        body["extensions"] = list(extensions)
    return encode_payload(body)


def plain_connect_payload(
    token: str, client_id: str, profiles: Sequence[str], extensions: Sequence[str] = ()
) -> bytes:
    """The connect of a program without a store, which takes any of these profiles."""
    body: JsonObject = {"token": token, "client_id": client_id, "supported_profiles": list(profiles)}
    if extensions:
        body["extensions"] = list(extensions)
    return encode_payload(body)


def sync_payload(
    partitions: Sequence[str],
    since: int,
    limit: int,
    subscription: Sequence[str] | None,
    *,
    decline_snapshots: bool = False,
) -> bytes:
    """`decline_snapshots`: send all events, although the connect asked for snapshots."""
    body: dict[str, Json] = {
        "partitions": list(partitions),
        "since_committed_id": since,
        "limit": limit,
    }
    if subscription is not None:
        body["subscription_partitions"] = list(subscription)
    if decline_snapshots:
        body["snapshots"] = False
    return encode_payload(body)


def name_bytes(name: str) -> int:
    """The size of a partition's name in the list of a message."""
    return len(encode_payload(name)) + 1


def item_payload(id: str, partitions: Sequence[str], event: bytes) -> bytes:
    """One item of a submit, with the stored text of its event spliced in."""
    return b'{"id":%b,"partitions":%b,"event":%b}' % (encode_payload(id), encode_payload(partitions), event)


def submit_payload(items: Sequence[bytes], *, atomic: bool = False) -> bytes:
    """`atomic`: all of them or none, on a connection with that extension (EXT-10)."""
    return (b'{"atomic":true,"events":[%b]}' if atomic else b'{"events":[%b]}') % b",".join(items)


def presence_payload(partition: str, value: bytes | None) -> bytes:
    """What a client says of itself; None says nothing any more."""
    return b'{"partition":%b,"value":%b}' % (encode_payload(partition), b"null" if value is None else value)


def history_payload(request_id: str, partition: str, before: int | None, limit: int) -> bytes:
    """The newest events of a partition below `before`; None: from the head on."""
    body: JsonObject = {"request_id": request_id, "partition": partition, "limit": limit}
    if before is not None:
        body["before"] = before
    return encode_payload(body)


ENVELOPE_BYTES: Final = 256
"""Room to leave in a message for everything around its items."""
