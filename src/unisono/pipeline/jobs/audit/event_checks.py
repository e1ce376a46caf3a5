"""Checks one event by itself: its columns must be what the log guarantees of every event, under any model.

A server always rejects an invalid id, an invalid partition set, invalid JSON, and an event that has the shape of
neither profile, so a sound log has none of these. What the given model says of an event is a warning only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.display import shorten
from unisono.lake.columns import type_and_schema
from unisono.lake.digests import HASH_BYTES
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.schema import EVENT_TYPE, SchemaProfile
from unisono.model.tree_actions import read
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.row_fingerprints import joined, texts
from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
from unisono.protocol.identities import EVENT_ID_BYTES_MAX
from unisono.protocol.partitions import PartitionError, normalise
from unisono.protocol.tombstones import ERASED_TYPE, is_tombstone
from unisono.store.check_rows import TIME_MAX_MS
from unisono.vocabulary import FieldError, Json

REQUIRED: Final = ("committed_id", "id", "client_id", "partitions", "event", "status_updated_at", "hash")
"""Columns with a value in every row."""

SHOWN: Final = 80
"""Characters of a value in a message."""

_ANY_SCHEMA: Final = SchemaProfile(None)
_TOMBSTONE_BYTES_MAX: Final = 64


class Partitions(msgspec.Struct, frozen=True):
    """A stored set of names: its normal form as canonical JSON, and its fault, if any."""

    text: bytes
    complaint: str | None


_WITHOUT_NAME: Final = Partitions(b"", "one of its partitions has no name")


class EventCheck:
    """Checks events in batches, and adds findings to a tally.

    `tombstones` collects the ids of erased events; their hash is of the erased content and is not recomputed.
    """

    def __init__(self, tally: FindingTally, model: Model | None = None) -> None:
        self._tally = tally
        self._model = model
        self.tombstones: list[int] = []
        self.hashed = 0

    def check(self, batch: pa.RecordBatch) -> None:
        """Check rows of the table `log` that have all required columns."""
        ids = batch.column("committed_id").to_pylist()
        self._check_columns(batch, ids)
        partitions = _partitions(batch.column("partitions"))
        columns = (
            texts(batch.column("event")),
            partitions,
            texts(batch.column("hash")),
            texts(batch.column("type")),
            texts(batch.column("schema")),
        )
        for committed_id, event, names, stored_hash, kind, schema in zip(ids, *columns, strict=True):
            if names.complaint is not None:
                self._tally.add("partitions", names.complaint, committed_id)
            self._check_event(committed_id, event, names.text, stored_hash, (kind, schema))

    def _check_event(
        self, committed_id: int, event: bytes, partitions: bytes, stored_hash: bytes, kind: tuple[Any, Any]
    ) -> None:
        if len(event) < _TOMBSTONE_BYTES_MAX and is_tombstone(event):
            self.tombstones.append(committed_id)
            self._check_kind(committed_id, event, kind, (ERASED_TYPE.encode(), None))
            return
        try:
            value, text = parse_canonical(event)
        except NotCanonical as error:
            self._tally.add("event", f"its JSON cannot be read: {error}", committed_id)
            return
        if text != event:
            self._tally.add("event", "its JSON is not in canonical form", committed_id)
        self.hashed += 1
        if content_hash(text, partitions) != stored_hash:
            self._tally.add("hash", "its hash is not that of its event and partitions", committed_id)
        self._check_kind(committed_id, event, kind, _kind(value))
        if errors := _shape(value):
            self._tally.add("shape", _errors_text(errors), committed_id)
        elif self._model is not None and (errors := _refused(self._model, value)):
            self._tally.add("model", _errors_text(errors), committed_id)

    def _check_kind(
        self, committed_id: int, event: bytes, kind: tuple[Any, Any], own: tuple[Any, Any]
    ) -> None:
        if kind != own:
            right = type_and_schema(event)
            if kind != tuple(None if name is None else name.encode() for name in right):
                found = tuple(None if name is None else name.decode(errors="replace") for name in kind)
                self._tally.add(
                    "kind",
                    f"its columns say type {found[0]!r}, schema {found[1]!r}; its event {right[0]!r}, {right[1]!r}",
                    committed_id,
                )

    def _check_columns(self, batch: pa.RecordBatch, ids: list[int]) -> None:
        """Checks on whole columns."""
        sizes: Any = np.asarray(pc.binary_length(batch.column("id")))
        for place in _places((sizes < 1) | (sizes > EVENT_ID_BYTES_MAX)):
            self._tally.add(
                "id", f"its id has {sizes[place]} bytes, not 1 to {EVENT_ID_BYTES_MAX}", ids[place]
            )
        for place in _places(np.asarray(pc.binary_length(batch.column("client_id"))) < 1):
            self._tally.add("column", "its client_id is empty", ids[place])
        for name in ("id", "client_id"):
            for place in _not_text(batch.column(name)):
                self._tally.add("column", f"its {name} is not valid UTF-8", ids[place])
        sizes = np.asarray(pc.binary_length(batch.column("hash")))
        for place in _places(sizes != HASH_BYTES):
            self._tally.add("column", f"its hash has {sizes[place]} bytes, not {HASH_BYTES}", ids[place])
        times: Any = np.asarray(batch.column("status_updated_at"))
        for place in _places((times <= 0) | (times > TIME_MAX_MS)):
            self._tally.add("time", f"{times[place]} is not a time in milliseconds", ids[place])


def complete_rows(
    batch: pa.RecordBatch, tally: FindingTally, columns: Sequence[str] = REQUIRED
) -> pa.RecordBatch:
    """The rows with a value in each of `columns`; the others are findings."""
    for name in columns:
        if batch.column(name).null_count:
            there = pc.is_valid(batch.column(name))
            for row in batch.filter(pc.invert(there)).select(["committed_id"]).to_pylist():
                tally.add("column", f"{name} has no value", row["committed_id"])
            batch = batch.filter(there)
    return batch


def _places(wrong: Any) -> list[int]:
    found: list[int] = np.flatnonzero(wrong).tolist()
    return found


def _partitions(column: Any) -> list[Partitions]:
    """Each row's set, checked once per distinct set of a batch."""
    encoded = joined(column).dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    judged = [_WITHOUT_NAME if value is None else _split(value) for value in values]
    found = list(map(judged.__getitem__, encoded.indices.to_pylist()))
    # A joined value is ambiguous where a name contains NUL, or where the list is empty.
    apart = np.array([-1 if value is None else value.count(b"\0") + 1 for value in values], np.int64)
    lengths = np.asarray(pc.list_value_length(column))
    for row in np.flatnonzero(apart[np.asarray(encoded.indices)] != lengths).tolist():
        found[row] = _judged(tuple(column.cast(pa.list_(pa.binary()))[row].as_py()))
    return found


