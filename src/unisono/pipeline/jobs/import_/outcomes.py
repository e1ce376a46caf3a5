"""The outcomes of a row, in words that the report and the table of rejected rows share."""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

ACCEPTED: Final = "accepted"
DUPLICATE: Final = "duplicate"
KNOWN: Final = "known"
REJECTED: Final = "rejected"
OUTCOMES: Final = (ACCEPTED, DUPLICATE, KNOWN, REJECTED)
"""Every row has one: loaded; same as an earlier row; same as an event of the log; rejected."""

REFUSED: Final = "refused"
"""The reason of a row that a state does not take; no other step rejects rows for it."""

REASONS: Final = {
    "unreadable": "not a row of its format",
    "bad_id": "no id, or not a text of 1 to 128 bytes",
    "bad_client_id": "the client's id is no text, empty, or longer than 256 bytes",
    "bad_author": "user_id or claims are no text and no object, or too long",
    "bad_partitions": "no partitions, or outside the limits of partitions",
    "partition_disagrees": "`partition` and `partitions` name different sets",
    "bad_event": "no event, not an object, or not representable in canonical JSON",
    "too_deep": "nested deeper than a server takes",
    "too_large": "larger than a server takes",
    "bad_time": "not a time",
    "bad_committed_id": "not a committed id",
    "no_committed_id": "has none, and the others are ordered by theirs",
    "shape": "not an event of this model",
    REFUSED: "does not fit the state it finds",
    "conflict": "an earlier row has the same id and other content",
    "conflict_in_log": "an event of the log has the same id and other content",
}
"""Why a row is rejected."""

CONTENT_CHARS_MAX: Final = 64 << 10
"""Characters of a rejected row's text that are kept; the rest is in the named file and line."""

REJECT_SCHEMA: Final = pa.schema(
    [
        pa.field("file", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("field", pa.string()),
        pa.field("message", pa.string()),
        pa.field("content", pa.string()),
    ]
)
"""A rejected row in staging: `file` is a number, `row` the line or row in it."""


class RefusedRow(msgspec.Struct, frozen=True):
    """Why one row cannot be an event."""

    reason: str
    message: str
    field: str = ""
