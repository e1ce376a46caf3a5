"""Who submitted an event, as rules see it.

Everything here is stored with the event, so that a replay in the server, in a client and in Spark sees the same
(VAL-05). What a token says beyond it is no part of an event.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

AUTHORS_CACHED: Final = 4_096
"""Different authors whose JSON is kept parsed; a client has one for as long as its token lasts."""


class Authorship(msgspec.Struct, frozen=True):
    """Who submitted an event, and when it was committed.

    `user_id` is None, and `claims` is empty, where the token had none. `committed_at` is `status_updated_at` in
    milliseconds; 0 for a draft that is not committed yet.
    """

    client_id: str = ""
    user_id: str | None = None
    claims: dict[str, Any] = {}
    committed_at: int = 0


UNKNOWN: Final = Authorship()


class Author(msgspec.Struct, frozen=True):
    """The stored form: canonical JSON of this, or an empty text."""

    user_id: str | None = None
    claims: dict[str, Any] = {}


_NOBODY: Final = Author()
_decode: Final = msgspec.json.Decoder(Author).decode


def authorship_of(client_id: str, author: str | None, committed_at: int) -> Authorship:
    """From what is stored of an event. A damaged author is nobody; `unisono check` reports it."""
    who = _parsed(author) if author else _NOBODY
    return Authorship(client_id, who.user_id, who.claims, committed_at)


@lru_cache(maxsize=AUTHORS_CACHED)
def _parsed(author: str) -> Author:
    try:
        return _decode(author)
    except (msgspec.MsgspecError, RecursionError):
        return _NOBODY
