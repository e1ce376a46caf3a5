"""What is still to be proved gone: tokens of pieces, kept in the lake until a search has found none of them.

They are written down before anything is erased. When a run is killed, or its search finds something, the next one
still knows what to look for, though the text itself may be nowhere but where it should not be.
"""

from __future__ import annotations

import uuid
from typing import Final

import msgspec
import pyarrow as pa

from unisono.pipeline.erasing.places import Place, lake_files, remove
from unisono.store.delta.errors import LakeUnusable
from unisono.store.delta.storage import ERASURES, Storage

_PREFIX: Final = "_unproved-"
"""In the folder of the table of erasures; what begins like this belongs to no table, and no vacuum removes it."""


class Unproved(msgspec.Struct, frozen=True):
    """Tokens, all made with one salt."""

    salt: bytes
    tokens: frozenset[bytes]


def unproved(storage: Storage) -> Unproved | None:
    """What earlier runs could not prove to be gone; None when there is nothing."""
    kept = [_read(place) for place in _places(storage)]
    if not kept:
        return None
    return Unproved(kept[0].salt, frozenset().union(*(each.tokens for each in kept)))


def keep(storage: Storage, fresh: Unproved) -> None:
    """In the place of all that was kept before, which must be part of it."""
    before = _places(storage)
    content = msgspec.msgpack.encode(fresh)
    storage.write(ERASURES, f"{_PREFIX}{uuid.uuid4().hex}.msgpack", pa.py_buffer(content))
    for place in before:
        remove(place)


def forget(storage: Storage) -> None:
    """All of it is proved to be gone."""
    for place in _places(storage):
        remove(place)


def _places(storage: Storage) -> list[Place]:
    return [place for place in lake_files(storage) if place.path.startswith(f"{ERASURES}/{_PREFIX}")]


def _read(place: Place) -> Unproved:
    try:
        with place.opened() as source:
            return msgspec.msgpack.decode(source.read(), type=Unproved)
    except msgspec.MsgspecError as error:
        raise LakeUnusable(
            f"{place.shown()} has what an erasure was to look for and cannot be read ({error}): "
            "remove it, and that erasure stays unproved"
        ) from error
