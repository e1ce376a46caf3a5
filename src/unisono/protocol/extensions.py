"""What a connection may use beyond the protocol, settled once, at connect (EXT-*)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

IDENTITY: Final = "identity"
"""Committed events come with the user_id and the stored claims of their authors (EXT-03)."""

PRESENCE: Final = "presence"
"""Ephemeral messages about who is in a partition now (EXT-05)."""

ATOMIC: Final = "atomic"
"""Batches that are committed as a whole or not at all (EXT-10)."""

HISTORY: Final = "history"
"""Pages of one partition's history from its newest event backwards (EXT-20)."""

EXTENSIONS: Final = (IDENTITY, PRESENCE, ATOMIC, HISTORY)
"""The extensions of this server, in the order in which they are granted."""


def grant(asked: Sequence[str] | None, offered: Collection[str] = EXTENSIONS) -> tuple[str, ...] | None:
    """The extensions of a connection; None when it asked for none, so that its answers stay as they are (EXT-01)."""
    if asked is None:
        return None
    return tuple(name for name in EXTENSIONS if name in offered and name in asked)
