"""One row of a source → an event as the server would store it, or the reason why it cannot be one.

What a server demands of a submitted event is demanded here: PART-01 to PART-03, SUBMIT-10, ORD-06, ORD-07, LIM-06.
The legacy field `partition` is taken for `[partition]`; beside a different `partitions` the row is refused and
nothing is guessed (000).
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
from unisono.protocol.codec import DEPTH_MAX, deeper_than
from unisono.protocol.identities import EVENT_ID_BYTES_MAX, client_id_fault
from unisono.protocol.partitions import PartitionError, normalise
from unisono.vocabulary import JsonObject

EVENT_DEPTH_MAX: Final = DEPTH_MAX - 2
"""An event is submitted inside a message and its payload, which count too (LIM-06)."""

ITEM_BYTES_MAX: Final = (1 << 20) - 512
"""What fits into one message of the default size, beside its envelope (LIM-01)."""

SPREAD_BYTES_MAX: Final = 2 << 20
"""An event's bytes times its partitions, as a server with the default settings takes it (LIM-07)."""

INTEGER_MAX: Final = 2**53 - 1
"""Of ids and times: what every client can count to (ORD-01)."""

TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

AUTHOR_BYTES_MAX: Final = 4 * 1024
"""As a server takes it from a token (AUTH-10)."""

CANONICAL_TYPE: Final = "event"

_encode: Final = msgspec.json.Encoder().encode


class SourceRow(msgspec.Struct):
    """A row as its source has it; `event` is JSON text. What a source does not have is None.

    `number` is the line or row within its file, from 1. `fault` is set by a reader that could not make sense of it.
    """

    number: int
    id: Any = None
    client_id: Any = None
    partitions: Any = None
    partition: Any = None
    committed_id: Any = None
    time: Any = None
    event: bytes | None = None
    text: bytes = b""
    fault: RefusedRow | None = None
    user_id: Any = None
    claims: Any = None
    author: Any = None


class ImportedEvent(msgspec.Struct, frozen=True):
    """A row that can be an event: everything in the form in which it is stored."""

    id: str
    client_id: str
    partitions: tuple[str, ...]
    event: bytes
    hash: bytes
    committed_id: int | None
    time: int | None
    migrated: bool
    author: str = ""


def canonical_text(schema: Any, data: bytes | None, meta: bytes | None) -> bytes:
    """An event of which the parts are given: `data` and `meta` are JSON, None where there is none."""
    rest = b"" if meta is None else b',"meta":%b' % meta
    return b'{"type":"event","payload":{"schema":%b,"data":%b%b}}' % (_encode(schema), data or b"null", rest)


def tree_text(kind: Any, payload: bytes | None) -> bytes:
    """The same for an event of a type and a payload."""
    return b'{"type":%b%b}' % (_encode(kind), b"" if payload is None else b',"payload":%b' % payload)


def to_event(row: SourceRow, model: Model, client_id: str) -> ImportedEvent | RefusedRow:
    """`client_id` is whose the event is where the source does not say."""
    if row.fault is not None:
        return row.fault
    try:
        id = _id(row.id)
        owner = _client_id(row.client_id, client_id)
        partitions = _partitions(row.partitions, row.partition)
        committed_id = _committed_id(row.committed_id)
        time = _time(row.time)
        author = _author(row)
        value, text = _event(row.event)
        names = _names(partitions)
        if len(text) + len(names) + len(id) > ITEM_BYTES_MAX:
            return RefusedRow("too_large", f"the event has {len(text)} bytes", "event")
        if len(text) * len(partitions) > SPREAD_BYTES_MAX:
            says = f"the event has {len(text)} bytes and {len(partitions)} partitions"
            return RefusedRow(
                "too_large", f"{says}, {SPREAD_BYTES_MAX} bytes in all of them at most", "partitions"
            )
    except _Fault as fault:
        return fault.refused
    errors = model.shape(profile_of(value), value)
    if errors:
        return RefusedRow("shape", errors[0].message, errors[0].field)
    digest = content_hash(text, names)
    return ImportedEvent(
        id, owner, partitions, text, digest, committed_id, time, row.partition is not None, author
    )


def profile_of(event: JsonObject) -> str:
    """The profile in which an event can be submitted: canonical events are of one type (PROF-01)."""
    return CANONICAL if event.get("type") == CANONICAL_TYPE else COMPATIBILITY