@lru_cache(maxsize=1 << 14)
def _split(value: bytes) -> Partitions:
    return _judged(tuple(value.split(b"\0")))


def _judged(raw: tuple[bytes | None, ...]) -> Partitions:
    if None in raw:
        return _WITHOUT_NAME
    try:
        names = [name.decode() for name in raw if name is not None]
    except UnicodeDecodeError:
        return Partitions(b"", "one of its partitions is not valid UTF-8")
    try:
        normal = normalise(names)
    except PartitionError as error:
        return Partitions(canonical(list[Json](names)), f"its partitions are not valid: {error}")
    text = canonical(list(normal))
    if tuple(names) != normal:
        return Partitions(text, f"its partitions are not normalised: {shorten(repr(names), SHOWN)}")
    return Partitions(text, None)


def _kind(value: Json) -> tuple[bytes | None, bytes | None]:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        return None, None
    payload = value.get("payload")
    if kind != EVENT_TYPE or not isinstance(payload, dict):
        return kind.encode(), None
    schema = payload.get("schema")
    return kind.encode(), schema.encode() if isinstance(schema, str) else None


def _shape(value: Json) -> list[FieldError]:
    """Errors of the shape, by the profile that the event's type belongs to."""
    if not isinstance(value, dict):
        return [FieldError("event", "must be an object")]
    if value.get("type") == EVENT_TYPE:
        return _ANY_SCHEMA.shape(value)
    action = read(value)
    return action if isinstance(action, list) else []


def _refused(model: Model, value: Json) -> list[FieldError]:
    assert isinstance(value, dict), "its shape was checked before"
    return model.shape(CANONICAL if value.get("type") == EVENT_TYPE else COMPATIBILITY, value)


def _not_text(column: Any) -> list[int]:
    try:
        column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return [place for place, value in enumerate(texts(column)) if not _is_text(value)]
    return []


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _errors_text(errors: Sequence[FieldError]) -> str:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].field} {errors[0].message}{more}"
