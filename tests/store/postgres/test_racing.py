"""Several writers on one log at once: every id once, no gap, and nothing appears behind a reader.

`missed` is the check; the same check on a log numbered by nextval() has to fail, so it is known to bite.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg
import pytest

from tests.store.postgres.server import database, postgres
from tests.store.records import make_record
from tests.waiting import PATIENCE_S
from unisono.store.postgres.log import PostgresLog, PostgresReader

__all__ = ["database", "postgres"]

WRITERS = 4
IDS = [f"the-same-{n:03}" for n in range(600)]

processes = multiprocessing.get_context("spawn")


def write_all(dsn: str, number: int, start: Barrier, told: Any) -> None:
    """Commit every one of IDS that nobody has committed yet, in an order of one's own; tell what came of each."""
    chance = random.Random(number)
    waiting = chance.sample(IDS, len(IDS))
    results: dict[str, int] = {}
    stream: list[int] = []
    with closing(PostgresLog.open(dsn, f"writer-{number}")) as log:
        start.wait(PATIENCE_S)
        while waiting:
            size = chance.randint(1, 20)
            group, waiting = waiting[:size], waiting[size:]
            opening = log.begin(group)
            stream += [record.committed_id for record in opening.foreign]
            fresh = [id for id in group if id not in opening.known]
            records = [
                make_record(n, ("p", f"w{number}"), id=id) for n, id in enumerate(fresh, opening.head + 1)
            ]
            log.commit(records)
            stream += [record.committed_id for record in records]
            results |= {id: known.committed_id for id, known in opening.known.items()}
            results |= {record.id: record.committed_id for record in records}
    told.put((results, stream))


def tail(read: Callable[[int], Sequence[int]], ended: threading.Event) -> list[int]:
    """Follow a log as every node does: what is above the last id seen, again and again."""
    seen: list[int] = []
    while True:
        last_look = ended.is_set()
        seen += read(seen[-1] if seen else 0)
        if last_look:
            return seen


def missed(seen: Sequence[int], present: Sequence[int]) -> list[int]:
    """What a follower never saw."""
    assert list(seen) == sorted(set(seen))
    return sorted(set(present) - set(seen))


@pytest.mark.req("ORD-01", "ORD-02", "ORD-03", "ORD-05")
def test_racing_writers_commit_each_id_once_and_a_reader_misses_nothing(database: str) -> None:
    start, told = processes.Barrier(WRITERS + 1), processes.Queue()
    writers = [processes.Process(target=write_all, args=(database, n, start, told)) for n in range(WRITERS)]
    ended = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        with closing(PostgresReader.open(database)) as reader:
            scan = reader.scan
            seen.extend(tail(lambda last: [r.committed_id for r in scan(last, 10**6, limit=1000)], ended))

    follower = threading.Thread(target=follow)
    for writer in writers:
        writer.start()
    follower.start()
    start.wait(PATIENCE_S)
    outcomes = [told.get(timeout=PATIENCE_S) for _ in writers]
    for writer in writers:
        writer.join(PATIENCE_S)
    ended.set()
    follower.join(PATIENCE_S)

    with closing(PostgresReader.open(database)) as reader:
        records = reader.scan(0, 10**6, limit=10**6)
    assert [record.committed_id for record in records] == list(range(1, len(IDS) + 1))
    assert sorted(record.id for record in records) == IDS
    assert len({record.partitions for record in records}) > 1, "one writer did all: this was no race"
    for results, stream in outcomes:
        assert results == {record.id: record.committed_id for record in records}
        assert stream == list(range(1, len(stream) + 1))
    assert missed(seen, range(1, len(IDS) + 1)) == []


@pytest.mark.req("ORD-02")
def test_the_same_check_fails_for_a_log_numbered_by_a_sequence(database: str) -> None:
    """One writer takes its number and commits late; who reads in between never sees it."""
    seen: list[int] = []
    insert = "INSERT INTO control (writer) VALUES (%s)"
    query = "SELECT committed_id FROM control WHERE committed_id > %s ORDER BY committed_id"
    with (
        closing(psycopg.connect(database, autocommit=True)) as connection,
        closing(psycopg.connect(database)) as late,
        closing(psycopg.connect(database)) as early,
    ):
        connection.execute("CREATE TABLE control (committed_id bigserial PRIMARY KEY, writer int)")

        def read(last: int) -> list[int]:
            return [id for (id,) in connection.execute(query, (last,))]

        late.execute(insert, (1,))
        early.execute(insert, (2,))
        for writer in (early, late):
            writer.commit()
            seen += read(seen[-1] if seen else 0)
        assert missed(seen, read(0)) == [1]
