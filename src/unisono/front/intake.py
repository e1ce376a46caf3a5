"""Prepares a submitted request for the authority: shape, partitions, access, canonical form.

An error in the request's shape refuses the whole request (SUBMIT-01). An error in one item makes it a `RefusedItem`,
which is still sent to the authority, so that the answer has one entry per item, in order (SUBMIT-04).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Identity
from unisono.ipc.messages import Candidate, RefusedItem
from unisono.protocol.canonical import NotCanonical, canonical, canonical_text, content_hash
from unisono.protocol.errors import BadRequest
from unisono.protocol.identities import EVENT_ID_BYTES_MAX
from unisono.protocol.messages import Item
from unisono.protocol.partitions import ENTRIES_MAX, PartitionError, can_be_sent, normalise
from unisono.vocabulary import FieldError

SPREAD_MAX = 2
"""Bound on an event's bytes times its partitions, in units of max_message_bytes. Every partition has the event in
its state, its snapshots and its history: 1 MiB in 64 partitions is 64 MiB to store and to load, from one message."""

_UUID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""The standard text form of a UUID (RFC 9562); with other spellings one UUID would be several ids."""


def check_shape(items: Sequence[Item], settings: Settings, *, single: bool) -> None:
    """Check what must hold for the whole request before its items (SUBMIT-01)."""
    if not items:
        raise BadRequest("events must not be empty")
    if len(items) > settings.max_batch_size:
        raise BadRequest(f"{len(items)} events in one request, at most {settings.max_batch_size} allowed")
    seen: set[str] = set()
    for index, item in enumerate(items):
        where = "" if single else f"events.{index}."
        _check_id(item.id, where, settings)
        if item.id in seen:
            raise BadRequest(f"{where}id: {item.id!r} is given twice in this request")
        seen.add(item.id)
        if bytes(item.event)[:1] != b"{":
            raise BadRequest(f"{where}event must be an object")


def _check_id(id: str, where: str, settings: Settings) -> None:
    size = len(id) if id.isascii() else len(id.encode())
    if not size:
        raise BadRequest(f"{where}id must not be empty")
    if size > EVENT_ID_BYTES_MAX:
        raise BadRequest(f"{where}id has {size} bytes, at most {EVENT_ID_BYTES_MAX} allowed")
    if settings.require_uuid_ids and not _UUID.fullmatch(id):
        raise BadRequest(f"{where}id must be a UUID")


def named_partitions(
    partitions: list[str] | UnsetType, partition: str | UnsetType, settings: Settings
) -> list[str]:
    """The partitions of a request, from `partitions` or the legacy field `partition` (PART-05)."""
    if partitions is UNSET:
        if partition is UNSET:
            raise BadRequest("partitions is required")
        if not settings.legacy_partition:
            raise BadRequest("the legacy field partition is not taken alone; send partitions")
        return [partition]
    if partition is not UNSET and not _same(partitions, partition):
        raise BadRequest("partition and partitions disagree")
    return partitions


def _same(partitions: list[str], partition: str) -> bool:
    """Normalises only spellings that differ; all names are normalised again with their item."""
    others = {name for name in partitions if name != partition}
    if not others:
        return bool(partitions)
    try:
        normal = normalise([partition])
        return all(normalise([name]) == normal for name in others)
    except PartitionError:
        return False


def prepare(
    item: Item, named: list[str], identity: Identity, access: Access, max_bytes: int
) -> Candidate | RefusedItem:
    """Check one item as far as possible without the log and the model."""
    try:
        partitions = normalise(named)
    except PartitionError as error:
        where = "partitions" if error.index is None else f"partitions.{error.index}"
        shown = tuple(name for name in named[:ENTRIES_MAX] if can_be_sent(name))
        return RefusedItem(item.id, shown, "validation_failed", (FieldError(where, str(error)),))
    denied = access.denied(identity, partitions)
    if denied:
        errors = tuple(FieldError("partitions", f"not authorised for {name!r}") for name in denied)
        return RefusedItem(item.id, partitions, "forbidden", errors)
    try:
        event = canonical_text(bytes(item.event), max_bytes)
    except NotCanonical as error:
        where = f"event.{error.field}" if error.field else "event"
        return RefusedItem(item.id, partitions, "validation_failed", (FieldError(where, error.reason),))
    if len(event) * len(partitions) > SPREAD_MAX * max_bytes:
        says = (
            f"the event has {len(event)} bytes and {len(partitions)} partitions, {len(event) * len(partitions)} bytes"
            f" in all of them; at most {SPREAD_MAX * max_bytes} are allowed"
        )
        return RefusedItem(item.id, partitions, "validation_failed", (FieldError("partitions", says),))
    names = _plain(partitions)
    return Candidate(item.id, partitions, event, content_hash(event, names))


_encode = msgspec.json.Encoder().encode


def _plain(partitions: tuple[str, ...]) -> bytes:
    text = _encode(partitions)
    return text if b"\\" not in text else canonical(list(partitions))
