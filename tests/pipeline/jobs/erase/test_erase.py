"""Erased is gone: planted strings in every place a log and a lake have, and nothing else touched.

What does not depend on where tasks run is done without Spark (`HERE`).
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.pipeline.canaries import CANARY, CULPRIT, append, canary, holders, planted
from tests.pipeline.history import START_MS, require_exact
from tests.pipeline.jobs.erase.erasing import (
    BY_CULPRIT,
    expected,
    fingerprint,
    prepare,
    require_erased,
    require_states,
    run,
    states,
)
from tests.pipeline.jobs.erase.test_half_written import leave
from tests.store.postgres.server import database, postgres  # noqa: F401 (fixtures)
from unisono.lake.attempt_files import removed_unless_committed
from unisono.lake.errors import CommitConflict
from unisono.lake.lake import Lake
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import DataFile
from unisono.model.authorship import authorship_of
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import CompactionTask, join
from unisono.pipeline.jobs.erase.erasure_table import erasures
from unisono.pipeline.jobs.erase.fragments import PIECE_BYTES, SALT_BYTES, Pieces, Sample, pieces_of, token
from unisono.pipeline.jobs.erase.job import NothingFound, erase, plan
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.erase.unproved import UnprovedErasure, save_unproved
from unisono.pipeline.jobs.export.job import BOTH, ExportCommit, ExportTask, commit, export, run_task
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.protocol.canonical import canonical, content_hash
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.vocabulary import Json


def test_planted_strings_are_gone_and_all_else_is_there(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    records = prepare(data, lake)
    assert len(set(holders(data, tmp_path / "lake"))) > 8
    before = fingerprint(data, tmp_path / "lake")
    planned = plan(spark, sqlite_uri(data), lake, BY_CULPRIT)
    assert (planned.events, planned.intact) == (25, 25)
    assert "events 40 to 1000 of 1000, 25 in all, not erased yet: 25" in planned.text()
    assert "in the log: 18, in the lake: 20" in planned.text()
    assert fingerprint(data, tmp_path / "lake") == before, "a plan changes nothing"

    done = erase(spark, sqlite_uri(data), lake, planned, reason="a test")
    assert done.proof.holds, done.proof.text()
    assert (done.events, done.intact, done.log_events) == (25, 25, 18)
    assert done.files_removed > 0
    require_erased(data, lake, records)
    require_states(data, lake, records)
    rows = erasures(lake)
    assert len({row.erased_at for row in rows}) == 1
    certificate = done.certificate
    lines = "".join(f"{row.committed_id} {row.id} {row.erased_at}\n" for row in rows)
    assert certificate.events_sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert (certificate.complete, certificate.events, certificate.intact) == (True, 25, 25)
    assert (certificate.first_committed_id, certificate.last_committed_id) == (40, 1_000)
    assert certificate.began_at <= rows[0].erased_at <= certificate.ended_at
    assert (certificate.files_searched, certificate.remaining) == (done.proof.files, [])
    assert certificate.is_unchanged()
    assert not msgspec.structs.replace(certificate, events=24).is_unchanged()
    assert {(row.selected_by, row.reason) for row in rows} == {("client", "a test")}

    named = {file.path for file in (*lake.view().log_files, *lake.view().partition_files)}
    again = run(HERE, data, lake)
    assert (again.events, again.intact, again.lake_rows, again.log_events) == (25, 0, 0, 0)
    assert again.proof.holds
    assert {file.path for file in (*lake.view().log_files, *lake.view().partition_files)} == named
    require_states(data, lake, records)


def test_by_partition_and_by_id(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    with closing(SqliteLog.open(data)) as log:
        records = append(log, 400)
    export(HERE, sqlite_uri(data), lake, to=300)
    wanted = {record.committed_id for record in records if "room-007" in record.partitions}
    done = run(HERE, data, lake, Selector("partition", ("room-007",)))
    assert done.proof.holds, done.proof.text()
    assert {row.committed_id for row in erasures(lake)} == wanted
    one, other = records[79], records[399]
    assert one.client_id == other.client_id == CULPRIT
    assert not {one.committed_id, other.committed_id} & wanted
    done = run(HERE, data, lake, Selector("id", (one.id, other.id)))
    assert (done.events, done.intact) == (2, 2)
    wanted |= {one.committed_id, other.committed_id}
    left = {record.committed_id for record in planted(records)} - wanted
    assert left, "those of the same client that were not meant"
    tombstones = expected(records, lake)
    assert {record.committed_id for record in tombstones if is_tombstone(record.event)} == wanted
    export(HERE, sqlite_uri(data), lake)
    require_exact(lake, tombstones)
    with closing(SqliteReader.open(data)) as reader:
        assert list(reader.scan(0, reader.head(), limit=10_000)) == tombstones
    with pytest.raises(NothingFound, match="no event has the id 'nobody': nothing was erased"):
        plan(HERE, sqlite_uri(data), lake, Selector("id", (one.id, "nobody")))


def test_files_are_opened_once_however_many_partitions_are_concerned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny partitions, one event each: ten times as many of them erased need no more reads of files."""
    reads = [0]
    read = Storage.read

    def counted(storage: Storage, table: str, path: str) -> object:
        reads[0] += 1
        return read(storage, table, path)

    monkeypatch.setattr(Storage, "read", counted)

    def reads_for(erased: int) -> int:
        data, lake = tmp_path / f"data-{erased}", Lake.at(str(tmp_path / f"lake-{erased}"))
        lake.make(buckets=2)
        with closing(SqliteLog.open(data)) as log:
            log.begin([])
            log.commit([_tiny(number, number <= erased) for number in range(1, 1_001)])
        export(HERE, sqlite_uri(data), lake)
        snapshot(HERE, lake, ShippedModel.open())
        with closing(open_maintainer(sqlite_uri(data))) as maintainer:
            maintainer.put_snapshots(states(lake))
        reads[0] = 0
        done = run(HERE, data, lake)
        assert (done.events, done.partitions, done.proof.holds) == (erased, erased, True)
        with closing(SqliteReader.open(data)) as reader:
            assert len(dict(reader.watermarks(0))) == 1_000
        return reads[0]

    assert reads_for(600) <= reads_for(60) + 10


