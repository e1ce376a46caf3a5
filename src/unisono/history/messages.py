"""The messages of recorded frames, decoded, and the hashes by which events are compared."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET

from unisono.history.facts import (
    ReceivedError,
    RejectedEvent,
    SentBatch,
    SentItem,
)
from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
from unisono.protocol.client_codec import (
    CommittedEvent,
    Connected,
    SubmitResult,
    SyncResponse,
)
from unisono.protocol.codec import Envelope
from unisono.protocol.messages import Item, SubmitEvent, Sync
from unisono.protocol.partitions import PartitionError, normalise
from unisono.protocol.tombstones import is_tombstone


class PageResponse(SyncResponse, frozen=True):
    """A page with the fields that no client needs."""

    effective_subscriptions: tuple[str, ...] = ()


def sent_item(item: Item, at: float, where: str, connection: str) -> SentItem:
    try:
        partitions = normalise(_named(item.partitions, item.partition))
        digest = hash_of(bytes(item.event), partitions)
    except PartitionError:
        return SentItem(at, where, connection, item.id, None, None)
    return SentItem(at, where, connection, item.id, digest, partitions)


def requested_partitions(sync: Sync) -> tuple[str, ...]:
    try:
        return normalise(_named(sync.partitions, sync.partition), entries_max=sys.maxsize)
    except PartitionError:
        return ()


def _named(partitions: Any, partition: Any) -> Sequence[str]:
    return partitions if partitions is not UNSET else () if partition is UNSET else (partition,)


@lru_cache(maxsize=65_536)
def hash_of(event: bytes, partitions: tuple[str, ...]) -> str | None:
    """None where there is nothing to compare: no canonical form, or an event that was erased."""
    try:
        text = parse_canonical(event)[1]
        return None if is_tombstone(text) else content_hash(text, canonical(list(partitions))).hex()
    except NotCanonical:
        return None


decode_envelope = msgspec.json.Decoder(Envelope).decode
decode_submit = msgspec.json.Decoder(SentBatch).decode
decode_submit_one = msgspec.json.Decoder(SubmitEvent).decode
decode_sync = msgspec.json.Decoder(Sync).decode
decode_connected = msgspec.json.Decoder(Connected).decode
decode_result = msgspec.json.Decoder(SubmitResult).decode
decode_committed = msgspec.json.Decoder(CommittedEvent).decode
decode_rejected = msgspec.json.Decoder(RejectedEvent).decode
decode_error = msgspec.json.Decoder(ReceivedError).decode
decode_page = msgspec.json.Decoder(PageResponse).decode
