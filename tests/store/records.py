"""Records for tests: valid by default, any field to taste."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import CommitLog, Record

START_MS = 1_700_000_000_000
LAKE = "file:///lake"


def make_record(
    committed_id: int,
    partitions: Sequence[str] = ("p",),
    *,
    id: str | None = None,
    event: bytes | None = None,
    client_id: str = "client",
    author: str = "",
) -> Record:
    body = event if event is not None else canonical({"payload": {"n": committed_id}, "type": "note"})
    return Record(
        committed_id=committed_id,
        id=f"id-{committed_id}" if id is None else id,
        client_id=client_id,
        partitions=tuple(partitions),
        event=body,
        hash=content_hash(body, canonical(list(partitions))),
        status_updated_at=START_MS + committed_id,
        author=author,
    )


def append(log: CommitLog, partition_sets: Sequence[Sequence[str]]) -> list[Record]:
    """Commit one group: an event for each of `partition_sets`."""
    opening = log.begin([])
    records = [
        make_record(committed_id, partitions)
        for committed_id, partitions in enumerate(partition_sets, start=opening.head + 1)
    ]
    log.commit(records)
    return records


def append_many(log: CommitLog, count: int, partitions: Sequence[str] = ("p",), *, group: int = 500) -> None:
    while count > 0:
        append(log, [partitions] * min(group, count))
        log.maintain()
        count -= group


def known(log: CommitLog, *ids: str) -> dict[str, int]:
    """Which of the ids the log has, and their committed_ids."""
    found = {id: what.committed_id for id, what in log.begin(ids).known.items()}
    log.abandon()
    return found