def _tiny(number: int, by_culprit: bool) -> Record:
    body = canonical({"type": "set", "payload": {"target": "title", "value": canary(number)}})
    names = (f"tiny-{number:05d}",)
    digest = content_hash(body, canonical(list(names)))
    client = CULPRIT if by_culprit else "other"
    return Record(number, f"id-{number}", client, names, body, digest, START_MS + number)


def user_of(record: Record) -> str | None:
    return authorship_of("", record.author, 0).user_id


def test_by_user(tmp_path: Path) -> None:
    """A person on two devices; others with the same claims, or none, are not touched."""
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    authors = [
        '{"claims":{"name":"A"},"user_id":"zoe"}',
        '{"user_id":"zoe"}',
        '{"claims":{"name":"A"},"user_id":"ben"}',
        "",
    ]
    with closing(SqliteLog.open(data)) as log:
        records = append(log, 200)
        mine = [
            structs.replace(record, committed_id=200 + number, id=f"by-{number}", author=authors[number % 4])
            for number, record in enumerate(records, 1)
        ]
        log.begin([])
        log.commit(mine)
    export(HERE, sqlite_uri(data), lake, to=320)
    wanted = {record.committed_id for record in (*records, *mine) if user_of(record) == "zoe"}
    assert len(wanted) == 100
    done = run(HERE, data, lake, Selector("user", ("zoe", "nobody")))
    assert done.proof.holds, done.proof.text()
    assert {row.committed_id for row in erasures(lake)} == wanted
    assert {row.selected_by for row in erasures(lake)} == {"user"}
    with closing(SqliteReader.open(data)) as reader:
        left = list(reader.scan(0, reader.head(), limit=10_000))
    assert {record.committed_id for record in left if is_tombstone(record.event)} == wanted
    assert "zoe" not in {user_of(record) for record in left}
    assert "ben" in {user_of(record) for record in left}
    with pytest.raises(NothingFound, match="no events of user 'zoe': nothing was erased"):
        plan(HERE, sqlite_uri(data), lake, Selector("user", ("zoe",)))
    save_unproved(
        lake.storage, UnprovedErasure(b"s" * SALT_BYTES, frozenset(), tuple(sorted(wanted)), "user")
    )
    again = run(HERE, data, lake, Selector("user", ("zoe",)))  # as if the last search had not been made
    assert (again.events, again.intact, again.proof.holds) == (100, 0, True)
    left_there = leave(tmp_path / "lake" / "half.parquet", b"PAR1")
    assert not run(HERE, data, lake, Selector("user", ("ben",))).proof.holds
    with pytest.raises(NothingFound, match="no events of user 'nobody': nothing was erased"):
        plan(HERE, sqlite_uri(data), lake, Selector("user", ("nobody",)))
    left_there.unlink()
    again = run(HERE, data, lake, Selector("user", ("ben", "nobody")))
    assert (again.intact, again.proof.holds) == (0, True)


def path_of(lake: Lake, file: DataFile) -> Path:
    return Path(lake.storage.uri(file.table, file.path))


