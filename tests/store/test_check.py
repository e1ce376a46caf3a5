"""`unisono check`: every kind of damage is planted, found, and named with its event."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.records import START_MS, append, append_many, make_record
from unisono.store import check as checking
from unisono.store.check import check_directory
from unisono.store.check_log import LogAuditor
from unisono.store.port import Snapshot, StoreUnusable
from unisono.store.sqlite import check as sqlite_checking
from unisono.store.sqlite import recent_partitions
from unisono.store.sqlite.check import open_directory
from unisono.store.sqlite.log import SqliteLog

EVENTS = 40


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound log of 40 events in partitions `p` and, for the even ones, `q`, with a snapshot.

    Up to event 20 they are in the index of partitions.
    """
    monkeypatch.setattr(recent_partitions, "WAITING_MAX", 0)
    with closing(SqliteLog.open(tmp_path)) as log:
        for _ in range(2):
            append(log, [["p"] if n % 2 else ["p", "q"] for n in range(1, EVENTS // 2 + 1)])
        log.put_snapshots([Snapshot("q", 40, 1, b"{}", START_MS)])
    return tmp_path


def plant(directory: Path, sql: str) -> None:
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        connection.execute(sql)


def test_a_sound_log_is_called_sound(directory: Path) -> None:
    report = check_directory(directory)
    assert report.ok
    assert (report.events, report.head, report.pruned_to) == (EVENTS, EVENTS, 0)
    assert report.text() == f"{directory}: sound (40 events, head 40)"


def test_an_empty_log_is_sound(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    assert check_directory(tmp_path).text() == f"{tmp_path}: sound (0 events, head 0)"


def test_a_pruned_log_is_sound(directory: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        log.set_archive("file:///lake")
        assert log.prune_batch(25) == 25
        assert check_directory(directory).text() == f"{directory}: sound (15 events, head 40, pruned to 25)"
        assert log.prune_batch(40) == 15
    assert check_directory(directory).text() == f"{directory}: sound (0 events, head 40, pruned to 40)"


PRUNED_DAMAGE = {
    "forgotten": ("DELETE FROM pruned WHERE committed_id = 7", 7, "has left and is not remembered"),
    "several forgotten": ("DELETE FROM pruned WHERE committed_id > 17", 18, "to 20 have left and are not"),
    "not in the index": ("UPDATE head SET ids_indexed_to = 20", 1, "cannot be found by its id 'id-1'"),
    "gone too early": ("INSERT INTO pruned VALUES ('x', 30, 'c', 1, zeroblob(32))", 30, "pruned to 20"),
    "no hash": ("UPDATE pruned SET hash = x'00' WHERE committed_id = 3", 3, "has 1 bytes"),
    "in both places": (
        "UPDATE pruned SET id = (SELECT id FROM events WHERE committed_id = 31) WHERE committed_id = 4",
        31,
        "in the log and remembered as gone",
    ),
    "a partition too far": ("UPDATE partitions SET pruned_to = 33 WHERE name = 'q'", 33, "of 'q'"),
}


@pytest.mark.req("ENV-07")
def test_a_log_whose_clock_was_set_right_is_sound(directory: Path) -> None:
    """The authority goes back by more than CLOCK_SKEW_MAX_MS when the newest event has the time of a wrong clock."""
    plant(
        directory,
        "UPDATE events SET status_updated_at = status_updated_at + 3600000 WHERE committed_id <= 20",
    )
    report = check_directory(directory)
    assert report.ok, report.text()


@pytest.mark.req("ORD-05")
@pytest.mark.parametrize("damage", PRUNED_DAMAGE)
def test_damage_to_what_is_remembered_is_found(directory: Path, damage: str) -> None:
    sql, committed_id, message = PRUNED_DAMAGE[damage]
    with closing(SqliteLog.open(directory)) as log:
        log.set_archive("file:///lake")
        log.prune_batch(20)
    assert check_directory(directory).ok
    plant(directory, sql)
    report = check_directory(directory)
    assert any(
        f.kind == "pruned" and f.committed_id == committed_id and message in f.message
        for f in report.findings
    ), report.text()


def test_a_log_can_be_checked_while_events_leave_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_checking, "BATCH_ROWS", 50)
    with closing(SqliteLog.open(directory)) as log:
        log.set_archive("file:///lake")
        append_many(log, 2_000)

        def prune(_done: int, _total: int) -> None:
            log.prune_batch(2_040, limit=90)

        report = check_directory(directory, prune)
        assert log.extent().pruned_to > 1_000
    assert report.ok, report.text()


def test_a_log_in_use_can_be_checked(directory: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        append_many(log, 3_000)
        report = check_directory(directory, lambda _done, _total: append_many(log, 1))
    assert report.ok, report.text()
    assert report.head == EVENTS + 3_000


def rewrite_schema(old: str, new: str) -> str:
    return (
        "PRAGMA writable_schema = ON;"
        f"UPDATE sqlite_schema SET sql = replace(sql, '{old}', '{new}');"
        "PRAGMA writable_schema = RESET"
    )


DAMAGE = {
    "missing head row": ("DELETE FROM head", "head", None, "head row is missing"),
    "head too low": ("UPDATE head SET committed_id = 39", "head", 40, "the head is 39"),
    "head too high": ("UPDATE head SET committed_id = 41", "head", 40, "the last event is 40"),
    "head without events": ("DELETE FROM events", "head", None, "there are no events"),
    "head with another time": ("UPDATE head SET status_updated_at = 7", "head", 40, "time 7"),
    "one event missing": ("DELETE FROM events WHERE committed_id = 7", "gap", 8, "7 is missing"),
    "events missing": ("DELETE FROM events WHERE committed_id IN (7, 8, 9)", "gap", 10, "7 to 9 are missing"),
    "first event missing": ("DELETE FROM events WHERE committed_id = 1", "gap", 2, "1 is missing"),
    "event before the pruned": ("UPDATE head SET pruned_to = 1", "gap", 1, "pruned to 1"),
    "empty id": ("UPDATE events SET id = '' WHERE committed_id = 5", "id", 5, "0 bytes"),
    "long id": ("UPDATE events SET id = printf('%200s', 'x') WHERE committed_id = 5", "id", 5, "200 bytes"),
    "id no text": (
        "UPDATE events SET id = CAST(x'fffe' AS TEXT) WHERE committed_id = 5",
        "file",
        None,
        "reading stopped",
    ),
    "id given twice": (
        "UPDATE events SET id = 'id-3' WHERE committed_id = 9",
        "id",
        3,
        "belongs to 2 events",
    ),
    "id not text": (
        "UPDATE events SET id = CAST(x'ff69642d35' AS TEXT) WHERE committed_id = 5",
        "file",
        None,
        "not UTF-8: b'\\xffid-5'",
    ),
    "id given twice, without the index": (
        "DROP TABLE event_ids; UPDATE events SET id = 'id-3' WHERE committed_id = 9",
        "id",
        3,
        "belongs to 2 events",
    ),
    "index gone": ("DROP INDEX partitions_by_name", "schema", None, "index partitions_by_name is missing"),
    "index of ids gone": ("DROP TABLE event_ids", "schema", None, "table event_ids is missing"),
    "not found by its id": ("UPDATE head SET ids_indexed_to = 5", "index", 1, "cannot be found by its id"),
    "found by the id of another": (
        "INSERT INTO event_ids VALUES (99, 5)",
        "index",
        5,
        "listed under an id it does not have",
    ),
    "found by its id, but gone": ("INSERT INTO event_ids VALUES (99, 77)", "index", 77, "it does not have"),
    "table gone": ("DROP TABLE snapshots", "schema", None, "table snapshots is missing"),
    "index not unique": (
        "DROP INDEX partitions_by_name; CREATE INDEX partitions_by_name ON partitions (name)",
        "schema",
        None,
        "partitions_by_name is not what",
    ),
    "index out of step with its table": (
        rewrite_schema("partitions (name)", "partitions (name DESC)"),
        "file",
        None,
        "entry in index partitions_by_name",
    ),
    "event not JSON": (
        "UPDATE events SET event = x'7b' WHERE committed_id = 5",
        "event",
        5,
        "cannot be read",
    ),
    "event not canonical": (
        'UPDATE events SET event = CAST(\'{"b":1,"a":2}\' AS BLOB) WHERE committed_id = 5',
        "event",
        5,
        "canonical form",
    ),
    "event changed": (
        "UPDATE events SET event = CAST('{\"a\":2}' AS BLOB) WHERE committed_id = 5",
        "hash",
        5,
        "not that of its content",
    ),
    "hash changed": (
        "UPDATE events SET hash = zeroblob(32) WHERE committed_id = 6",
        "hash",
        6,
        "not that of",
    ),
    "hash cut": (
        "UPDATE events SET hash = substr(hash, 1, 31) WHERE committed_id = 6",
        "hash",
        6,
        "not that",
    ),
    "partitions not JSON": (
        "UPDATE events SET partitions = 'p' WHERE committed_id = 5",
        "partitions",
        5,
        "valid",
    ),
    "partitions not strings": (
        "UPDATE events SET partitions = '[1]' WHERE committed_id = 5",
        "partitions",
        5,
        "not valid",
    ),
    "no partitions": (
        "UPDATE events SET partitions = '[]' WHERE committed_id = 5",
        "partitions",
        5,
        "not valid",
    ),
    "partitions unsorted": (
        'UPDATE events SET partitions = \'["q","p"]\' WHERE committed_id = 6',
        "partitions",
        6,
        "not normalised",
    ),
    "partitions spaced": (
        'UPDATE events SET partitions = \'["p", "q"]\' WHERE committed_id = 6',
        "partitions",
        6,
        "not normalised",
    ),
    "partitions not NFC": (
        "UPDATE events SET partitions = '[\"e\u0301\"]' WHERE committed_id = 6",
        "partitions",
        6,
        "not normalised",
    ),
    "name not NFC": (
        "UPDATE partitions SET name = 'e\u0301' WHERE name = 'q'",
        "partitions",
        None,
        "number 2",
    ),
    "name given twice": (
        "DROP INDEX partitions_by_name; INSERT INTO partitions VALUES (9, 'q', 0)",
        "partitions",
        None,
        "more than one number",
    ),
    "not listed": (
        "DELETE FROM event_partitions WHERE partition = 2 AND committed_id = 6",
        "index",
        6,
        "not listed under 'q'",
    ),
    "listed elsewhere": ("INSERT INTO event_partitions VALUES (2, 5)", "index", 5, "which it is not in"),
    "listed without an event": ("INSERT INTO event_partitions VALUES (2, 99)", "index", 99, "no such event"),
    "listed under no name": ("INSERT INTO event_partitions VALUES (-7, 5)", "index", 5, "number -7, unknown"),
    "time zero": ("UPDATE events SET status_updated_at = 0 WHERE committed_id = 5", "time", 5, "not a time"),
    "time absurd": (
        f"UPDATE events SET status_updated_at = {1 << 60} WHERE committed_id = 5",
        "time",
        5,
        "not a time",
    ),
    "time goes back": (
        f"UPDATE events SET status_updated_at = {START_MS} WHERE committed_id = 5",
        "time",
        5,
        "the time of the event before it",
    ),
    "archive not named": ("UPDATE head SET pruned_to = 1", "keeping", None, "no archive is named"),
    "keeping gone": ("DELETE FROM keeping", "keeping", None, "row that names the archive is missing"),
    "model gone": ("UPDATE keeping SET model_version = 3", "model", None, "the model in force is not"),
    "snapshot of the future": ("UPDATE snapshots SET committed_id = 41", "snapshot", 41, "past the head"),
    "snapshot of no partition": ("UPDATE snapshots SET partition = 9", "snapshot", 40, "number 9, unknown"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named(directory: Path, damage: str) -> None:
    sql, kind, committed_id, message = DAMAGE[damage]
    plant(directory, sql)
    report = check_directory(directory)
    assert not report.ok
    found = [finding for finding in report.findings if message in finding.message]
    assert [(finding.kind, finding.committed_id) for finding in found[:1]] == [(kind, committed_id)], (
        report.text()
    )
    assert f"{kind}: " + (f"event {committed_id}: " if committed_id else "") in report.text()
    assert "NOT SOUND" in report.text()


def test_damaged_pages_are_found(directory: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        append_many(log, 2_000)
    with (directory / "log.db").open("r+b") as file:
        file.seek(4096 * 40)
        file.write(b"\xa5" * 4096 * 3)
    report = check_directory(directory)
    assert report.counts["file"] >= 1


def test_a_file_overwritten_from_the_start_is_not_sound(directory: Path) -> None:
    with (directory / "log.db").open("r+b") as file:
        file.write(b"\xa5" * 100)
    report = check_directory(directory)
    assert [finding.kind for finding in report.findings] == ["file"]


def test_findings_are_listed_to_a_bound_and_counted_beyond_it(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 250)
    plant(tmp_path, "UPDATE events SET hash = zeroblob(32)")
    report = check_directory(tmp_path)
    assert len(report.findings) == checking.FINDINGS_KEPT_MAX
    assert report.counts == {"hash": 250}
    assert "250 findings (hash 250)" in report.text()
    assert "and 150 more" in report.text()


def test_progress_is_told_and_ends_at_the_whole(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 2_000, ("p", "q"))
    told: list[tuple[int, int]] = []
    check_directory(tmp_path, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert len(told) > 4
    done, total = told[-1]
    assert done == total >= 2_000


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="holds no log"):
        check_directory(tmp_path)
    SqliteLog.open(tmp_path).close()
    plant(tmp_path, "PRAGMA user_version = 999")
    with pytest.raises(StoreUnusable, match="newer Unisono"):
        check_directory(tmp_path)


def test_checking_changes_nothing(directory: Path) -> None:
    def state() -> dict[str, bytes]:
        return {
            file.name: file.read_bytes() for file in directory.iterdir() if file.name in ("log.db", "lock")
        }

    before = state()
    check_directory(directory)
    assert state() == before


def test_names_of_any_kind_are_sound(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        log.begin([])
        log.commit([make_record(1, ("a\0b", 'q"\\\n\x7f', "é", "\U0001f600"), id="n\0\u2028")])
    report = check_directory(tmp_path)
    assert report.ok, report.text()


def test_an_auditor_can_be_left_halfway(directory: Path) -> None:
    plant(directory, "UPDATE events SET hash = zeroblob(32)")
    auditor = LogAuditor(lambda: open_directory(directory))
    assert next(auditor.findings()).committed_id == 1
