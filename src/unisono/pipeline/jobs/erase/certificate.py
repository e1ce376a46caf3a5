"""The certificate of an erasure: what was asked, erased, searched and found, when and by what, as JSON.

`sha256` is of the canonical JSON of the rest, so that a copy can be compared with the one that the lake keeps in its
table `_runs`. `events_sha256` is of a line `committed_id id erased_at` for each event, ascending, and can be computed
again from the table `erasures`. Names of clients and partitions are not in it: they can be what was to be erased.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Final

import msgspec

from unisono import __version__
from unisono.pipeline.jobs.erase.proof import Proof
from unisono.pipeline.jobs.erase.select import SelectedEvent
from unisono.pipeline.open_log import open_reader
from unisono.protocol.canonical import canonical

FORMAT: Final = 2
"""1 has no `signed_off_by`."""

TRACES_MAX: Final = 100
"""Places with remaining content that are named; all are counted."""


class ErasureCertificate(msgspec.Struct, frozen=True):
    """One run of `unisono lake erase`; times are milliseconds since 1970.

    `events` is how many events the erasure is of, with those of earlier unproved ones; `intact` of them still had
    content. `complete`: the search found none, in the log's events and in all files.
    """

    format: int
    program: str
    log_id: str
    log_epoch: int
    lake: str
    selected_by: str
    reason: str | None
    began_at: int
    ended_at: int
    events: int
    intact: int
    first_committed_id: int
    last_committed_id: int
    events_sha256: str
    partitions: int
    lake_rows_erased: int
    log_events_erased: int
    files_removed: int
    files_searched: int
    bytes_searched: int
    pieces_searched: int
    remaining_log_events: int
    remaining_places: int
    remaining: list[str]
    complete: bool
    signed_off_by: str | None = None
    sha256: str = ""

    def hashed(self) -> ErasureCertificate:
        """With the hash of its content."""
        return msgspec.structs.replace(self, sha256=self._content_sha256())

    def signed_off(self, name: str) -> ErasureCertificate:
        """With the name of who answers for it."""
        return msgspec.structs.replace(self, signed_off_by=name).hashed()

    def is_unchanged(self) -> bool:
        """Whether it has the content that its hash is of."""
        return self.sha256 == self._content_sha256()

    def json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def _content_sha256(self) -> str:
        content = msgspec.to_builtins(msgspec.structs.replace(self, sha256=""))
        if self.format == 1 and self.signed_off_by is None:
            del content["signed_off_by"]
        return hashlib.sha256(canonical(content)).hexdigest()


class ErasureCounts(msgspec.Struct, frozen=True):
    """What a run changed."""

    intact: int
    partitions: int
    lake_rows: int
    log_events: int
    files_removed: int


def events_sha256(rows: Iterable[tuple[int, str, int]]) -> str:
    """The hash of a line `committed_id id erased_at` for each event, in their order."""
    listed = hashlib.sha256()
    for row in rows:
        listed.update("{} {} {}\n".format(*row).encode())
    return listed.hexdigest()


def certify(
    store: str,
    lake: str,
    selected_by: str,
    reason: str | None,
    between: tuple[int, int],
    events: Iterable[SelectedEvent],
    times: Mapping[int, int],
    counts: ErasureCounts,
    proof: Proof,
) -> ErasureCertificate:
    """The certificate of a run with this proof."""
    ordered = sorted(events, key=lambda event: event.committed_id)
    with closing(open_reader(store)) as reader:
        log = reader.identity()
    return ErasureCertificate(
        FORMAT,
        f"unisono {__version__}",
        log.log_id,
        log.log_epoch,
        lake,
        selected_by,
        reason,
        *between,
        len(ordered),
        counts.intact,
        ordered[0].committed_id,
        ordered[-1].committed_id,
        events_sha256((event.committed_id, event.id, times[event.committed_id]) for event in ordered),
        counts.partitions,
        counts.lake_rows,
        counts.log_events,
        counts.files_removed,
        proof.files,
        proof.bytes,
        proof.pieces,
        proof.log_events,
        len(proof.places),
        proof.places[:TRACES_MAX],
        proof.holds,
    ).hashed()
