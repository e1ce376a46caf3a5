"""Cold history: pages out of a lake, and readers that span lake and log, against the log before anything left it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake.cold.shapes import (
    ASKABLE,
    CACHE,
    EVENTS,
    ROOMS,
    Pruning,
    Shape,
    fresh,
    joined,
    mixed,
    question,
    same,
    sectioned,
    spread,
    walk,
)
from tests.lake.lakes import compact, export_to, vacuum
from tests.lake.s3 import object_store
from tests.pipeline.history import append
from tests.store.records import make_record
from unisono.lake.cold.archive import Archive, ArchivedReader, ArchiveFailed
from unisono.lake.cold.pages import LakePages
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.store.port import LogExtent, Record, StoreUnusable
from unisono.store.sqlite.log import SqliteLog, SqliteReader


@pytest.fixture
def reader(whole: Path) -> Iterator[SqliteReader]:
    opened = SqliteReader.open(whole)
    yield opened
    opened.close()


@pytest.fixture(
    scope="module", params=[fresh, spread, joined, mixed, sectioned], ids=lambda shape: shape.__name__
)
def lake(request: pytest.FixtureRequest, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = Lake.at(str(tmp_path_factory.mktemp("lake")))
    shape: Shape = request.param
    shape(made, whole)
    return made


# -- the lake --------------------------------------------------------------------------------------------------


@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize("cache", [CACHE, 0], ids=["cache", "no cache"])
def test_pages_are_those_of_the_log(lake: Lake, reader: SqliteReader, cache: int) -> None:
    pages, chance = LakePages(lake, cache), random.Random(f"pages {cache}")
    for _ in range(150 if cache else 20):
        names, since, upto, limit, bytes_max = question(chance, EVENTS)
        page = pages.page(names, since, upto, limit=limit, bytes_max=bytes_max)
        expected = reader.page(names, since, upto, limit=limit, bytes_max=bytes_max)
        assert same(page, expected), (names, since, upto, limit, bytes_max)
    pages.close()


@pytest.mark.req("EXT-22")
@pytest.mark.parametrize("cache", [CACHE, 0], ids=["cache", "no cache"])
def test_pages_backwards_are_those_of_the_log(lake: Lake, reader: SqliteReader, cache: int) -> None:
    pages, chance = LakePages(lake, cache), random.Random(f"newest {cache}")
    for _ in range(150 if cache else 20):
        (name, *_), _, upto, limit, bytes_max = question(chance, EVENTS)
        page = pages.newest_page(name, upto, limit=limit, bytes_max=bytes_max)
        expected = reader.newest_page(name, upto, limit=limit, bytes_max=bytes_max)
        assert same(page, expected), (name, upto, limit, bytes_max)
    pages.close()


@pytest.mark.req("DUR-06", "SYNC-01")
def test_scans_are_those_of_the_log(lake: Lake, reader: SqliteReader) -> None:
    pages, chance = LakePages(lake, CACHE), random.Random("scans")
    for _ in range(60):
        _, since, upto, limit, _ = question(chance, EVENTS)
        scanned = pages.page(None, since, upto, limit=limit, bytes_max=1 << 60)
        assert list(scanned.records) == list(reader.scan(since, upto, limit=limit))
    pages.close()


@pytest.mark.req("SYNC-10")
@pytest.mark.parametrize("names", [ROOMS[:1], ROOMS[:40]], ids=["one partition", "forty partitions"])
def test_a_history_read_page_by_page_decodes_each_row_group_once(
    lake: Lake, reader: SqliteReader, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = LakePages(lake, CACHE)
    decoded: list[object] = []
    read = pages._files._read

    def counted(file: Any, group: Any, columns: Any) -> Any:
        decoded.append((file.path, group.number, len(columns)))
        return read(file, group, columns)

    monkeypatch.setattr(pages._files, "_read", counted)
    assert walk(pages, names, limit=50) == list(
        reader.page(names, 0, EVENTS, limit=1 << 40, bytes_max=1 << 40).records
    )
    assert decoded
    assert len(decoded) == len(set(decoded))
    pages.close()


@pytest.mark.req("SYNC-10", "SYNC-12")
def test_a_history_of_a_thousand_partitions_goes_on_where_it_stands(
    lake: Lake, reader: SqliteReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, chance = LakePages(lake, CACHE), random.Random("a thousand")
    walks: list[object] = []
    follow = pages._walk

    def counted(name: str | None, since: int, upto: int) -> Any:
        walks.append(name)
        return follow(name, since, upto)

    monkeypatch.setattr(pages, "_walk", counted)
    names = (*ROOMS, *(f"absent-{number}" for number in range(1000 - len(ROOMS))))
    snapshot_starts = {name: chance.randrange(EVENTS) for name in chance.sample(names, 300)}
    for asked in ({}, snapshot_starts):
        walks.clear()
        got: list[Record] = []
        more = True
        while more:
            since = got[-1].committed_id if got else 0
            page = pages.page(names, since, EVENTS, limit=50, bytes_max=1 << 20, snapshot_starts=asked)
            got, more = [*got, *page.records], page.has_more
        expected = reader.page(names, 0, EVENTS, limit=1 << 40, bytes_max=1 << 40, snapshot_starts=asked)
        assert got == list(expected.records)
        assert len(walks) == 1000, "no partition is begun anew for a later page"
    pages.close()


@pytest.mark.req("SYNC-10")
def test_a_page_opens_only_the_files_it_needs(whole: Path, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, whole, *range(200, EVENTS + 1, 200))
    pages = LakePages(lake, CACHE)
    for since, limit, files in ((0, 5, 4), (2_000, 5, 4), (EVENTS - 150, 500, 1)):
        page = pages.page(["room-001"], since, EVENTS, limit=limit, bytes_max=1 << 20)
        assert page.has_more == (limit == 5)
        assert 1 <= len(pages._files._open) <= files
        pages.close()


def test_what_is_kept_and_what_is_open_stays_within_bounds(lake: Lake, reader: SqliteReader) -> None:
    pages, chance = LakePages(lake, 300_000), random.Random("bounds")
    for _ in range(60):
        names = chance.choices(ASKABLE, k=5)
        pages.page(names, chance.randrange(EVENTS), EVENTS, limit=100, bytes_max=1 << 20)
        kept = pages._files._kept
        assert sum(size for _, size in kept._items.values()) == kept._bytes
        assert kept._bytes <= 300_000 or len(kept._items) == 1
        assert len(pages._files._open) <= 32
    pages.close()


@pytest.mark.req("SYNC-01")
def test_large_events_are_cut_into_small_pieces(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path / "data")
    for first in range(1, 61, 20):
        log.begin([])
        log.commit(
            [
                make_record(
                    number, ("big", "other")[: 1 + number % 2], event=b'{"t":"%b"}' % (b"x" * 200_000)
                )
                for number in range(first, first + 20)
            ]
        )
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, tmp_path / "data")
    pages = LakePages(lake, 4 << 20)
    for bytes_max in (0, 200_000, 500_000, 1 << 20, 1 << 40):
        for since in (0, 7, 59):
            names = ["other", "big"]
            expected = log.page(names, since, 60, limit=500, bytes_max=bytes_max)
            assert same(pages.page(names, since, 60, limit=500, bytes_max=bytes_max), expected)
    log.close()
    pages.close()


def test_what_the_lake_has_not_is_refused(lake: Lake) -> None:
    pages = LakePages(lake, CACHE)
    with pytest.raises(LakeUnusable, match=f"ends at event {EVENTS}, {EVENTS + 1} was asked for"):
        pages.page(["plain"], 0, EVENTS + 1, limit=10, bytes_max=1 << 20)
    pages.close()


# -- the lake changes meanwhile --------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize("cache", [CACHE, 0], ids=["cache", "no cache"])
def test_compaction_and_vacuum_while_paging(
    whole: Path, reader: SqliteReader, tmp_path: Path, cache: int
) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    names = list(ROOMS if cache else ROOMS[:5])
    expected = list(reader.page(names, 0, EVENTS, limit=1 << 40, bytes_max=1 << 40).records)
    export_to(lake, whole, *range(500, 2_500, 500))
    pages = LakePages(lake, cache)
    records: list[Record] = []
    since, steps = 0, 0
    while since < EVENTS:
        page = pages.page(names, since, lake.head(), limit=100 if cache else 20, bytes_max=1 << 20)
        records += page.records
        since = page.records[-1].committed_id if page.has_more else lake.head()
        steps += 1
        if steps % 10 == 0:
            compact(lake, rows_per_file=2_000)
            vacuum(lake)
            export_to(lake, whole, min(EVENTS, lake.head() + 600))
    assert records == expected
    pages.close()


@pytest.mark.soak
@pytest.mark.req("DUR-06")
def test_a_lake_in_an_object_store(whole: Path, reader: SqliteReader) -> None:
    with object_store() as options:
        lake = Lake.at("s3://lake/history", options)
        export_to(lake, whole, 1_000, 2_000, 3_000)
        names, chance = list(ROOMS[:5]), random.Random("object store")
        archive = Archive("s3://lake/history", options)
        held = LogExtent(3_000, EVENTS)
        for step in range(12):
            if step == 6:
                compact(lake)
                vacuum(lake)
            since = chance.randrange(3_000)
            page = archive.page(held, names, since, 3_000, limit=100, bytes_max=1 << 20)
            assert same(page, reader.page(names, since, 3_000, limit=100, bytes_max=1 << 20))
    with pytest.raises(ArchiveFailed, match="the archive at s3://lake/history cannot be read") as failed:
        Archive("s3://lake/history", options | {"max_retries": "0"}).scan(held, 0, 10, limit=10)
    assert options["aws_secret_access_key"] not in str(failed.value)
    archive.close()


# -- lake and log ----------------------------------------------------------------------------------------------


@pytest.fixture
def pruning(whole: Path, lake: Lake, tmp_path: Path) -> Iterator[Pruning]:
    made = Pruning(whole, lake, tmp_path)
    yield made
    made.close()


@pytest.mark.req("DUR-06", "SYNC-01", "SYNC-03")
def test_pages_over_the_seam_are_those_of_the_whole_log(pruning: Pruning, reader: SqliteReader) -> None:
    chance = random.Random("seam")
    for pruned_to in (0, 1, 701, 2_222, EVENTS - 1, EVENTS):
        pruning.prune(pruned_to)
        for _ in range(30):
            names, since, upto, limit, bytes_max = question(chance, EVENTS)
            since = (
                chance.choice((since, max(0, pruned_to - chance.randrange(80)))) if since < upto else since
            )
            page = pruning.reader.page(names, since, upto, limit=limit, bytes_max=bytes_max)
            expected = reader.page(names, since, upto, limit=limit, bytes_max=bytes_max)
            assert same(page, expected), (pruned_to, names, since, upto, limit, bytes_max)
            scanned = pruning.reader.scan(since, upto, limit=limit)
            assert list(scanned) == list(reader.scan(since, upto, limit=limit))


@pytest.mark.req("EXT-22")
def test_a_history_backwards_over_the_seam_is_that_of_the_whole_log(
    pruning: Pruning, reader: SqliteReader
) -> None:
    chance = random.Random("seam backwards")
    for pruned_to in (0, 1, 2_222, EVENTS):
        pruning.prune(pruned_to)
        for name in (*chance.sample(ASKABLE, 6), ROOMS[0]):
            upto: int | None = EVENTS
            records: list[Record] = []
            while upto is not None:
                page = pruning.reader.newest_page(
                    name, upto, limit=chance.choice((1, 7, 90)), bytes_max=20_000
                )
                records += page.records
                assert page.records or not page.has_more
                upto = page.records[-1].committed_id - 1 if page.has_more else None
            whole = reader.page([name], 0, EVENTS, limit=1 << 40, bytes_max=1 << 40)
            assert records == list(reversed(whole.records)), (pruned_to, name)


@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize("seed", range(2))
def test_pruning_advances_while_pages_are_read(pruning: Pruning, reader: SqliteReader, seed: int) -> None:
    """Also in the middle of a page: whenever the reader asks the log anything, more of it may have left."""
    chance = random.Random(seed)
    left = 0

    def leave(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if chance.random() < 0.5:
                left = min(EVENTS, left + chance.randrange(200))
                pruning.prune(left)
            return ask(*arguments, **more)

        return asked

    for name in ("page", "scan", "extent"):
        setattr(pruning.hot, name, leave(getattr(pruning.hot, name)))
    while left < EVENTS:
        names = chance.choices(ASKABLE, k=chance.choice((1, 8)))
        since = 0
        records: list[Record] = []
        while True:
            page = pruning.reader.page(
                names, since, EVENTS, limit=chance.choice((20, 100)), bytes_max=1 << 20
            )
            records += page.records
            if not page.has_more:
                break
            since = page.records[-1].committed_id
        whole = reader.page(names, 0, EVENTS, limit=1 << 40, bytes_max=1 << 40)
        assert records == list(whole.records)


def test_a_partition_that_lost_nothing_does_not_touch_the_archive(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path / "data")
    append(log, 100)
    log.begin([])
    log.commit([make_record(101, ("new",))])
    log.set_archive(str(tmp_path / "nowhere"))
    while log.prune_batch(100):
        pass
    reader = ArchivedReader(log, Archive())
    assert [
        record.committed_id for record in reader.page(["new"], 0, 101, limit=9, bytes_max=99).records
    ] == [101]
    with pytest.raises(ArchiveFailed, match="no lake"):
        reader.page(["new", "room-001"], 0, 101, limit=9, bytes_max=99)
    reader.close()


def test_the_archive_that_was_chosen_wins_over_the_one_the_log_names(pruning: Pruning, lake: Lake) -> None:
    pruning.prune(500)
    pruning.log.set_archive("/nowhere")
    chosen = ArchivedReader(pruning.hot, Archive(lake.storage.location))
    assert len(chosen.scan(0, 500, limit=1_000)) == 500
    with pytest.raises(ArchiveFailed, match="/nowhere cannot be read"):
        pruning.reader.scan(0, 500, limit=1_000)
    pruning.log.set_archive(lake.storage.location)
    assert len(pruning.reader.scan(0, 500, limit=1_000)) == 500, "named rightly again, without a new start"


def test_a_lake_that_goes_away_and_comes_back(whole: Path, reader: SqliteReader, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    export_to(Lake.at(str(place)), whole, 2_000, EVENTS)
    made = Pruning(whole, Lake.at(str(place)), tmp_path)
    made.prune(EVENTS)
    expected = list(reader.page(ROOMS, 0, EVENTS, limit=100, bytes_max=1 << 20).records)
    assert list(made.reader.page(ROOMS, 0, EVENTS, limit=100, bytes_max=1 << 20).records) == expected
    place.rename(tmp_path / "away")
    with pytest.raises(ArchiveFailed, match=f"events up to {EVENTS} have left the log, and the archive at "):
        made.reader.page(ROOMS, 2_500, EVENTS, limit=100, bytes_max=1 << 20)
    (tmp_path / "away").rename(place)
    for since in (0, 2_500):
        page = made.reader.page(ROOMS, since, EVENTS, limit=100, bytes_max=1 << 20)
        assert list(page.records) == list(
            reader.page(ROOMS, since, EVENTS, limit=100, bytes_max=1 << 20).records
        )
    made.close()


def test_what_left_and_cannot_be_read_is_told_at_the_start(lake: Lake, tmp_path: Path) -> None:
    Archive().last_pruned_event(LogExtent(0, 10))
    Archive().last_pruned_event(LogExtent(EVENTS, EVENTS, lake.storage.location))
    for archive, says in (
        (None, "names no archive: set `archive`"),
        (str(tmp_path), "there is no lake at"),
    ):
        with pytest.raises(StoreUnusable, match=says):
            Archive().last_pruned_event(LogExtent(5, 10, archive))
    with pytest.raises(StoreUnusable, match=f"the lake ends at event {EVENTS}, {EVENTS + 1} was asked for"):
        Archive().last_pruned_event(LogExtent(EVENTS + 1, EVENTS + 1, lake.storage.location))
