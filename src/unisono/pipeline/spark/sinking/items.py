"""Rows of a DataFrame → items of a submission."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
from unisono.protocol.client_codec import item_payload
from unisono.protocol.identities import EVENT_ID_BYTES_MAX
from unisono.protocol.partitions import PartitionError, normalise

_one_value: Final = msgspec.json.Decoder(msgspec.Raw).decode


class SinkItem(msgspec.Struct, frozen=True):
    """One event to submit. `fault` says why it cannot be sent: the whole message would be refused."""

    id: str
    partitions: list[str]
    event: msgspec.Raw
    fault: str = ""


_encode: Final = msgspec.json.Encoder().encode


def encoded(item: SinkItem) -> bytes:
    """An item as it is sent."""
    return item_payload(item.id, item.partitions, bytes(item.event))


def to_items(batch: Any, *, from_content: bool) -> Iterator[SinkItem]:
    """The rows of an Arrow batch, in order."""
    for row in batch.to_pylist():
        yield _item(row, from_content)


def _item(row: dict[str, Any], from_content: bool) -> SinkItem:
    id = "" if from_content else row.get("id") or ""
    partitions, fault = _partitions(row.get("partitions"), row.get("partition"))
    try:
        event = _event(row)
    except (msgspec.DecodeError, ValueError) as error:
        event, fault = _as_given(row), f"the event is not JSON: {error}"
    if from_content:
        id = _content_id(partitions, event)
    if not fault and not bytes(event).startswith(b"{"):
        fault = "the event must be an object"
    if not 0 < len(id.encode()) <= EVENT_ID_BYTES_MAX:
        fault = f"an id has 1 to {EVENT_ID_BYTES_MAX} bytes"
    return SinkItem(id, partitions, event, fault)


def _partitions(many: list[str | None] | None, one: str | None) -> tuple[list[str], str]:
    """The names of a row, and what is wrong with them; the legacy field must not disagree (PART-05)."""
    names = [one] if many is None else many
    if many is None and one is None:
        return [], ""  # the server rejects it
    strings = [name or "" for name in names]
    if None in names:
        return strings, "a partition is null"
    if many is not None and one is not None and not _same(strings, [one]):
        return strings, f"partition is {one!r} and partitions are {many!r}"
    return strings, ""


def _same(names: list[str], others: list[str]) -> bool:
    try:
        return normalise(names) == normalise(others)
    except PartitionError:
        return False


def _event(row: dict[str, Any]) -> msgspec.Raw:
    """JSON of the event; the server judges its content."""
    if row.get("event") is not None:
        return _one_value(row["event"].encode().strip())
    if row.get("schema") is None:
        raise ValueError("there is neither an event nor a schema")
    data = b"null" if row.get("data") is None else bytes(_one_value(row["data"].encode()))
    meta = b"" if row.get("meta") is None else b',"meta":%b' % bytes(_one_value(row["meta"].encode()))
    return msgspec.Raw(
        b'{"type":"event","payload":{"schema":%b,"data":%b%b}}' % (_encode(row["schema"]), data, meta)
    )


def _as_given(row: dict[str, Any]) -> msgspec.Raw:
    """The row's content in place of an event; it is never sent, only shown in the rejection."""
    if row.get("event") is not None:
        return msgspec.Raw(row["event"].encode())
    return msgspec.Raw(_encode({name: row.get(name) for name in ("schema", "data", "meta")}))


def _content_id(partitions: list[str], event: msgspec.Raw) -> str:
    """The hash that deduplication compares (ORD-06); an event without one is refused by the server anyway."""
    try:
        names = canonical(list(normalise(partitions)))
        return content_hash(parse_canonical(bytes(event))[1], names).hex()
    except (NotCanonical, PartitionError):
        return hashlib.sha256(_encode([partitions, event])).hexdigest()
