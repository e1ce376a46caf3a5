"""The events of a partition are found wherever they are: in the table, on the way to it, or only in the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.page_contract import in_wire_form, sent, submission_of
from tests.store.records import LAKE, append, append_many
from tests.store.sqlite.old_logs import make_version_1
from unisono.protocol.tombstones import tombstone
from unisono.store.check import check_directory
from unisono.store.maintenance import Tombstone
from unisono.store.port import Pruned, Record, StorageError
from unisono.store.sqlite import recent_partitions, waiting_rows
from unisono.store.sqlite.log import SqliteLog, SqliteReader

NAMES = [f"n{n}" for n in range(6)]
MANY = [*NAMES, *(f"absent-{n}" for n in range(20))]
"""More than one statement reads."""


def state(directory: Path) -> tuple[int, int]:
    """Rows in the table, and the event up to which all have theirs."""
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        rows = int(connection.execute("SELECT count(*) FROM event_partitions").get)
        return rows, int(connection.execute("SELECT partitions_indexed_to FROM head").get)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the bounds small enough that a short log uses all of them."""

    def shrink(waiting: int) -> None:
        monkeypatch.setattr(recent_partitions, "WAITING_MAX", waiting)
        monkeypatch.setattr(recent_partitions, "READ_ROWS", 7)
        monkeypatch.setattr(waiting_rows, "ROWS_MIN", 3)
        monkeypatch.setattr(waiting_rows, "PART_ROWS_MAX", 4)

    return shrink


