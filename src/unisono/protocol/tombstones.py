"""What stands in the log in the place of an event that was erased.

An erased event keeps its row: committed_id, id, client_id, partitions, time, and the hash of what it said, so
that a retry of it is still known (ORD-03) and ids stay free of gaps (ORD-01). Its content is replaced by a
tombstone, an event of a type that no profile accepts (PROF-07): no client can submit one, and replay passes over
it.
"""

from __future__ import annotations

import re
from typing import Final

from unisono.protocol.canonical import SAFE_INTEGER_MAX

ERASED_TYPE: Final = "erased"

_TOMBSTONE: Final = re.compile(rb'\{"payload":\{"erased_at":(0|[1-9][0-9]{0,15})\},"type":"erased"\}')


def tombstone(erased_at_ms: int) -> bytes:
    """The event text, canonical JSON, that replaces an event erased at this time."""
    if not 0 <= erased_at_ms <= SAFE_INTEGER_MAX:
        raise ValueError(f"{erased_at_ms} is not a time in milliseconds")
    return b'{"payload":{"erased_at":%d},"type":"erased"}' % erased_at_ms


def is_tombstone(event: bytes) -> bool:
    """Whether an event text of the log is a tombstone; exact, so that nothing that only resembles one counts."""
    match = _TOMBSTONE.fullmatch(event)
    return match is not None and int(match[1]) <= SAFE_INTEGER_MAX
