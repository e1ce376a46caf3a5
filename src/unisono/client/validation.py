"""Local validation: an event that the server would refuse is refused here, before anything is stored (CLIENT-02)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import orjson

from unisono.client.errors import InvalidEvent
from unisono.protocol.canonical import NotCanonical, canonical
from unisono.protocol.client_codec import ENVELOPE_BYTES, item_payload
from unisono.protocol.codec import DEPTH_MAX, deeper_than
from unisono.protocol.identities import EVENT_ID_BYTES_MAX
from unisono.protocol.partitions import PartitionError, normalise
from unisono.vocabulary import FieldError, JsonObject

ENVELOPE_DEPTH: Final = 4
"""Levels of a message around an event: envelope, payload, events, item."""


class CheckedEvent(msgspec.Struct, frozen=True):
    """An event whose form is right: partitions normalised, `text` canonical, `event` read back from it."""

    id: str
    partitions: tuple[str, ...]
    text: bytes
    event: JsonObject


def named(partitions: Sequence[str] | str | None, partition: str | None) -> list[str]:
    """The partitions a call names; a single one may be given by the older name (PART-05)."""
    if isinstance(partitions, str):
        raise TypeError("partitions is a list of names; for one name say partition=")
    if partitions is None:
        if partition is None:
            raise TypeError("name the partitions of the event")
        return [partition]
    given = list(partitions)
    if not all(isinstance(name, str) for name in given):
        raise TypeError("the names of partitions are strings")
    if partition is not None and given != [partition]:
        raise TypeError("partition and partitions disagree; give partitions alone")
    return given


def partition_name(given: str) -> str:
    """A partition's name in its one form; PartitionError when it cannot be one."""
    if not isinstance(given, str):
        raise TypeError(f"the name of a partition is a string, not {type(given).__name__}")
    return normalise([given])[0]


def check_form(id: str, partitions: Sequence[str], event: object, bytes_max: int | None) -> CheckedEvent:
    """Check everything about an event that needs no model and no state; raises InvalidEvent."""
    if not isinstance(id, str):
        raise _invalid("id", f"must be a string, not {type(id).__name__}")
    size = len(id.encode("utf-8", "replace"))
    if not 0 < size <= EVENT_ID_BYTES_MAX:
        raise _invalid("id", f"must have 1 to {EVENT_ID_BYTES_MAX} bytes, not {size}")
    try:
        names = normalise(partitions)
    except PartitionError as error:
        where = "partitions" if error.index is None else f"partitions.{error.index}"
        raise _invalid(where, str(error)) from None
    if not isinstance(event, Mapping):
        raise _invalid("event", "must be an object")
    try:
        text = canonical(dict(event))
    except NotCanonical as error:
        raise _invalid(f"event.{error.field}" if error.field else "event", error.reason) from None
    if deeper_than(text, DEPTH_MAX - ENVELOPE_DEPTH):
        raise _invalid("event", f"is nested deeper than {DEPTH_MAX - ENVELOPE_DEPTH} levels")
    if bytes_max is not None and len(item_payload(id, names, text)) + ENVELOPE_BYTES > bytes_max:
        raise _invalid("event", f"is larger than a message to this server may be ({bytes_max} bytes)")
    return CheckedEvent(id, names, text, orjson.loads(text))


def _invalid(field: str, message: str) -> InvalidEvent:
    return InvalidEvent([FieldError(field, message)])
