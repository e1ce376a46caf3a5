"""What pages and scans of every log keep; part of `LogContract`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import pytest

from tests.store.records import append, append_many, make_record
from unisono.protocol.codec import encode_event
from unisono.store.port import CommitLog, LogReader, Record, WirePage

NO_LIMIT: dict[str, Any] = {"limit": 1_000_000, "bytes_max": 1 << 40}


class Place(Protocol):
    """Somewhere a log lives. What it opened it closes at the end of the test, if the test did not."""

    def writer(self) -> CommitLog: ...

    def reader(self) -> LogReader: ...


def sent(page: WirePage) -> list[Any]:
    """The events of a page, as a client reads them."""
    events: list[Any] = json.loads(b"[%b]" % page.events)
    assert len(events) == page.count
    return events


def submission_of(record: Record) -> tuple[str, int]:
    return record.client_id, record.status_updated_at


def in_wire_form(records: Sequence[Record]) -> list[Any]:
    return [
        json.loads(
            encode_event(r.committed_id, r.id, r.client_id, r.partitions, r.event, r.status_updated_at)
        )
        for r in records
    ]


class PageContract:
    """Inherited by `LogContract`."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

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
                assert wired.last == (page.records[-1].committed_id if page.records else since)
                assert wired.has_more == page.has_more

    @pytest.mark.req("SYNC-01")
    def test_a_page_of_partitions_that_nobody_has_written_to_is_empty(self, place: Place) -> None:
        log, reader = place.writer(), place.reader()
        append(log, [["p"]] * 3)
        for source in (log, reader):
            for names in (["absent"], ["absent", "other"], [f"n{n}" for n in range(40)]):
                for whole in (False, True):
                    page = source.wire_page(names, 1, 3, **NO_LIMIT, whole_batches=whole)
                    assert page == WirePage(b"", 0, 1, has_more=False)

    @pytest.mark.req("EXT-13")
    @pytest.mark.parametrize("others", [0, 40])
    def test_a_page_ends_between_two_batches_where_that_leaves_half_of_it(
        self, place: Place, others: int
    ) -> None:
        chance = random.Random(5)
        log, reader = place.writer(), place.reader()
        history: list[Record] = []
        while len(history) < 200:
            first, client = len(history) + 1, chance.choice("ab")
            batch = [
                msgspec.structs.replace(
                    make_record(first + n, ("p",) if chance.random() < 0.8 else ("q", "r")),
                    client_id=client,
                    status_updated_at=make_record(first).status_updated_at,
                )
                for n in range(chance.choice([1, 1, 3, 8, 30]))
            ]
            log.begin([])
            log.commit(batch)
            history += batch
        for _ in range(150):
            since, upto = chance.randint(0, 150), chance.randint(100, 200)
            limit, bytes_max = chance.choice([1, 7, 50]), chance.choice([300, 1 << 30])
            names = [*chance.choice([["p"], ["p", "q"], ["q", "r"]]), *(f"n{n}" for n in range(others))]
            for source in (log, reader):
                records = source.page(names, since, upto, limit=limit, bytes_max=bytes_max)
                wired = source.wire_page(
                    names, since, upto, limit=limit, bytes_max=bytes_max, whole_batches=True
                )
                due = list(records.records)
                if records.has_more:
                    last = due[-1]
                    whole = [r for r in due if submission_of(r) != submission_of(last)]
                    whole = due[: due.index(whole[-1]) + 1] if whole else due
                    due = whole if 2 * len(whole) >= len(due) else due
                assert sent(wired) == in_wire_form(due)
                assert wired.has_more == records.has_more
                assert wired.last == (due[-1].committed_id if due else since)

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
