"""A server most of whose history has left the log: clients get exactly the log, whatever happens to the archive."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server, item, running, tree_event
from tests.behaviour.server.test_history import ask, reading, walk
from tests.forking import run
from tests.lake.lakes import compact, export_to, vacuum
from tests.lake.s3 import object_store
from tests.pipeline.history import NAMES, append, make_store
from tests.store.postgres.server import database, postgres
from unisono.lake.lake import Lake
from unisono.pipeline.maintain.embedded import LogMaintainer, open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record
from unisono.store.postgres.log import PostgresLog
from unisono.store.sqlite.log import SqliteLog

__all__ = ["database", "postgres"]

EVENTS = 2_000
PRUNED_TO = 1_800
ROOMS = tuple(f"room-{number:03d}" for number in range(50))
OPTIONS = ("--model", "open", "--access-default", "allow")

Event = dict[str, Any]


class Place:
    """A data directory and its lake, and what the log held before any of it left: `complete` still does."""

    def __init__(self, folder: Path, records: list[Record], complete: Path | None = None) -> None:
        self.complete = complete or folder / "data"
        self.data = folder / "data"
        self.lake = folder / "lake"
        self.records = records

    def of(self, partitions: Sequence[str]) -> list[Event]:
        """What a client that asks for these must get, in the words of the wire."""
        wanted = set(partitions)
        return [told(record) for record in self.records if wanted & set(record.partitions)]

    def copy(self, folder: Path) -> Place:
        shutil.copytree(self.data, folder / "data")
        shutil.copytree(self.lake, folder / "lake")
        return Place(folder, list(self.records), self.complete)

    def prune(self, upto: int) -> None:
        """While no server runs."""
        log = SqliteLog.open(self.data)
        log.set_archive(str(self.lake))
        while log.prune_batch(upto):
            pass
        assert log.extent().pruned_to == upto
        log.close()


def told(record: Record) -> Event:
    return {
        "id": record.id,
        "client_id": record.client_id,
        "partitions": list(record.partitions),
        "committed_id": record.committed_id,
        "event": json.loads(record.event),
        "status_updated_at": record.status_updated_at,
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The log still has everything, and the lake too: some of it compacted, some fresh."""
    folder = tmp_path_factory.mktemp("exported")
    place = Place(folder, make_store(folder / "data", EVENTS))
    lake = Lake.at(str(place.lake))
    export_to(lake, place.data, 450, 1_000)
    compact(lake)
    export_to(lake, place.data, 1_750, EVENTS)
    return place


