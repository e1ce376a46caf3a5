"""A partition whose history has left the log, on its way into memory: from the archive, and nobody else waits."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.authority.logs import grow
from tests.authority.seat import candidate, push, put, seated
from tests.lake.lakes import HERE, export_to
from tests.waiting import until
from unisono.authority.states.load import LOADS_AT_ONCE
from unisono.authority.states.replay import AHEAD_EVENTS, SLICE_EVENTS, PartitionReplay
from unisono.authority.states.resident import States
from unisono.ipc.messages import BatchOutcome
from unisono.lake.cold.archive import Archive
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.model.model import open_model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, rewrite
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

EVENTS = 2 * AHEAD_EVENTS + 500
SHORT = tuple(f"short-{number}" for number in range(30))
SHORT_EVENTS = 40
HEAD = EVENTS + len(SHORT) * SHORT_EVENTS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a long partition and many short ones, and a lake that has all of it."""
    folder = tmp_path_factory.mktemp("made")
    log = SqliteLog.open(folder / "data")
    grow(log, "long", EVENTS)
    for name in SHORT:
        grow(log, name, SHORT_EVENTS)
    log.close()
    export_to(Lake.at(str(folder / "lake")), folder / "data")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def log(folder: Path) -> Iterator[SqliteLog]:
    opened = SqliteLog.open(folder / "data")
    opened.set_archive(str(folder / "lake"))
    yield opened
    opened.close()


def prune(log: SqliteLog, upto: int) -> None:
    while log.prune_batch(upto):
        pass


@pytest.fixture
def data(folder: Path) -> Path:
    """Nothing is left in the log."""
    opened = SqliteLog.open(folder / "data")
    opened.set_archive(str(folder / "lake"))
    prune(opened, HEAD)
    opened.close()
    return folder / "data"


def taken(history: PartitionReplay) -> list[Record]:
    """All of a history, slice by slice."""
    records: list[Record] = []
    while True:
        page = history.next_slice(allow_thread=True)
        if page is None:
            time.sleep(0.001)
            continue
        assert len(page.records) <= SLICE_EVENTS
        records += page.records
        if not page.has_more:
            return records


@pytest.mark.req("DUR-06")
@pytest.mark.parametrize("since", [0, 1_777, AHEAD_EVENTS])
@pytest.mark.parametrize("pruned_to", [0, 1, AHEAD_EVENTS, EVENTS - 1, HEAD])
def test_a_history_is_whole_wherever_the_seam_is(log: SqliteLog, since: int, pruned_to: int) -> None:
    expected = list(log.page(["long"], since, HEAD, limit=1 << 40, bytes_max=1 << 40).records)
    prune(log, pruned_to)
    archive = Archive()
    assert taken(PartitionReplay(log, archive, "long", since)) == expected
    archive.close()


@pytest.mark.req("DUR-06")
@pytest.mark.parametrize("seed", range(3))
def test_a_history_is_whole_while_the_log_leaves(log: SqliteLog, seed: int) -> None:
    expected = list(log.page(["long"], 0, HEAD, limit=1 << 40, bytes_max=1 << 40).records)
    chance, archive, pruned_to = random.Random(seed), Archive(), 0
    history = PartitionReplay(log, archive, "long", 0)
    records: list[Record] = []
    while True:
        if chance.random() < 0.5:
            pruned_to = min(HEAD, pruned_to + chance.randrange(800))
            prune(log, pruned_to)
        page = history.next_slice(allow_thread=True)
        if page is not None:
            records += page.records
            if not page.has_more:
                break
    assert records == expected
    archive.close()


@pytest.mark.req("DUR-06")
def test_others_commit_while_it_is_read_from_the_archive(data: Path) -> None:
    with seated(data) as seat:
        waiting, busy = seat.front.connect(), seat.front.connect()
        waiting.send(candidate(["long"], push("n0", "outline")), candidate(["long"], push("new", "outline")))
        commits = 0
        while not any(isinstance(m, BatchOutcome) and m.conn == waiting.conn for m in seat.front.received):
            assert busy.submit(candidate(["busy"], put("x", commits)))[0].status == "committed"
            commits += 1
        known, new = waiting.results()
        assert known.errors is not None, "judged on the whole of it: n0 is there"
        assert new.status == "committed"
        assert commits >= 5


def test_few_threads_read_for_many_partitions(data: Path) -> None:
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, sum(thread.name == "one shot" for thread in threading.enumerate()))
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with seated(data) as seat:
        callers = [seat.front.connect() for _ in SHORT]
        for name, caller in zip(SHORT, callers, strict=True):
            caller.send(candidate([name], push("new", "outline")))
        assert [caller.results()[0].status for caller in callers] == ["committed"] * len(SHORT)
        assert seat.stats().gauges["parked_requests"] == 0
    ended.set()
    watcher.join()
    assert 1 <= most <= LOADS_AT_ONCE


@pytest.mark.req("DUR-06")
def test_who_needs_an_archive_that_is_away_waits_for_it(
    data: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "lake").rename(folder / "away")
    with seated(data) as seat:
        waiting, busy = seat.front.connect(), seat.front.connect()
        waiting.send(candidate(["short-1"], push("new", "outline")))
        for number in range(20):
            assert busy.submit(candidate(["busy"], put("x", number)))[0].status == "committed"
        until(lambda: "'short-1' cannot be loaded" in caplog.text, "nobody has looked for it")
        assert seat.stats().gauges["parked_requests"] == 1
        (folder / "away").rename(folder / "lake")
        assert waiting.results()[0].committed_id == HEAD + 21
    assert "partition 'short-1' cannot be loaded, retrying in 1 s: events up to" in caplog.text


def loaded(states: States, partition: str) -> bytes:
    """A partition's state, once it is in memory."""
    states.reset_fold_budget()
    while not states.load(partition):
        states.advance()
        time.sleep(0.001)
    return pack(states._resident[partition].state.dump())


@pytest.mark.parametrize("forget", ["these", "all"])
def test_what_was_erased_is_not_read_again_from_an_older_lake(data: Path, folder: Path, forget: str) -> None:
    log, archive = SqliteLog.open(data), Archive()
    states = States(open_model(), log, bytes_max=1 << 30, snapshot_every=0, now_ms=lambda: 0, archive=archive)
    before, others = loaded(states, "short-3"), loaded(states, "short-4")
    lake = Lake.at(str(folder / "lake"))
    rows = lake.scan_arrow(["short-3"], columns=["committed_id"])
    erased = TombstoneTimes.of({id: 1 for batch in rows for id in batch.column(0).to_pylist()})
    for table in (BY_PARTITION, LOG):
        assert rewrite(HERE, lake, table, erased, {"short-3": 1}) == SHORT_EVENTS
    if forget == "these":
        states.forget(["short-3"])
    else:
        states = states.with_model(states.model)
    assert loaded(states, "short-3") != before
    assert loaded(states, "short-3") == pack(PartitionState().dump())
    assert loaded(states, "short-4") == others
    archive.close()
    log.close()
