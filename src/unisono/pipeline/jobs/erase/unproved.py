"""What is still to be proved gone: which events, and tokens of pieces, kept in the lake until a search found none.

They are written down before anything else is done. When a run is killed, or its search finds something, the next one,
whatever it erases, still knows what to finish and what to look for, though the text itself may be nowhere but where
it should not be.
"""

from __future__ import annotations

import uuid
from typing import Final

import msgspec
import pyarrow as pa

from unisono.lake.errors import LakeUnusable
from unisono.lake.storage import ERASURES, Storage
from unisono.pipeline.jobs.erase.all_files import SearchedFile, lake_files, remove

_PREFIX: Final = "_unproved-"
"""In the folder of the table of erasures; what begins like this belongs to no table, and no vacuum removes it."""


class UnprovedErasure(msgspec.Struct, frozen=True):
    """Events, by committed_id, and tokens, all made with one salt.

    `selected_by` and `reason` are for those that are not in the table of erasures yet. `ids` is None in what was
    written before they were kept: then any of those in the table may be unfinished.
    """

    salt: bytes
    tokens: frozenset[bytes]
    ids: tuple[int, ...] | None = None
    selected_by: str = "id"
    reason: str | None = None


def unproved(storage: Storage) -> UnprovedErasure | None:
    """What earlier runs could not prove to be gone; None when there is nothing."""
    kept = [_read(place) for place in _places(storage)]
    if not kept:
        return None
    if len(kept) == 1:
        return kept[0]
    # Killed between writing the newer and removing the older, which is part of it.
    most = max(kept, key=lambda each: len(each.ids or ()))
    return msgspec.structs.replace(most, tokens=frozenset().union(*(each.tokens for each in kept)))


def keep(storage: Storage, fresh: UnprovedErasure) -> None:
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


def _places(storage: Storage) -> list[SearchedFile]:
    return [place for place in lake_files(storage) if place.path.startswith(f"{ERASURES}/{_PREFIX}")]


def _read(place: SearchedFile) -> UnprovedErasure:
    try:
        with place.opened() as source:
            return msgspec.msgpack.decode(source.read(), type=UnprovedErasure)
    except msgspec.MsgspecError as error:
        raise LakeUnusable(
            f"{place.shown()} has what an erasure was to look for and cannot be read ({error}): "
            "remove it, and that erasure stays unproved"
        ) from error
