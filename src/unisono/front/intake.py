"""Prepares a submitted request for the authority: shape, partitions, access, canonical form.

An error in the request's shape refuses the whole request (SUBMIT-01). An error in one item makes it a `RefusedItem`,
which is still sent to the authority, so that the answer has one entry per item, in order (SUBMIT-04).
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Identity
from unisono.ipc.messages import Candidate, RefusedItem
from unisono.protocol.canonical import NotCanonical, canonical, canonical_text, content_hash
from unisono.protocol.codec import encode_names
from unisono.protocol.errors import BadRequest
from unisono.protocol.identities import EVENT_ID_BYTES_MAX
from unisono.protocol.messages import Item
from unisono.protocol.partitions import ENTRIES_MAX, PartitionError, can_be_sent, normalise
from unisono.vocabulary import FieldError

SPREAD_MAX = 2
"""Bound on an event's bytes times its partitions, in units of max_message_bytes. Every partition has the event in
its state, its snapshots and its history: 1 MiB in 64 partitions is 64 MiB to store and to load, from one message."""

REMEMBERED_NAMES_MAX = 4
"""Names that a connection remembers from its last item. More are compared and normalised each time."""

_UUID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""The standard text form of a UUID (RFC 9562); with other spellings one UUID would be several ids."""


def check_shape(
    items: Sequence[Item], settings: Settings, *, single: bool
) -> tuple[list[bytes], list[list[str]]]:
    """Check what must hold for the whole request before its items (SUBMIT-01).

    The result is the text of each event, and the partitions that each item names.
    """
    if not items:
        raise BadRequest("events must not be empty")
    if len(items) > settings.max_batch_size:
        raise BadRequest(f"{len(items)} events in one request, at most {settings.max_batch_size} allowed")
    texts: list[bytes] = []
    named: list[list[str]] = []
    wrong, legacy = settings.require_uuid_ids, False
    for item in items:
        id, text, partitions = item.id, bytes(item.event), item.partitions
        if not id.isascii() or not 0 < len(id) <= EVENT_ID_BYTES_MAX or not text.startswith(b"{"):
            wrong = True
        if partitions is UNSET or item.partition is not UNSET:
            legacy = True
        else:
            named.append(partitions)
        texts.append(text)
    if wrong or (len(items) > 1 and len({item.id for item in items}) != len(items)):
        _look_for_wrong(items, settings, single=single)
    if legacy:
        named = [named_partitions(item.partitions, item.partition, settings) for item in items]
    return texts, named


def _look_for_wrong(items: Sequence[Item], settings: Settings, *, single: bool) -> None:
    """Raise what is wrong with the first item that is not as it must be."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        if (wrong := _wrong_with(item, seen, require_uuid=settings.require_uuid_ids)) is not None:
            raise BadRequest(wrong if single else f"events.{index}.{wrong}")
        seen.add(item.id)


def _wrong_with(item: Item, seen: Container[str], *, require_uuid: bool) -> str | None:
    id = item.id
    size = len(id) if id.isascii() else len(id.encode())
    if not size:
        return "id must not be empty"
    if size > EVENT_ID_BYTES_MAX:
        return f"id has {size} bytes, at most {EVENT_ID_BYTES_MAX} allowed"
    if require_uuid and not _UUID.fullmatch(id):
        return "id must be a UUID"
    if id in seen:
        return f"id: {id!r} is given twice in this request"
    if not bytes(item.event).startswith(b"{"):
        return "event must be an object"
    return None


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


class CheckedPartitions(msgspec.Struct, frozen=True):
    """The partitions that an item names, as far as they can be judged without its event."""

    named: list[str]
    partitions: tuple[str, ...]
    canonical_names: bytes = b""
    reason: Literal["forbidden", "validation_failed"] | None = None
    errors: tuple[FieldError, ...] = ()


class Intake:
    """Prepares the items of one connection. It remembers the partitions of its last item: the next names the same."""

    __slots__ = ("_access", "_identity", "_last", "_max_bytes")

    def __init__(self, identity: Identity, access: Access, max_bytes: int) -> None:
        self._identity = identity
        self._access = access
        self._max_bytes = max_bytes
        self._last = CheckedPartitions([], ())

    def prepare(
        self, items: Sequence[Item], texts: Sequence[bytes], named: Sequence[list[str]]
    ) -> tuple[tuple[Candidate | RefusedItem, ...], int]:
        """Check items as far as possible without the log and the model; also the bytes of their canonical events.

        `texts` are their events as they came, `named` the partitions that they name.
        """
        checked, max_bytes = self._last, self._max_bytes
        prepared: list[Candidate | RefusedItem] = []
        written = 0
        for item, text, names in zip(items, texts, named, strict=True):
            if checked.named != names or not names:
                checked = self._check(names)
                if checked.reason is None and len(names) <= REMEMBERED_NAMES_MAX:
                    self._last = checked
            partitions = checked.partitions
            if checked.reason is not None:
                prepared.append(RefusedItem(item.id, partitions, checked.reason, checked.errors))
                continue
            try:
                event = canonical_text(text, max_bytes)
            except NotCanonical as error:
                prepared.append(_refused(item.id, partitions, _where(error), error.reason))
                continue
            size = len(event)
            if size * len(partitions) > SPREAD_MAX * max_bytes:
                prepared.append(
                    _refused(item.id, partitions, "partitions", _spread(size, partitions, max_bytes))
                )
                continue
            written += size
            prepared.append(
                Candidate(item.id, partitions, event, content_hash(event, checked.canonical_names))
            )
        return tuple(prepared), written

    def _check(self, named: list[str]) -> CheckedPartitions:
        try:
            partitions = normalise(named)
        except PartitionError as error:
            where = "partitions" if error.index is None else f"partitions.{error.index}"
            shown = tuple(name for name in named[:ENTRIES_MAX] if can_be_sent(name))
            return CheckedPartitions(
                named, shown, reason="validation_failed", errors=(FieldError(where, str(error)),)
            )
        denied = self._access.denied(self._identity, partitions)
        if denied:
            errors = tuple(FieldError("partitions", f"not authorised for {name!r}") for name in denied)
            return CheckedPartitions(named, partitions, reason="forbidden", errors=errors)
        names = encode_names(partitions)
        return CheckedPartitions(
            named, partitions, names if b"\\" not in names else canonical(list(partitions))
        )


def _refused(id: str, partitions: tuple[str, ...], where: str, says: str) -> RefusedItem:
    return RefusedItem(id, partitions, "validation_failed", (FieldError(where, says),))


def _where(error: NotCanonical) -> str:
    return f"event.{error.field}" if error.field else "event"


def _spread(size: int, partitions: tuple[str, ...], max_bytes: int) -> str:
    return (
        f"the event has {size} bytes and {len(partitions)} partitions, {size * len(partitions)} bytes"
        f" in all of them; at most {SPREAD_MAX * max_bytes} are allowed"
    )