class History:
    """A log, its readers, and what they must find."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = SqliteLog.open(directory)
        self.log.set_archive(LAKE)
        self.reader = SqliteReader.open(directory)
        self.records: list[Record] = []
        self.pruned_to = 0

    def append(self, sets: list[set[str]]) -> None:
        self.records += append(self.log, [sorted(names) for names in sets])

    def reopen(self, for_groups: bool) -> None:
        self.log.close()
        self.log = SqliteLog.open(self.directory, for_groups=for_groups)

    def new_reader(self) -> None:
        self.reader.close()
        self.reader = SqliteReader.open(self.directory)

    def prune(self, upto: int) -> None:
        self.log.prune_batch(upto, limit=30)
        self.pruned_to = self.log.extent().pruned_to

    def erase(self, at: int) -> None:
        if self.pruned_to < at <= len(self.records):
            self.log.erase([Tombstone(at, tombstone(5))])
            erased = self.log.scan(at - 1, at, limit=1)
            self.records[at - 1] = erased[0]

    def verify(self, names: list[str], since: int, upto: int, limit: int, bytes_max: int) -> None:
        for source in (self.log, self.reader):
            self._verify_pages(source, names, since, upto, limit, bytes_max)
            self._verify_newest(source, names[0], upto, limit)

    def _verify_pages(
        self, source: SqliteReader, names: list[str], since: int, upto: int, limit: int, bytes_max: int
    ) -> None:
        due = [r for r in self.records if since < r.committed_id <= upto and {*names} & {*r.partitions}]
        if due and due[0].committed_id <= self.pruned_to:
            for read in (source.page, source.wire_page):
                with pytest.raises(Pruned):
                    read(names, since, upto, limit=limit, bytes_max=bytes_max)
            return
        try:
            page = source.page(names, since, upto, limit=limit, bytes_max=bytes_max)
        except Pruned:  # a partition has pruned events after `since`, beyond `upto`
            assert any({*names} & {*r.partitions} for r in self.records[max(0, upto) : self.pruned_to])
            return
        assert list(page.records) == due[: len(page.records)]
        assert page.has_more == (len(page.records) < len(due))
        assert len(page.records) == min(limit, len(due)) or bytes_max < 1 << 20
        wired = source.wire_page(names, since, upto, limit=limit, bytes_max=bytes_max)
        assert sent(wired) == in_wire_form(page.records)
        assert (wired.count, wired.has_more) == (len(page.records), page.has_more)
        whole = source.wire_page(names, since, upto, limit=limit, bytes_max=bytes_max, whole_batches=True)
        assert sent(whole) == in_wire_form(page.records[: whole.count])
        if page.has_more and whole.count < len(page.records):
            last = page.records[-1]
            assert all(submission_of(r) == submission_of(last) for r in page.records[whole.count :])

    def _verify_newest(self, source: SqliteReader, name: str, upto: int, limit: int) -> None:
        ids = [r.committed_id for r in self.records if name in r.partitions and r.committed_id <= upto]
        left = [at for at in reversed(ids) if at > self.pruned_to]
        if left or not any(name in r.partitions for r in self.records[: self.pruned_to]):
            page = source.newest_page(name, upto, limit=limit, bytes_max=1 << 30)
            assert [r.committed_id for r in page.records] == left[:limit]
            if upto >= len(self.records):
                assert page.has_more == (len(ids) > len(page.records))
        assert source.newest_ids(name, upto, limit) == left[:limit]
        present = [r.committed_id for r in self.records[self.pruned_to :] if name in r.partitions]
        size = source.partition_size(name, limit)
        wanted = present[-limit:]
        assert (size.events, size.first, size.last) == (
            len(wanted),
            wanted[0] if wanted else 0,
            wanted[-1] if wanted else 0,
        )

    def close(self) -> None:
        self.reader.close()
        self.log.close()


names = st.sampled_from(NAMES)
sets = st.sets(names, min_size=1, max_size=3)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(sets, min_size=1, max_size=12)),
    st.tuples(st.just("append"), st.lists(st.just({"n0"}), min_size=1, max_size=12)),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("new_reader")),
    st.tuples(st.just("prune"), st.integers(0, 80)),
    st.tuples(st.just("erase"), st.integers(1, 120)),
)
questions = st.tuples(
    st.one_of(st.lists(names, min_size=1, max_size=4), st.just(MANY)),
    st.integers(0, 130),
    st.integers(0, 140),
    st.sampled_from([1, 2, 5, 13, 1000]),
    st.sampled_from([1, 120, 1 << 20]),
)


@pytest.mark.req("SYNC-01", "SYNC-03", "SYNC-10", "DUR-01", "ORD-02")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 30),
    st.lists(st.tuples(steps, st.lists(questions, min_size=1, max_size=4)), min_size=1, max_size=14),
)
def test_pages_are_what_the_records_give_through_any_history(waiting: int, course: list) -> None:  # type: ignore[type-arg]
    bounds = (
        patch.object(recent_partitions, "WAITING_MAX", waiting),
        patch.object(recent_partitions, "READ_ROWS", 7),
        patch.object(waiting_rows, "ROWS_MIN", 3),
        patch.object(waiting_rows, "PART_ROWS_MAX", 4),
    )
    with TemporaryDirectory() as place, bounds[0], bounds[1], bounds[2], bounds[3]:
        history = History(Path(place))
        try:
            for (step, *arguments), asked in course:
                getattr(history, step)(*arguments)
                for question in asked:
                    history.verify(*question)
        finally:
            history.close()
        report = check_directory(Path(place))
        assert report.ok, report.text()


@pytest.mark.req("DUR-01", "SYNC-10")
def test_rows_reach_the_table_and_the_mark_follows(tmp_path: Path, small: Callable[[int], None]) -> None:
    """Also when every event is in the same partition."""
    small(20)
    with closing(SqliteLog.open(tmp_path)) as log:
        marks = []
        for _ in range(60):
            append(log, [["p"]] * 5)
            rows, mark = state(tmp_path)
            assert mark <= rows
            marks.append(log.head() - mark)
    assert max(marks[20:]) <= 4 * 20 + 4 * 5
    rows, mark = state(tmp_path)
    assert 300 - 20 - 4 - 5 <= rows <= 300
    assert mark > 200


def test_no_group_writes_many_more_rows_than_it_has(tmp_path: Path, small: Callable[[int], None]) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 1_000)
    assert state(tmp_path) == (0, 0)
    small(20)
    written = [0]
    with closing(SqliteLog.open(tmp_path)) as log:
        for _ in range(10):
            append_many(log, 5)
            written.append(state(tmp_path)[0])
    assert written[1] > 0
    assert max(b - a for a, b in pairwise(written)) <= 2 * 5 + 3 + 4


def test_rows_that_a_killed_process_wrote_are_not_in_the_way(
    tmp_path: Path, small: Callable[[int], None]
) -> None:
    """The table may be further than `partitions_indexed_to` says."""
    small(20)
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 300, ("p", "q"), group=30)
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute("UPDATE head SET partitions_indexed_to = 3")
    with closing(SqliteLog.open(tmp_path)) as log, closing(SqliteReader.open(tmp_path)) as reader:
        for count in (300, 1_000):
            for source in (log, reader):
                found = source.page(["q"], 0, count, limit=2_000, bytes_max=1 << 20)
                assert [r.committed_id for r in found.records] == list(range(1, count + 1))
            append_many(log, 700, ("p", "q"), group=30)
    assert check_directory(tmp_path).ok


def test_an_event_has_its_rows_before_it_leaves(tmp_path: Path, small: Callable[[int], None]) -> None:
    small(20)
    with closing(SqliteLog.open(tmp_path)) as log:
        log.set_archive(LAKE)
        append(log, [["p"]] * 10)
        log.prune_batch(5)
        assert state(tmp_path) == (10, 10)
        append_many(log, 200, group=10)
    assert state(tmp_path)[0] > 100
    report = check_directory(tmp_path)
    assert report.ok, report.text()


def test_a_reader_keeps_only_what_is_not_in_the_table(tmp_path: Path, small: Callable[[int], None]) -> None:
    small(20)
    with closing(SqliteLog.open(tmp_path)) as log, closing(SqliteReader.open(tmp_path)) as reader:
        for n in range(200):
            append(log, [[f"n{n % 30}"], ["p"]])
            reader.page(["p"], 0, log.head(), limit=1, bytes_max=1)
            kept = sum(len(ids) for ids in reader._recent._ids.values())
            assert kept <= 4 * 20 + 4 * 2 + 10


def test_an_old_log_needs_no_reading(tmp_path: Path) -> None:
    """Of a log of the schema before, everything is in the table."""
    records = make_version_1(tmp_path)
    with closing(SqliteLog.open(tmp_path)) as log:
        assert state(tmp_path) == (450, len(records))
        log.page(["p"], 0, 300, limit=1, bytes_max=1)
        assert not log._recent._ids
        append(log, [["q"]])
        assert log.newest_ids("q", 301, 2) == [301, 299]


def test_an_event_in_a_partition_without_a_number_is_an_error(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append(log, [["p"], ["q"]])
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute("DELETE FROM partitions WHERE name = 'q'")
    with (
        closing(SqliteReader.open(tmp_path)) as reader,
        pytest.raises(StorageError, match="'q' has events and no number"),
    ):
        reader.page(["p"], 0, 2, limit=1, bytes_max=1)


DAMAGE = [
    ("UPDATE head SET partitions_indexed_to = 40", "index", 21, "not listed under 'p'"),
    ("DELETE FROM event_partitions WHERE committed_id = 6", "index", 6, "not listed under 'p'"),
    ("UPDATE partitions SET name = 'r' WHERE name = 'q'", "index", 22, "not listed under 'q'"),
    ("UPDATE head SET partitions_indexed_to = 41", "head", None, "index of partitions is said to have all"),
    ("UPDATE head SET ids_indexed_to = 41", "head", None, "index of ids is said to have all"),
]


@pytest.mark.parametrize(("sql", "kind", "committed_id", "message"), DAMAGE)
def test_damage_on_both_sides_of_the_mark_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    kind: str,
    committed_id: int | None,
    message: str,
) -> None:
    monkeypatch.setattr(recent_partitions, "WAITING_MAX", 0)
    with closing(SqliteLog.open(tmp_path)) as log:
        for _ in range(2):
            append(log, [["p"], ["p", "q"]] * 10)
    assert state(tmp_path) == (30, 20)
    assert check_directory(tmp_path).ok
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute(sql)
    found = check_directory(tmp_path).findings
    assert (kind, committed_id) in [(f.kind, f.committed_id) for f in found if message in f.message], found