@pytest.fixture(scope="module")
def mostly_gone(exported: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same, and most of it has left the log."""
    place = exported.copy(tmp_path_factory.mktemp("pruned"))
    place.prune(PRUNED_TO)
    return place


@pytest.fixture
def place(exported: Place, tmp_path: Path) -> Place:
    """The whole log, to be changed."""
    return exported.copy(tmp_path)


@pytest.fixture
def pruned(mostly_gone: Place, tmp_path: Path) -> Place:
    """The pruned log, to be changed."""
    place = mostly_gone.copy(tmp_path)
    place.prune(PRUNED_TO)  # it is: only the archive has another place
    return place


@pytest.fixture(scope="module")
def served(mostly_gone: Place) -> Iterator[tuple[Server, Place]]:
    """A server on the pruned log, for tests that change nothing."""
    with running(mostly_gone.data, *OPTIONS) as server:
        yield server, mostly_gone


# -- exactly the log -------------------------------------------------------------------------------------------


@pytest.mark.req("DUR-06", "SYNC-01", "SYNC-03", "SYNC-04")
@pytest.mark.parametrize(
    "partitions",
    [ROOMS[:1], NAMES, (*ROOMS, *NAMES), ("never used",)],
    ids=["one", "awkward names", "all", "none"],
)
def test_a_client_at_0_gets_exactly_the_log(
    served: tuple[Server, Place], who: str, partitions: tuple[str, ...]
) -> None:
    server, place = served
    events: list[Event] = []
    since = 0
    with server.client(who) as client:
        while True:
            page = client.sync(partitions, since, limit=150)
            events += page["events"]
            assert page["sync_to_committed_id"] == EVENTS
            since = page["next_since_committed_id"]
            if not page["has_more"]:
                break
            assert since == page["events"][-1]["committed_id"]
    assert since == EVENTS
    assert events == place.of(partitions)
    assert server.metric("unisono_sync_archive_pages_total") > 0 or not events


@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize(
    "since", [PRUNED_TO - 30, PRUNED_TO - 1, PRUNED_TO, PRUNED_TO + 1, EVENTS - 1, EVENTS]
)
def test_a_client_near_the_seam_gets_what_follows(served: tuple[Server, Place], who: str, since: int) -> None:
    server, place = served
    expected = [event for event in place.of(ROOMS) if event["committed_id"] > since]
    with server.client(who) as client:
        assert client.history(ROOMS, since, limit=50) == expected


@pytest.mark.req("EXT-22")
@pytest.mark.parametrize("partition", [ROOMS[0], NAMES[0], "never used"])
def test_history_backwards_is_exactly_the_log(served: tuple[Server, Place], who: str, partition: str) -> None:
    server, place = served
    expected = place.of([partition])[::-1]
    with reading(server, who) as peer:
        assert walk(peer, partition, limit=17) == expected
        if expected:
            oldest = expected[-1]["committed_id"]
            assert ask(peer, partition, before=oldest + 1)["events"] == expected[-1:]
            assert ask(peer, partition, before=oldest)["next_before"] is None


@pytest.mark.req("EXT-22")
def test_an_archive_that_is_gone_ends_no_connection(pruned: Place, who: str) -> None:
    expected = pruned.of(ROOMS[:1])[::-1]
    hot = [event for event in expected if event["committed_id"] > PRUNED_TO]
    with running(pruned.data, *OPTIONS) as server, reading(server, who) as peer:
        pruned.lake.rename(pruned.lake.with_name("elsewhere"))
        page = ask(peer, ROOMS[0], limit=len(hot) + 5)
        assert page["events"] == hot
        assert page["next_before"] == hot[-1]["committed_id"]  # there is more, in the archive
        assert ask(peer, ROOMS[0], before=page["next_before"])["error"]["code"] == "server_error"
        pruned.lake.with_name("elsewhere").rename(pruned.lake)
        assert ask(peer, ROOMS[0], before=page["next_before"])["events"] == expected[len(hot) :][:50]


@pytest.mark.req("DUR-06", "SYNC-06")
def test_many_clients_at_once_and_what_is_committed_meanwhile(pruned: Place) -> None:
    with running(pruned.data, *OPTIONS) as server:
        histories: dict[int, list[Event]] = {}

        def read(number: int) -> None:
            rooms = ROOMS[number * 10 : number * 10 + 10]
            with server.client(f"reader-{number}") as client:
                histories[number] = client.history(rooms, limit=50)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(5)]
        for reader in readers:
            reader.start()
        with server.client("writer") as writer:
            for number in range(20):
                writer.commit(["elsewhere"], tree_event(f"x{number}"))
        for reader in readers:
            reader.join()
        for number, events in histories.items():
            assert events == pruned.of(ROOMS[number * 10 : number * 10 + 10])


# -- the log leaves while clients read -------------------------------------------------------------------------


@pytest.mark.req("DUR-06", "SYNC-01", "SYNC-04")
def test_pruning_compaction_and_vacuum_beside_clients_that_page(place: Place) -> None:
    with running(place.data, *OPTIONS) as server:
        ended = threading.Event()
        histories: list[tuple[tuple[str, ...], list[Event]]] = []
        failures: list[BaseException] = []

        def read(number: int) -> None:
            rooms = ROOMS[number * 15 : number * 15 + 15]
            try:
                with server.client(f"reader-{number}") as client:
                    histories.append((rooms, client.history(rooms, limit=50)))
                    while not ended.is_set():
                        histories.append((rooms, client.history(rooms, limit=50)))
            except BaseException as failure:
                failures.append(failure)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        maintainer = open_maintainer(sqlite_uri(place.data))
        maintainer.set_archive(str(place.lake))
        lake = Lake.at(str(place.lake))
        for upto in range(250, EVENTS + 1, 250):
            _prune(maintainer, upto)
            if upto % 500 == 0:
                compact(lake, rows_per_file=500 + upto)
                vacuum(lake)
        assert maintainer.extent().pruned_to == EVENTS
        maintainer.close()
        ended.set()
        for reader in readers:
            reader.join()
        assert failures == []
        with server.client("last") as client:
            histories.append((ROOMS[:30], client.history(ROOMS[:30])))
        assert len(histories) >= 4
        for rooms, events in histories:
            assert events == place.of(rooms)


def _prune(maintainer: LogMaintainer, upto: int) -> None:
    while maintainer.prune_step(upto):
        pass


# -- states ----------------------------------------------------------------------------------------------------


@pytest.mark.req("DUR-06")
def test_an_event_is_judged_on_history_that_has_left_the_log(pruned: Place) -> None:
    """No snapshot is there, as after a change of the model: archive and log make the state."""
    pushes = [r for r in pruned.records if b"treePush" in r.event and len(r.partitions) == 1]
    late = pushes[-1]
    early = next(record for record in pushes if record.partitions == late.partitions)
    assert early.committed_id < PRUNED_TO < late.committed_id
    with running(pruned.data, *OPTIONS) as server, server.client("writer") as writer:
        for record in (early, late):
            known = json.loads(record.event)["payload"]["value"]["id"]
            (result,) = writer.submit(item(late.partitions, tree_event(known, "doc")))
            assert result["status"] == "rejected", "it is there already"
            assert result["errors"][0]["field"] == "event.payload.value.id"
        assert writer.commit(late.partitions, tree_event("new", "doc")) == EVENTS + 1


# -- the archive is not there ----------------------------------------------------------------------------------


@pytest.mark.req("DUR-06", "SYNC-01")
def test_an_archive_that_goes_away_is_never_a_hole(pruned: Place, tmp_path: Path) -> None:
    with running(pruned.data, *OPTIONS) as server:
        pruned.lake.rename(tmp_path / "away")
        with server.client("cold") as client:
            client.send("sync", {"partitions": list(ROOMS), "since_committed_id": 0})
            client.expect_error("server_error")
            client.expect_close(1011)
        with server.client("hot") as client:
            expected = [event for event in pruned.of(ROOMS) if event["committed_id"] > PRUNED_TO]
            assert client.history(ROOMS, PRUNED_TO) == expected, "what is in the log is served on"
            waiting = server.client("waiting")
            waiting.send("submit_events", {"events": [item(["room-001"], tree_event("late", "doc"))]})
            assert client.commit(["elsewhere"], tree_event("soon")) == EVENTS + 1
            waiting.expect_quiet()
        (tmp_path / "away").rename(pruned.lake)
        (result,) = waiting.expect("submit_events_result")["results"]
        assert result["committed_id"] == EVENTS + 2
        waiting.close()
        with server.client("cold") as client:
            assert client.history(ROOMS, limit=1_000)[: len(pruned.of(ROOMS))] == pruned.of(ROOMS)
        assert server.metric("unisono_sync_pages_failed_total") == 1
        assert server.stop() == 0
    assert "the archive at" in server.log.read_text()


def test_a_server_does_not_start_without_its_archive(pruned: Place, tmp_path: Path) -> None:
    pruned.lake.rename(tmp_path / "away")
    refused(
        pruned,
        f"events up to {PRUNED_TO} have left the log, and the archive at {pruned.lake} cannot be read: "
        f"there is no lake at {pruned.lake}",
    )
    with running(pruned.data, *OPTIONS, "--archive", str(tmp_path / "away")) as server:
        with server.client("reader") as client:
            assert client.history(ROOMS, limit=1_000) == pruned.of(ROOMS), (
                "the setting wins over what the log names"
            )
        assert server.stop() == 0


def test_an_archive_in_an_object_store(pruned: Place) -> None:
    with object_store() as options:
        export_to(Lake.at("s3://lake/history", options), pruned.complete)
        environment = os.environ | {
            "UNISONO_ARCHIVE": "s3://lake/history",
            "UNISONO_ARCHIVE_OPTIONS": ",".join(f"{key}={value}" for key, value in options.items()),
        }
        with running(pruned.data, *OPTIONS, env=environment) as server:
            with server.client("reader") as client:
                assert client.history(ROOMS[:10], limit=500) == pruned.of(ROOMS[:10])
            assert server.stop() == 0
        assert options["aws_secret_access_key"] not in server.log.read_text()


def test_a_server_does_not_start_on_the_archive_of_another_log(pruned: Place, tmp_path: Path) -> None:
    make_store(tmp_path / "other", EVENTS, seed=2)
    export_to(Lake.at(str(tmp_path / "others")), tmp_path / "other")
    refused(
        pruned,
        f"the archive at {tmp_path / 'others'} is of another log",
        "--archive",
        str(tmp_path / "others"),
    )
    export_to(Lake.at(str(tmp_path / "short")), tmp_path / "other", PRUNED_TO - 1)
    refused(
        pruned,
        f"the lake ends at event {PRUNED_TO - 1}, {PRUNED_TO} was asked for",
        "--archive",
        str(tmp_path / "short"),
    )


def refused(place: Place, says: str, *options: str) -> None:
    """The server ends at once with code 2 and these words."""
    secret = place.data.parent / "secret"
    secret.write_bytes(b"x" * 64)
    ended = run(
        "serve", "--data", place.data, "--port", "0", "--admin-port", "0",
        "--jwt-secret-file", secret, *OPTIONS, *options,
    )  # fmt: skip
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_whose_log_is_whole_loads_nothing_of_a_lake(place: Place) -> None:
    with running(place.data, *OPTIONS, "--archive", str(place.lake)) as server:
        with server.client("reader") as client:
            assert client.history(ROOMS, limit=1_000) == place.of(ROOMS)
        for pid in (server.process.pid, *server.children()):
            assert "libarrow" not in Path(f"/proc/{pid}/maps").read_text()


# -- a shared log ----------------------------------------------------------------------------------------------


@pytest.mark.req("DUR-06", "SYNC-01")
def test_history_that_has_left_a_shared_log(database: str, tmp_path: Path) -> None:
    log = PostgresLog.open(database, "writer")
    place = Place(tmp_path, append(log, 1_500))
    log.close()
    lake = Lake.at(str(place.lake))
    export_to(lake, database, 600, 1_500)
    maintainer = open_maintainer(database)
    maintainer.set_archive(str(place.lake))
    _prune(maintainer, 700)
    with running(place.data, "--store", database, *OPTIONS) as server, server.client("reader") as client:
        assert client.history(ROOMS, limit=150) == place.of(ROOMS)
        pruner = threading.Thread(target=_prune, args=(maintainer, 1_400))
        pruner.start()
        while True:
            ended = not pruner.is_alive()
            assert client.history(ROOMS[:20], limit=50) == place.of(ROOMS[:20])
            if ended:
                break
        maintainer.close()
        known = next(r for r in place.records if b"treePush" in r.event and len(r.partitions) == 1)
        again = tree_event(json.loads(known.event)["payload"]["value"]["id"], "doc")
        (result,) = client.submit(item(known.partitions, again))
        assert result["status"] == "rejected", "judged on what has left"