class _Fault(Exception):
    def __init__(self, reason: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.refused = RefusedRow(reason, message, field)


def _id(value: Any) -> str:
    if not isinstance(value, str):
        says = "there is no id" if value is None else f"an id is a text, not {value!r:.40}"
        raise _Fault("bad_id", says, "id")
    size = _size(value, "bad_id", "id")
    if not 0 < size <= EVENT_ID_BYTES_MAX:
        raise _Fault("bad_id", f"the id has {size} bytes, 1 to {EVENT_ID_BYTES_MAX} are allowed", "id")
    return value


def _client_id(value: Any, default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str):
        raise _Fault("bad_client_id", "client_id must be a non-empty text", "client_id")
    if (fault := client_id_fault(value)) is not None:
        raise _Fault("bad_client_id", f"client_id {fault}", "client_id")
    return value


def _author(row: SourceRow) -> str:
    """Who submitted an event: `author` as a lake has it, or `user_id` and `claims`, which may be JSON text."""
    found = {} if row.author is None else _object(row.author, "author")
    if row.claims is not None:
        found["claims"] = _object(row.claims, "claims")
    if row.user_id is not None:
        found["user_id"] = row.user_id
    user_id, claims = found.get("user_id"), found.get("claims", {})
    if found.keys() - {"user_id", "claims"} or not isinstance(claims, dict):
        raise _Fault("bad_author", "an author is an object of user_id and claims", "author")
    if user_id is not None and (not isinstance(user_id, str) or client_id_fault(user_id) is not None):
        raise _Fault("bad_author", "user_id must be a text of 1 to 256 bytes", "user_id")
    try:
        kept = {name: value for name, value in found.items() if value}
        text = canonical(kept).decode() if kept else ""
    except NotCanonical as error:
        raise _Fault("bad_author", error.reason, "claims") from None
    if len(text.encode()) > AUTHOR_BYTES_MAX:
        raise _Fault("bad_author", f"the author has more than {AUTHOR_BYTES_MAX} bytes", "claims")
    return text


def _object(value: Any, field: str) -> dict[str, Any]:
    if isinstance(value, str | bytes):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise _Fault("bad_author", f"{field} must be a JSON object", field)
    return dict(value)


def _size(text: str, reason: str, field: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise _Fault(reason, f"{field} must be valid Unicode", field) from None


def _partitions(partitions: Any, partition: Any) -> tuple[str, ...]:
    if partitions is None and partition is None:
        raise _Fault("bad_partitions", "there are no partitions", "partitions")
    many = None if partitions is None else _normal(partitions, "partitions")
    if partition is None:
        assert many is not None
        return many
    one = _normal([partition], "partition")
    if many is not None and many != one:
        raise _Fault(
            "partition_disagrees", f"partition is {one[0]!r} and partitions are {list(many)!r}", "partitions"
        )
    return one


def _normal(names: Any, field: str) -> tuple[str, ...]:
    if isinstance(names, str):  # JSON, as columns of CSV files and databases have it
        try:
            names = msgspec.json.decode(names)
        except (msgspec.DecodeError, RecursionError):
            raise _Fault(
                "bad_partitions", "partitions must be a JSON array; for one name map partition", field
            ) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        says = "partitions must be an array of names" if field == "partitions" else "partition must be a name"
        raise _Fault("bad_partitions", says, field)
    try:
        return normalise(names)
    except PartitionError as error:
        raise _Fault("bad_partitions", str(error), field) from None


def _committed_id(value: Any) -> int | None:
    if value is None:
        return None
    number = _integer(value)
    if number is None or not 0 < number <= INTEGER_MAX:
        raise _Fault("bad_committed_id", "committed_id must be a whole number from 1 on", "committed_id")
    return number


def _time(value: Any) -> int | None:
    if value is None:
        return None
    number = _integer(value)
    if number is None and isinstance(value, str):
        number = _parsed(value)
    if number is None or not 0 < number <= TIME_MAX_MS:
        raise _Fault(
            "bad_time",
            "a time is milliseconds since 1970, or a date and time of ISO 8601",
            "status_updated_at",
        )
    return number


def _integer(value: Any) -> int | None:
    """A whole number, also written as a float, as a decimal, or as a text of digits, as CSV does."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float | Decimal) and value % 1 == 0:
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        return int(value)
    return None


def _parsed(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


def _event(raw: bytes | None) -> tuple[JsonObject, bytes]:
    if raw is None:
        raise _Fault("bad_event", "there is no event", "event")
    if len(raw) > 2 * ITEM_BYTES_MAX:  # canonical JSON drops spaces, but a real event is not half spaces
        raise _Fault("too_large", f"the event has {len(raw)} bytes", "event")
    if deeper_than(raw, EVENT_DEPTH_MAX):
        raise _Fault("too_deep", f"the event is nested deeper than {EVENT_DEPTH_MAX} levels", "event")
    try:
        value, text = parse_canonical(raw)
    except NotCanonical as error:
        raise _Fault("bad_event", error.reason, f"event.{error.field}" if error.field else "event") from None
    if not isinstance(value, dict):
        raise _Fault("bad_event", "the event must be an object", "event")
    return value, text


def _names(partitions: tuple[str, ...]) -> bytes:
    text = _encode(partitions)
    return text if b"\\" not in text else canonical(list(partitions))
