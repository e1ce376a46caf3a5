"""What every log keeps, whatever it is built on. An engine inherits `LogContract` and says how to open one."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import pytest

from tests.store.records import append, append_many, make_record
from unisono.protocol.codec import encode_event
from unisono.store.browse import PartitionSize
from unisono.store.port import CommitLog, LogReader, Page, Record, Snapshot, StorageError, WirePage

NO_LIMIT: dict[str, Any] = {"limit": 1_000_000, "bytes_max": 1 << 40}


class Place(Protocol):
    """Somewhere a log lives. What it opened it closes at the end of the test, if the test did not."""

    def writer(self) -> CommitLog: ...

    def reader(self) -> LogReader: ...


def sent(page: WirePage) -> list[Any]:
    """The events of a page, as a client reads them."""
    return [json.loads(event) for event in page.events]


def in_wire_form(records: Sequence[Record]) -> list[Any]:
    return [
        json.loads(
            encode_event(r.committed_id, r.id, r.client_id, r.partitions, r.event, r.status_updated_at)
        )
        for r in records
    ]


class LogContract:
    """Inherit, and override `place`."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    def test_partitions_are_listed_by_prefix_with_their_newest_events(self, place: Place) -> None:
        log = place.writer()
        reader: Any = place.reader()
        assert reader.names_from("", "", 10) == []
        assert reader.partition_size("a", 10) == PartitionSize(0, 0, 0)
        names = ["a", "a\x00", "a\x01", "ab", "b", "\U0001d518"]
        append(log, [[name] for name in names] + [["ab", "b"]] * 4)
        assert sorted(reader.names_from("", "", 10)) == sorted(names)
        assert sorted(reader.names_from("a", "", 10)) == ["a", "a\x00", "a\x01", "ab"]
        assert reader.names_from("c", "", 10) == []
        walked: list[str] = []
        while some := reader.names_from("a", walked[-1] if walked else "", 1):
            walked += some
        assert sorted(walked) == ["a", "a\x00", "a\x01", "ab"]
        assert reader.partition_size("ab", 100) == PartitionSize(5, 4, 10)
        assert reader.partition_size("ab", 2) == PartitionSize(2, 9, 10)
        assert reader.newest_ids("ab", 9, 3) == [9, 8, 7]
        assert reader.newest_ids("unknown", 9, 3) == []

    def test_every_partition_is_named_once(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        log = place.writer()
        reader: Any = place.reader()
        assert [*reader.partition_names()] == []
        names = ["b", "a", "\x00", "é", "Z" * 128, "\U0001d518", *(f"n{number}" for number in range(20))]
        append(log, [[name] for name in names] + [["a", "b"]] * 5)
        assert sorted(reader.partition_names()) == sorted(names)
        monkeypatch.setattr(sys.modules[type(reader).__module__], "NAMES_READ_MAX", 3)
        assert sorted(reader.partition_names()) == sorted(names)

    @pytest.mark.req("AUTH-10", "EXT-03")
    def test_authors_are_stored_and_sent_to_those_who_ask(self, place: Place) -> None:
        log, reader = place.writer(), place.reader()
        odd = '{"claims":{"name":"\\u0000 \\"é\\\\"},"user_id":"ann"}'
        records = [make_record(n, ("p",), author=odd if n % 2 else "") for n in range(1, 6)]
        log.begin([])
        log.commit(records)
        many = ["p", *(f"q{n}" for n in range(40))]
        for source in (log, reader):
            assert list(source.scan(0, 9, limit=9)) == records
            for names in (["p"], many):
                assert list(source.page(names, 0, 9, **NO_LIMIT).records) == records
                assert sent(source.wire_page(names, 0, 9, **NO_LIMIT)) == in_wire_form(records)
                full = sent(source.wire_page(names, 0, 9, **NO_LIMIT, authors=True))
                assert full == [
                    plain | (json.loads(record.author) if record.author else {})
                    for plain, record in zip(in_wire_form(records), records, strict=True)
                ]

    # Order and identity

    @pytest.mark.req("ORD-01")
    def test_a_new_log_is_empty(self, place: Place) -> None:
        log = place.writer()
        assert log.head() == 0
        assert log.begin(["a"]).known == {}
        log.abandon()
        assert log.scan(0, 10, limit=10) == []
        assert log.page(["p"], 0, 10, limit=10, bytes_max=100) == Page((), has_more=False)
        assert log.snapshot("p", 1) is None

    @pytest.mark.req("ORD-01")
    def test_ids_go_on_from_the_head_across_restarts(self, place: Place) -> None:
        for expected in (0, 3, 6):
            log = place.writer()
            assert log.head() == expected
            assert log.begin([]).head == expected
            log.abandon()
            append(log, [["p"]] * 3)
            log.close()
        assert [record.committed_id for record in place.reader().scan(0, 100, limit=100)] == list(
            range(1, 10)
        )

    @pytest.mark.req("ORD-01", "DUR-04")
    @pytest.mark.parametrize("ids", [[2], [1, 3], [2, 1], [1, 1], [0]])
    def test_a_group_with_other_ids_than_the_next_is_refused(self, place: Place, ids: list[int]) -> None:
        log = place.writer()
        log.begin([])
        with pytest.raises(StorageError, match="numbered from 1"):
            log.commit([make_record(committed_id, id=f"x{n}") for n, committed_id in enumerate(ids)])
        with pytest.raises(StorageError):
            log.begin([])
        log.close()
        assert place.writer().scan(0, 10, limit=10) == []

    @pytest.mark.req("ENV-07")
    @pytest.mark.parametrize(
        ("times", "expected"),
        [
            ([10, 20, 30, 40], 2),
            ([10, 20, 20, 20], 4),
            ([30, 40, 50, 60], 0),
            ([10, 900, 20, 30], 3),
            ([10, 900, 900, 30], 1),
            ([10, 20, 900, 900], 2),
            ([900, 900, 900, 900], 0),
            ([10, 30, 10, 10], 1),
            ([10, 20, 20, 20, 20, 20], 4),
        ],
    )
    def test_what_is_old_is_told_whatever_a_wrong_clock_has_said(
        self, place: Place, times: list[int], expected: int
    ) -> None:
        log = place.writer()
        first = log.begin([]).head + 1
        log.commit(
            [
                msgspec.structs.replace(make_record(committed_id), status_updated_at=time)
                for committed_id, time in enumerate(times, first)
            ]
        )
        assert log.last_before(30, 100, 4) == place.reader().last_before(30, 100, 4) == expected

    @pytest.mark.req("ORD-03", "ORD-05", "DUR-01")
    def test_a_committed_id_is_known_for_ever(self, place: Place) -> None:
        log = place.writer()
        first, second = append(log, [["p"], ["q"]])
        log.close()
        log = place.writer()
        known = log.begin([second.id, "never", first.id]).known
        log.abandon()
        assert set(known) == {first.id, second.id}
        for record in (first, second):
            what = known[record.id]
            assert (what.committed_id, what.hash) == (record.committed_id, record.hash)
            assert (what.client_id, what.status_updated_at) == (record.client_id, record.status_updated_at)

    @pytest.mark.req("ORD-03", "DUR-04")
    @pytest.mark.parametrize("ids", [("old",), ("new", "new")])
    @pytest.mark.parametrize("asked", [True, False])
    def test_an_id_is_never_committed_twice(self, place: Place, ids: tuple[str, ...], asked: bool) -> None:
        """The authority does not send such a group; the log does not rely on it."""
        log = place.writer()
        log.begin(["old"])
        log.commit([make_record(1, id="old")])
        log.begin(ids if asked else [])
        with pytest.raises(StorageError):
            log.commit([make_record(2 + n, id=id) for n, id in enumerate(ids)])
        assert place.reader().head() == 1

    @pytest.mark.req("SUBMIT-08", "ORD-01")
    def test_an_abandoned_group_leaves_nothing_and_uses_no_id(self, place: Place) -> None:
        log = place.writer()
        append(log, [["p"]])
        log.begin(["a"])
        log.abandon()
        log.begin(["a"])
        log.commit([])
        assert log.head() == 1
        assert append(log, [["p"]])[0].committed_id == 2

    @pytest.mark.req("ORD-02")
    @pytest.mark.parametrize("absent", [0, 40], ids=["few partitions", "many partitions"])
    def test_a_reader_never_sees_a_smaller_id_appear(self, place: Place, absent: int) -> None:
        log, reader = place.writer(), place.reader()
        stop = threading.Event()
        views: list[list[int]] = []

        def watch() -> None:
            while not stop.is_set():
                # Beyond the head on purpose, over a partition that comes into being meanwhile.
                asked = ["p", "q", "late", *(f"absent-{number}" for number in range(absent))]
                page = reader.page(asked, 0, 10_000, **NO_LIMIT)
                views.append([record.committed_id for record in page.records])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for n in range(60):
                append(log, [["p"], ["q"], ["late", "p"] if n > 30 else ["q"]])
        finally:
            stop.set()
            watcher.join()
        for view in views:
            assert view == list(range(1, len(view) + 1))
        assert [len(view) for view in views] == sorted(len(view) for view in views)

    def test_time_goes_on_across_restarts(self, place: Place) -> None:
        log = place.writer()
        assert log.last_status_updated_at() == 0
        last = append(log, [["p"]] * 3)[-1]
        log.close()
        assert place.writer().last_status_updated_at() == last.status_updated_at

    # Records

    @pytest.mark.req("ORD-06", "PART-03")
    def test_a_record_comes_back_as_it_was(self, place: Place) -> None:
        odd = "a\0b\u2028\x7f\U0001f600é\"\\'%"
        records = [
            make_record(1, (odd, "z"), id=odd, client_id=odd, event=b'{"\\u0000":"\xf0\x9f\x98\x80"}'),
            make_record(2, ("1",), id="1", event=b"{}"),
            make_record(3, ("01",), id="01", event=b'{"big":"%b"}' % (b"x" * 1_000_000)),
            make_record(4, tuple(f"{n:02}" for n in range(64)), id="é" * 64),
        ]
        log = place.writer()
        log.begin([])
        log.commit(records)
        log.close()
        log, reader = place.writer(), place.reader()
        assert list(reader.scan(0, 10, limit=10)) == records
        assert list(reader.page([odd], 0, 10, **NO_LIMIT).records) == records[:1]
        assert list(reader.page(["1"], 0, 10, **NO_LIMIT).records) == records[1:2]
        for source in (log, reader):
            assert sent(source.wire_page([odd, "01"], 0, 10, **NO_LIMIT)) == in_wire_form(
                [records[0], *records[2:]]
            )
        assert set(log.begin([record.id for record in records]).known) == {record.id for record in records}
        log.abandon()

    # Pages

    @pytest.mark.req("SYNC-01", "SYNC-03", "SYNC-12", "PART-01")
    @pytest.mark.parametrize("limit", [7, 50, 1000])
    def test_a_history_of_a_thousand_partitions_page_by_page(self, place: Place, limit: int) -> None:
        chance = random.Random(limit)
        dense, rare = [f"dense-{n}" for n in range(5)], [f"rare-{n:03}" for n in range(400)]
        sets = [
            sorted({chance.choice(dense), chance.choice(rare), chance.choice(rare)}) for _ in range(1_200)
        ]
        log, reader = place.writer(), place.reader()
        history = append(log, sets)
        asked = sorted([*dense[:3], *rare[:300], *(f"{n:0120}-absent" for n in range(697))])
        for snapshot_starts in ({}, {name: chance.randint(0, 1_300) for name in chance.sample(asked, 500)}):
            due = [
                each
                for each in history
                if any(
                    name in asked and each.committed_id > snapshot_starts.get(name, 0)
                    for name in each.partitions
                )
            ]
            got: list[Record] = []
            since, more = 0, True
            while more:
                page = reader.page(
                    asked, since, 1_200, limit=limit, bytes_max=1 << 20, snapshot_starts=snapshot_starts
                )
                assert len(page.records) <= limit
                got += page.records
                since, more = got[-1].committed_id, page.has_more
                append(log, [[chance.choice(dense)]] * (len(got) % 50 == 0))  # above the watermark
            assert got == due

    @pytest.mark.req("SYNC-12")
    def test_snapshots_of_many_partitions_at_once(self, place: Place) -> None:
        log, reader = place.writer(), place.reader()
        odd = "a\0b\1"
        log.put_snapshots(
            [Snapshot(name, at, 1, b"x" * at, 5) for name, at in (("p", 10), (odd, 20), ("q", 30))]
        )
        log.put_snapshots([Snapshot("r", 40, 2, b"{}", 5)])
        asked = ["absent", odd, "p", "r"]
        assert reader.snapshot_sizes(asked, 1) == {"p": (10, 10), odd: (20, 20)}
        found = sorted(reader.snapshots_of(asked, 1), key=lambda each: each.committed_id)
        assert found == [Snapshot("p", 10, 1, b"x" * 10, 5), Snapshot(odd, 20, 1, b"x" * 20, 5)]
        assert reader.snapshot_sizes(asked, 3) == {}

    @pytest.mark.req("SYNC-01", "SYNC-03")
    def test_pages_are_what_a_look_at_every_record_gives(self, place: Place) -> None:
        chance = random.Random(11)
        names = [f"n{n}" for n in range(12)]
        log, reader = place.writer(), place.reader()
        history: list[Record] = []
        for _ in range(20):
            sets = [sorted(chance.sample(names, chance.randint(1, 4))) for _ in range(15)]
            history += append(log, sets)
        for _ in range(400):
            since, upto = chance.randint(-1, 310), chance.randint(0, 310)
            asked = [*chance.sample(names, chance.randint(1, 12)), "absent", "absent"]
            limit, bytes_max = chance.choice([1, 3, 50, 1000]), chance.choice([1, 200, 1 << 30])
            due = [r for r in history if since < r.committed_id <= upto and set(r.partitions) & set(asked)]
            for source in (log, reader):
                page = source.page(asked, since, upto, limit=limit, bytes_max=bytes_max)
                size = sum(len(record.event) for record in page.records)
                assert list(page.records) == due[: len(page.records)]
                assert page.has_more == (len(page.records) < len(due))
                assert len(page.records) <= limit
                assert size <= bytes_max or len(page.records) == 1
                if page.has_more and len(page.records) < limit:
                    assert size + len(due[len(page.records)].event) > bytes_max
                wired = source.wire_page(asked, since, upto, limit=limit, bytes_max=bytes_max)
                assert sent(wired) == in_wire_form(page.records)
                assert wired.committed_ids == [record.committed_id for record in page.records]
                assert wired.has_more == page.has_more

    @pytest.mark.req("EXT-20", "EXT-21")
    def test_pages_backwards_are_what_a_look_at_every_record_gives(self, place: Place) -> None:
        chance = random.Random(17)
        names = ["p", "q", "\x00", "é"]
        log, reader = place.writer(), place.reader()
        history: list[Record] = []
        for _ in range(10):
            history += append(log, [sorted(chance.sample(names, chance.randint(1, 3))) for _ in range(12)])
        for _ in range(200):
            name, upto = chance.choice([*names, "absent"]), chance.randint(-1, 130)
            limit, bytes_max = chance.choice([1, 3, 50, 1000]), chance.choice([1, 200, 1 << 30])
            due = [r for r in reversed(history) if r.committed_id <= upto and name in r.partitions]
            for source in (log, reader):
                page = source.newest_page(name, upto, limit=limit, bytes_max=bytes_max)
                size = sum(len(record.event) for record in page.records)
                assert list(page.records) == due[: len(page.records)]
                assert page.has_more == (len(page.records) < len(due))
                assert len(page.records) <= limit
                assert size <= bytes_max or len(page.records) == 1
                if page.has_more and len(page.records) < limit:
                    assert size + len(due[len(page.records)].event) > bytes_max
                wired = source.newest_wire_page(name, upto, limit=limit, bytes_max=bytes_max)
                assert sent(wired) == in_wire_form(page.records)
                assert wired.has_more == page.has_more

    @pytest.mark.req("SYNC-01", "SYNC-03")
    def test_following_the_pages_gives_everything_once(self, place: Place) -> None:
        log = place.writer()
        append_many(log, 250, ("p", "q"), group=25)
        since, seen = 0, []
        while True:
            page = log.page(["p", "q"], since, 240, limit=50, bytes_max=1 << 20)
            seen += [record.committed_id for record in page.records]
            since = seen[-1]
            if not page.has_more:
                break
        assert seen == list(range(1, 241))

    @pytest.mark.req("SYNC-01")
    def test_a_page_over_more_partitions_than_one_statement_takes(self, place: Place) -> None:
        log, reader = place.writer(), place.reader()
        names = [f"n{n:04}" for n in range(1_200)]
        history = append(log, [[names[n], names[-1 - n]] for n in range(600)])
        page = reader.page(names, 10, 500, limit=300, bytes_max=1 << 20)
        assert list(page.records) == history[10:310]
        assert page.has_more
        page = reader.page(names, 300, 500, limit=300, bytes_max=1 << 20)
        assert list(page.records) == history[300:500]
        assert not page.has_more

    def test_a_scan_is_a_stretch_of_the_log(self, place: Place) -> None:
        log, reader = place.writer(), place.reader()
        history = append(log, [["p"], ["q"], ["r"], ["p"]])
        assert list(reader.scan(1, 3, limit=10)) == history[1:3]
        assert list(reader.scan(0, 9, limit=2)) == history[:2]
        first, second = (len(record.event) for record in history[:2])
        assert list(reader.scan(0, 9, limit=9, bytes_max=1)) == history[:1]
        assert list(reader.scan(0, 9, limit=9, bytes_max=first)) == history[:1]
        assert list(reader.scan(0, 9, limit=9, bytes_max=first + 1)) == history[:2]
        assert list(reader.scan(1, 9, limit=9, bytes_max=second)) == history[1:2]
        assert list(reader.scan(4, 9, limit=2)) == []

    # Snapshots

    @pytest.mark.req("DUR-07")
    def test_the_newest_snapshot_of_each_model_version_is_kept(self, place: Place) -> None:
        log, reader = place.writer(), place.reader()
        append_many(log, 30)
        old, new = Snapshot("p", 10, 1, b"ten", 5), Snapshot("p", 20, 1, b"twenty", 6)
        other = Snapshot("p", 15, 2, b"fifteen", 7)
        log.put_snapshots([old, other])
        assert reader.snapshot("p", 1) == old
        log.put_snapshots([new])
        log.put_snapshots([old])
        assert reader.snapshot("p", 1) == new
        assert reader.snapshot("p", 2) == other
        assert reader.snapshot("p", 3) is None
        assert reader.snapshot("elsewhere", 1) is None

    def test_many_snapshots_at_once(self, place: Place) -> None:
        log = place.writer()
        append_many(log, 1)
        snapshots = [Snapshot(f"s{n}", 1, 1, bytes([n % 256]) * 50_000, n) for n in range(300)]
        log.put_snapshots(snapshots)
        assert [log.snapshot(f"s{n}", 1) for n in range(300)] == snapshots

    # Turns

    def test_calls_out_of_turn_are_refused_and_harm_nothing(self, place: Place) -> None:
        log = place.writer()
        with pytest.raises(StorageError, match="no group is open"):
            log.abandon()
        with pytest.raises(StorageError, match="no group is open"):
            log.commit([make_record(1)])
        log.begin([])
        with pytest.raises(StorageError, match="a group is still open"):
            log.begin([])
        with pytest.raises(StorageError, match="a group is still open"):
            log.maintain()
        with pytest.raises(StorageError, match="a group is still open"):
            log.put_snapshots([])
        log.commit([make_record(1)])
        assert log.head() == 1

    def test_a_closed_log_refuses_work(self, place: Place) -> None:
        log = place.writer()
        log.close()
        log.close()
        with pytest.raises(StorageError):
            log.head()
        with pytest.raises(StorageError):
            log.maintain()
        with pytest.raises(StorageError):
            log.begin([])

    @pytest.mark.req("DUR-02")
    def test_an_open_group_is_gone_when_the_log_closes(self, place: Place) -> None:
        log = place.writer()
        append(log, [["p"]])
        log.begin(["a"])
        log.close()
        assert place.writer().head() == 1