def test_jobs_that_had_read_the_text_cannot_bring_it_back(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    store = sqlite_uri(data)
    lake.make(buckets=2)
    with closing(SqliteLog.open(data)) as log:
        records = append(log, 300)
    export(HERE, store, lake, to=100)
    export(HERE, store, lake, to=200)
    exported = run_task(ExportTask(store, lake.storage, 200, 300, BOTH, 2, 1_000))
    table = lake.table(LOG)
    joined = join(CompactionTask(lake.storage, LOG, tuple(table.files()), 1_000_000))
    written = {file: path_of(lake, file).read_bytes() for file in (*exported.files, *joined.files)}
    assert run(HERE, data, lake).proof.holds
    for file, content in written.items():
        assert not path_of(lake, file).exists()
        path_of(lake, file).write_bytes(content)  # as if the job had come to it only now
    with pytest.raises(CommitConflict):
        commit(lake, ExportCommit(200, 300, BOTH), [exported])
    with pytest.raises(CommitConflict), removed_unless_committed(lake.storage, joined.files):
        table.replace(table.files(), joined.files, {}, same_rows=True)
    require_erased(data, lake, records, pruned_to=0)


def test_what_is_left_is_found_and_what_others_say_too_is_not_blamed(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    with closing(SqliteLog.open(data)) as log:
        append(log, 100)
        body = canonical({"type": "event", "payload": {"schema": "quote", "data": canary(40)}})
        quote = Record(101, "quote", "other", ("q",), body, content_hash(body, b'["q"]'), 1_700_000_000_200)
        log.begin([])
        log.commit([quote])
    export(HERE, sqlite_uri(data), lake)
    beside = tmp_path / "lake" / "notes.txt"
    beside.write_text(f"somebody wrote down {canary(80)}, and {canary(40)}")
    done = run(HERE, data, lake)
    assert not done.proof.holds
    assert [trace.place.path for trace in done.proof.traces] == ["notes.txt"]
    assert f"{beside}: " in done.proof.text()
    assert done.proof.common > 0, "the quote stands in an event that stays"
    beside.unlink()
    assert run(HERE, data, lake).proof.holds
    left = {Path(path).relative_to(tmp_path).parts[:2] for path in holders(data, tmp_path / "lake")}
    assert left == {("data", "log.db"), ("lake", "log"), ("lake", "by_partition")}, "the quote itself"


def note(number: int, partition: str, event: Json) -> Record:
    body, names = canonical(event), (partition,)
    return Record(
        number,
        f"e{number}",
        "ann",
        names,
        body,
        content_hash(body, canonical(list(names))),
        START_MS + number,
    )


def test_what_a_state_makes_of_events_that_stay_is_no_trace(tmp_path: Path) -> None:
    """An event ends a text by `"}},` and a state by `"},`, as events of another kind do, which are erased here."""
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    said = "dolor sit amet"
    pushed: list[Json] = [
        {"type": "treePush", "payload": {"target": "doc", "value": {"id": f"n{n}", "text": said}}}
        for n in range(3)
    ]
    added: list[Json] = [
        {"type": "event", "payload": {"schema": "note", "data": {"id": "n", "text": f"{'x' * n}{said}"}}}
        for n in range(PIECE_BYTES)
    ]
    with closing(SqliteLog.open(data)) as log:
        log.begin([])
        log.commit(
            [note(n, "stays", event) for n, event in enumerate(pushed, 1)]
            + [note(n, "goes", event) for n, event in enumerate(added, 4)]
        )
    store = sqlite_uri(data)
    lake.make(buckets=2)
    export(HERE, store, lake)
    snapshot(HERE, lake, ShippedModel.open())
    with closing(open_maintainer(store)) as maintainer:
        maintainer.put_snapshots(states(lake))
    assert any(f'{said}"}},"'.encode() in state.state for state in states(lake) if state.partition == "stays")
    selector = Selector("partition", ("goes",))
    done = erase(HERE, store, lake, plan(HERE, store, lake, selector))
    assert done.proof.holds, done.proof.text()
    assert done.proof.common > 0


def test_pieces() -> None:
    salt = b"salt"
    event = canonical(
        {"type": "set", "payload": {"target": "a target with a name", "value": ["x" * 40, "short"]}}
    )
    found = set(pieces_of(event))
    assert all(len(piece) == PIECE_BYTES for piece in found)
    assert event[:PIECE_BYTES] in found
    assert event[-PIECE_BYTES:] in found
    pieces = Pieces((token(piece, salt) for piece in found), salt)
    for shift in range(20):
        assert pieces.find(b"." * shift + event + b"..") == pieces.tokens, "wherever it begins"
    assert pieces.find(event[: PIECE_BYTES - 1]) == set()
    assert Pieces((), salt).find(event) == set()
    far = Pieces([token(b"0123456789abcdef", salt)], salt)
    assert len(far.find(b"-" * (4 << 20) + b"0123456789abcdef")) == 1
    assert len(far.find(b"-" * ((4 << 20) - 9) + b"0123456789abcdef")) == 1, "where one window ends"
    texts = [canonical({"n": n, "text": canary(n)}) for n in range(1_000)]
    every = [{token(piece, salt) for piece in pieces_of(text)} for text in texts]
    for most in (500, 1_000, 2_500, 100_000):
        some = Sample(most, salt)
        for text in texts:
            some.add(text)
        tokens = some.tokens()
        assert all(tokens & own for own in every), "some of each event"
        assert len(tokens) <= max(most, len(texts))
        assert some.whole == (tokens == set().union(*every)) == (most == 100_000)
        assert not any(CANARY.encode() in told for told in tokens)
