"""Events of made-up notes, about 250 bytes each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record

WORDS = [
    "lorem",
    "ipsum",
    "dolor",
    "sit",
    "amet",
    "consectetur",
    "adipiscing",
    "elit",
    "sed",
    "do",
    "eiusmod",
]


def item(number: int, chance: random.Random) -> dict[str, Any]:
    return {"id": f"n{number}", "text": " ".join(chance.choices(WORDS, k=22))}


def added(note: dict[str, Any]) -> dict[str, Any]:
    """The canonical event that adds a note."""
    return {"type": "event", "payload": {"schema": "note.added", "data": note}}


def record(number: int, event: dict[str, Any], names: Sequence[str], chance: random.Random) -> Record:
    """The event as the log has it, of one of 500 clients."""
    body = canonical(event)
    digest = content_hash(body, canonical(list(names)))
    identity = f"{chance.getrandbits(128):032x}"
    return Record(
        number, identity, f"client-{number % 500}", tuple(names), body, digest, 1_700_000_000_000 + number
    )
