"""Records an erasure that is not proved yet: its events and tokens of its pieces, kept in the lake until a search
finds nothing.

Written before anything else. After a kill, or when the search finds something, the next run, whatever it erases,
knows what to finish and what to search for, even though the text itself may exist only where it should not.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

import msgspec
import pyarrow as pa

from unisono.lake.errors import LakeUnusable
from unisono.lake.storage import ERASURES, Storage
from unisono.pipeline.jobs.erase.all_files import SearchedFile, lake_files, remove
from unisono.pipeline.jobs.erase.select import Selector

_PREFIX: Final = "_unproved-"
"""File prefix in the folder of `erasures`; such files belong to no table, and a vacuum leaves them."""


class UnprovedErasure(msgspec.Struct, frozen=True):
    """Events, by committed_id, and tokens, all made with one salt.

    `selected_by` and `reason` are for events that are not in `erasures` yet. `names` has salted hashes of what they
    were selected by. `ids` is None in files of older versions, and then any event in the table may be unfinished; so
    is `names`, which then may be any.
    """

    salt: bytes
    tokens: frozenset[bytes]
    ids: tuple[int, ...] | None = None
    selected_by: str = "id"
    reason: str | None = None
    names: frozenset[bytes] | None = None

    def is_of(self, selector: Selector) -> bool:
        """Whether any of these names was given to it."""
        if self.names is None:
            return self.selected_by == selector.kind
        return not self.names.isdisjoint(hashed_names(selector, self.salt))


def hashed_names(selector: Selector, salt: bytes) -> frozenset[bytes]:
    return frozenset(
        hashlib.blake2b(f"{selector.kind} {name}".encode(), key=salt, digest_size=16).digest()
        for name in selector.names
    )


def load_unproved(storage: Storage) -> UnprovedErasure | None:
    """The erasure that earlier runs could not prove; None without one."""
    found = [_read(place) for place in _places(storage)]
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    # Killed between writing the newer file and removing the older, which it includes.
    most = max(found, key=lambda each: len(each.ids or ()))
    return msgspec.structs.replace(most, tokens=frozenset().union(*(each.tokens for each in found)))


def save_unproved(storage: Storage, fresh: UnprovedErasure) -> None:
    """Replace all earlier records, which must be part of this one."""
    before = _places(storage)
    content = msgspec.msgpack.encode(fresh)
    storage.write(ERASURES, f"{_PREFIX}{uuid.uuid4().hex}.msgpack", pa.py_buffer(content))
    for place in before:
        remove(place)


def clear_unproved(storage: Storage) -> None:
    """Remove the record: the erasure is proved."""
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
            f"{place.location} is unreadable ({error}); an earlier erasure needs it for its final search: "
            "remove it, and that erasure stays unproved"
        ) from error
