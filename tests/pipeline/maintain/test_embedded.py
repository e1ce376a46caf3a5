"""Log maintainers: the same work on a log with a server, without one, with one that comes and goes, and shared."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, running, set_event
from tests.pipeline.watermarks import watermarks
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, append_many
from tests.store.sqlite.old_logs import make_version_1
from unisono.pipeline.errors import NoSuchStore
from unisono.pipeline.maintain import embedded
from unisono.pipeline.maintain.embedded import LogMaintainer, MaintenanceFailed, open_maintainer
from unisono.protocol.tombstones import tombstone
from unisono.store.cluster import ModelBundle
from unisono.store.port import LogExtent, Snapshot
from unisono.store.postgres.log import PostgresLog
from unisono.store.sqlite.log import SqliteLog, SqliteReader

__all__ = ["database", "postgres"]

LAKE = "file:///nowhere/lake"
STONE = tombstone(1_700_000_000_000)
EVENTS = 700


class Place:
    """A store with events in it, and a maintainer of it."""

    def __init__(self, uri: str, maintainer: LogMaintainer) -> None:
        self.uri = uri
        self.maintainer = maintainer


def fill_embedded(directory: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        append_many(log, EVENTS, ("p", "q"))
        log.record_model(ModelBundle(2, "digest", {"model.toml": b"x"}))


@pytest.fixture(params=["embedded", "shared"])
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str, stack: ExitStack) -> Place:
    uri = str(tmp_path / "data") if request.param == "embedded" else database
    if request.param == "embedded":
        fill_embedded(tmp_path / "data")
    else:
        with closing(PostgresLog.open(database, "a")) as log:
            append_many(log, EVENTS, ("p", "q"))
            log.publish_model(ModelBundle(2, "digest", {"model.toml": b"x"}))
    return Place(uri, stack.enter_context(closing(open_maintainer(uri))))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_every_maintainer_does_the_same(place: Place) -> None:
    maintainer = place.maintainer
    assert maintainer.extent() == LogExtent(0, EVENTS)
    assert maintainer.model_in_force() == ModelBundle(2, "digest", {"model.toml": b"x"})
    maintainer.put_snapshots([Snapshot(f"s{n}", n, 2, b"x" * 50_000, 1, "digest") for n in range(40)])
    maintainer.put_snapshots(
        [Snapshot("s39", 5, 2, b"older", 1, "digest"), Snapshot("p", 600, 3, b"prepared", 1)]
    )
    assert watermarks(place.uri, 2, "digest") == {f"s{n}": n for n in range(40)}
    assert watermarks(place.uri, 3) == {"p": 600}
    for wrong, words in (
        (Snapshot("p", EVENTS + 1, 2, b"", 1), f"the log ends at {EVENTS}"),
        (Snapshot("p", 1, 1, b"", 1), "of model version 1, 2 is in force"),
        (Snapshot("p", 1, 2, b"", 1, "other"), r"of another content .*digest other, digest is in force"),
    ):
        with pytest.raises(MaintenanceFailed, match=words):
            maintainer.put_snapshots([wrong])
    with pytest.raises(MaintenanceFailed, match="no archive is set"):
        maintainer.prune_step(100)
    maintainer.set_archive(LAKE)
    gone = 0
    while step := maintainer.prune_step(650):
        gone += step
    assert gone == 650
    assert maintainer.extent() == LogExtent(650, EVENTS, LAKE)
    assert maintainer.erase([(n, STONE) for n in range(600, EVENTS + 1)], ["s1"]) == 50
    assert maintainer.erase([(EVENTS, STONE)]) == 0
    assert watermarks(place.uri, 3) == {}
    assert "s1" not in watermarks(place.uri, 2, "digest")
    with pytest.raises(MaintenanceFailed, match="no event 701"):
        maintainer.erase([(EVENTS + 1, STONE)])
    maintainer.put_snapshots([Snapshot("p", EVENTS, 2, b"folded anew", 1, "digest")])
    with closing(open_maintainer(place.uri)) as other:
        other.erase([], ["p"])
    with pytest.raises(MaintenanceFailed, match="fold them again"):
        maintainer.put_snapshots([Snapshot("p", EVENTS, 2, b"folded before that", 1, "digest")])
    assert "p" not in watermarks(place.uri, 2, "digest")
    maintainer.reclaim()
    assert maintainer.extent() == LogExtent(650, EVENTS, LAKE)


def test_no_store_no_maintainer(tmp_path: Path, postgres: Postgres) -> None:
    with pytest.raises(NoSuchStore, match="holds no log"):
        open_maintainer(str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists(), "and none was made"
    with pytest.raises(NoSuchStore, match="unisono db init"):
        open_maintainer(postgres.dsn())
    with pytest.raises(NoSuchStore, match="is not a store"):
        open_maintainer("mysql://h/db")


def test_without_a_server_what_was_erased_is_wiped_and_old_files_learn_to_shrink(tmp_path: Path) -> None:
    make_version_1(tmp_path)
    with closing(SqliteLog.open(tmp_path)):
        pass  # upgraded, as a server would do it
    size = (tmp_path / "log.db").stat().st_size
    with closing(open_maintainer(str(tmp_path))) as maintainer:
        maintainer.set_archive(LAKE)
        while maintainer.prune_step(290):
            pass
        maintainer.erase([(295, STONE)])
        maintainer.reclaim()
    assert (tmp_path / "log.db").stat().st_size < size
    with closing(SqliteLog.open(tmp_path)) as log:
        left = log.reclaim()
        assert (left.free_pages, left.unclean) == (0, False)


def test_a_server_may_start_and_end_in_the_middle(tmp_path: Path) -> None:
    """Whoever has the log does the work; nothing is done twice and nothing is left out."""
    data = tmp_path / "data"
    fill_embedded(data)
    with closing(open_maintainer(str(data))) as maintainer:
        maintainer.put_snapshots([Snapshot("p", 100, 2, b"x", 1, "digest")])
        server = Server(data, "--model", "open", "--access-default", "allow")
        starting = threading.Thread(target=server.start)
        starting.start()
        erased = 0
        while starting.is_alive():  # the lock changes hands meanwhile
            if erased < EVENTS // 2:
                erased += maintainer.erase([(100 + erased, STONE)])
            else:
                starting.join()
        try:
            assert maintainer.erase([(100 + erased, STONE)]) == 1
            server.kill()
            assert maintainer.erase([(101 + erased, STONE)]) == 1, "what it left behind does not mislead"
        finally:
            server.kill()
        with closing(SqliteReader.open(data)) as reader:
            stones = [r.committed_id for r in reader.scan(0, EVENTS, limit=EVENTS) if r.event == STONE]
        assert stones == list(range(100, 102 + erased))


def test_a_log_in_use_by_who_answers_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SERVER_WAIT_S", 0.3)
    fill_embedded(tmp_path)
    with closing(open_maintainer(str(tmp_path))) as maintainer, closing(SqliteLog.open(tmp_path)) as log:
        with pytest.raises(MaintenanceFailed, match=r"in use by process .*; its admin port"):
            maintainer.set_archive(LAKE)
        append(log, [["p"]])
        assert maintainer.extent().head == EVENTS + 1


def test_the_token_of_an_earlier_server_is_not_used(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        with server.client("ann") as peer:
            peer.commit(["p"], set_event("n", 1))
        with closing(open_maintainer(str(server.data))) as maintainer:
            maintainer.set_archive("file:///first")
            server.kill()
            server.start()
            maintainer.set_archive("file:///second")
            assert maintainer.extent() == LogExtent(0, 1, "file:///second")
