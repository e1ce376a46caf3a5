"""The log of a running server, kept beside it: events leave, snapshots come, text is erased, and commits go on."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.behaviour.server.harness import Server, item, running, set_event, tree_event
from tests.behaviour.server.reloading import run_reload, write_model
from tests.lake.lakes import export_to
from tests.pipeline.watermarks import watermarks
from tests.waiting import PATIENCE_S, until
from unisono.ipc.files import ADMIN_FILE
from unisono.lake.lake import Lake
from unisono.model.load import open_model
from unisono.model.model import COMPATIBILITY
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.node import admin
from unisono.pipeline.maintain.embedded import EmbeddedLogMaintainer, MaintenanceFailed
from unisono.protocol.tombstones import tombstone
from unisono.store.check import check_directory
from unisono.store.port import Snapshot
from unisono.store.sqlite.log import SqliteReader

LAKE = "file:///nowhere/lake"
STONE = tombstone(1_700_000_000_000)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Server]:
    """A server whose log a test may treat as it likes."""
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow") as started:
        yield started


@pytest.fixture
def maintainer(kept: Server) -> Iterator[EmbeddedLogMaintainer]:
    with closing(EmbeddedLogMaintainer(kept.data)) as maintainer:
        yield maintainer


def post(
    server: Server, order: str, body: bytes = b"", token: str | None = None
) -> tuple[int, dict[str, Any]]:
    if token is None:
        token = json.loads((server.data / ADMIN_FILE).read_text())["token"]
    request = urllib.request.Request(
        f"{server.admin}/orders/{order}", body, {"Authorization": f"Bearer {token}"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def post_endlessly(server: Server, length: int | None) -> tuple[int, dict[str, Any]]:
    """Say that so much will come, or say nothing and send until the server has had enough."""
    token = json.loads((server.data / ADMIN_FILE).read_text())["token"]
    place = urlsplit(server.admin)
    with closing(
        http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    ) as connection:
        connection.putrequest("POST", "/orders/snapshots")
        connection.putheader("Authorization", f"Bearer {token}")
        if length is not None:
            connection.putheader("Content-Length", str(length))
            connection.endheaders()
        else:
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            chunk = b"x" * (1 << 20)
            for _ in range(admin.MAX_COMMAND_BODY_BYTES // len(chunk) + 1):
                connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


class Load(threading.Thread):
    """A client that commits one event after the other until it is told to stop."""

    def __init__(self, server: Server, name: str, partitions: list[str]) -> None:
        super().__init__()
        self._server = server
        self._name = name
        self._partitions = partitions
        self.stop = threading.Event()
        self.committed: dict[int, str] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._server.client(self._name) as peer:
                for n in count():
                    if self.stop.is_set():
                        return
                    id = f"{self._name}-{n}"
                    names = [self._partitions[n % len(self._partitions)]]
                    self.committed[peer.commit(names, set_event("n", n), id)] = id
        except BaseException as error:
            self.failure = error


@pytest.mark.req("ORD-03", "ORD-04", "ORD-05", "DUR-05")
def test_events_leave_while_clients_commit(
    kept: Server, maintainer: EmbeddedLogMaintainer, tmp_path: Path
) -> None:
    loads = [Load(kept, f"load-{n}", [f"p{n}", "shared"]) for n in range(3)]
    for load in loads:
        load.start()
    with pytest.raises(MaintenanceFailed, match="no archive is set"):
        maintainer.prune_step(10)
    while maintainer.extent().head < 450:
        assert any(load.is_alive() for load in loads)
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, kept.data)
    maintainer.set_archive(lake.storage.location)
    gone = 0
    while step := maintainer.prune_step(400):
        gone += step
    maintainer.reclaim()
    for load in loads:
        load.stop.set()
        load.join()
    assert [load.failure for load in loads] == [None, None, None]
    committed = {number: id for load in loads for number, id in load.committed.items()}
    held = maintainer.extent()
    assert sorted(committed) == list(range(1, held.head + 1)), "no id lost, none given twice"
    assert (held.pruned_to, held.archive, gone) == (400, lake.storage.location, 400)
    report = check_directory(kept.data)
    assert report.ok, report.text()

    def retry() -> None:
        with kept.client("load-0") as peer:
            for number in (1, gone // 2, gone, gone + 1, held.head):
                id = committed[number]
                owner, n = id.rsplit("-", 1)
                names = [[f"p{owner[-1]}", "shared"][int(n) % 2]]
                again, other = item(names, set_event("n", int(n)), id), item(names, set_event("n", -1), id)
                assert peer.submit(again)[0] | {"status_updated_at": 0} == {
                    "id": id,
                    "status": "committed",
                    "committed_id": number,
                    "status_updated_at": 0,
                }
                (refused,) = peer.submit(other)
                assert (refused["status"], refused["reason"]) == ("rejected", "validation_failed")
                assert refused["errors"][0]["field"] == "event"

    retry()
    kept.kill()
    kept.start()
    retry()
    assert maintainer.extent().head == held.head


@pytest.mark.req("DUR-07")
def test_a_published_snapshot_is_what_the_server_judges_by(
    kept: Server, maintainer: EmbeddedLogMaintainer
) -> None:
    with kept.client("ann") as peer:
        head = peer.commit(["p"], tree_event("a"))
    state = PartitionState()
    model = open_model()
    for event in (tree_event("a"), tree_event("only in the snapshot")):
        model.apply(COMPATIBILITY, state, event)
    state.settle()
    packed = pack(state.dump())
    maintainer.put_snapshots([Snapshot("p", head, 0, packed, 1), Snapshot("q", 0, 7, b"later model", 1)])
    assert watermarks(kept.data, 0) == {"p": head}
    assert watermarks(kept.data, 7) == {"q": 0}
    kept.stop()
    kept.start()
    with kept.client("ann") as peer:
        (result,) = peer.submit(item(["p"], tree_event("only in the snapshot")))
        assert result["status"] == "rejected", "the item is there already"
    with pytest.raises(MaintenanceFailed, match=f"is at {head + 1}, the log ends at {head}"):
        maintainer.put_snapshots([Snapshot("p", head + 1, 0, packed, 1)])
    assert watermarks(kept.data, 0) == {"p": head}


def test_many_snapshots_are_stored_between_groups(kept: Server, maintainer: EmbeddedLogMaintainer) -> None:
    load = Load(kept, "load", ["p"])
    load.start()
    snapshots = [Snapshot(f"s{n}", 0, 0, bytes([n % 256]) * 40_000, n) for n in range(150)]
    maintainer.put_snapshots([*snapshots, Snapshot("large", 0, 0, b"x" * 9_000_000, 1)])
    load.stop.set()
    load.join()
    assert load.failure is None
    assert watermarks(kept.data, 0) == {f"s{n}": 0 for n in range(150)} | {"large": 0}
    with closing(SqliteReader.open(kept.data)) as reader:
        assert [reader.snapshot(f"s{n}", 0) for n in range(150)] == snapshots


def test_an_erased_event_is_gone_from_history_and_from_memory(
    kept: Server, maintainer: EmbeddedLogMaintainer
) -> None:
    with kept.client("ann") as peer:
        secret = peer.commit(["p"], tree_event("a", text="CANARY-1"), "the-id")
        peer.commit(["q"], tree_event("b"))
        peer.send("submit_events", {"events": [item(["p"], tree_event("a"))]})
        assert peer.expect("submit_events_result")["results"][0]["status"] == "rejected", "it is resident"
        stale = Snapshot("p", secret, 0, b"CANARY-1 in a state", 1)
        maintainer.put_snapshots([stale])
        with closing(EmbeddedLogMaintainer(kept.data)) as other:
            assert maintainer.erase([(secret, STONE)]) == 1
            with pytest.raises(MaintenanceFailed, match="erased from the log since"):
                other.put_snapshots([stale])
        assert watermarks(kept.data, 0) == {}
        maintainer.reclaim()
        files = b"".join(file.read_bytes() for file in kept.data.iterdir())
        assert b"CANARY-1" not in files
        assert peer.history(["p"])[0]["event"] == json.loads(STONE)
        # What it pushed is not there any more, neither in memory nor after a load.
        assert peer.commit(["p"], tree_event("a", text="again")) == 3
        (retried,) = peer.submit(item(["p"], tree_event("a", text="CANARY-1"), "the-id"))
        assert (retried["status"], retried["committed_id"]) == ("committed", secret), "and it is still known"
    maintainer.put_snapshots(
        [Snapshot("q", 1, 0, pack(PartitionState().dump()), 1)]
    )  # by whom the erasure is
    assert check_directory(kept.data).ok


def test_orders_are_for_those_who_may_and_bounded(kept: Server) -> None:
    encode = msgspec.msgpack.encode
    for order, body in (
        ("archive", encode(LAKE)),
        ("prune", encode(1)),
        ("snapshots", encode((0, []))),
        ("erase", encode(([], []))),
        ("reclaim", b""),
    ):
        assert post(kept, order, body, token="not the token")[0] == 401
        assert post(kept, order, body, token="")[0] == 401
    for order in ("archive", "prune", "snapshots", "erase"):
        status, told = post(kept, order, b"\xc1 not MessagePack")
        assert (status, f"malformed body of {order}" in told["error"]) == (409, True)
    status, told = post(kept, "erase", encode(([[5, STONE]], [])))
    assert (status, told["error"]) == (409, "there is no event 5, the log ends at 0")
    for version, created_at in ((2**63, 1), (0, 2**63), (0, -(2**63))):
        snapshot = Snapshot("p", 0, version, b"{}", created_at)
        status, told = post(kept, "snapshots", encode((0, [snapshot])))
        assert (status, told["error"]) == (409, "the snapshot of 'p' has numbers that no snapshot can have")
    assert post(kept, "archive", encode(""))[0] == 409
    assert post(kept, "archive", encode(LAKE)) == (200, {})
    assert post(kept, "prune", encode(10)) == (200, {"events": 0, "pruned_to": 0})
    for length in (None, admin.MAX_COMMAND_BODY_BYTES + 1):
        status, told = post_endlessly(kept, length)
        assert (status, "at most" in told["error"]) == (413, True)
    until(kept.is_ready, "the server is troubled")


def test_the_log_knows_the_model_in_force(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_model(model, 1, 100, 10)
    with (
        running(tmp_path / "data", "--model", str(model), "--access-default", "allow") as server,
        closing(EmbeddedLogMaintainer(server.data)) as maintainer,
    ):
        bundle = maintainer.model_in_force()
        assert bundle is not None
        assert bundle.version == 1
        assert bundle.files["model.toml"] == (model / "model.toml").read_bytes()
        write_model(model, 2, 50, 10)
        assert run_reload(server.data).returncode == 0
        assert (after := maintainer.model_in_force()) is not None
        assert (after.version, after.digest != bundle.digest) == (2, True)
        with pytest.raises(MaintenanceFailed, match="of model version 1, 2 is in force"):
            maintainer.put_snapshots([Snapshot("p", 0, 1, b"", 1)])
        maintainer.put_snapshots([Snapshot("p", 0, 3, b"", 1)])
        server.stop()
        with pytest.raises(MaintenanceFailed, match="of model version 1, 2 is in force"):
            maintainer.put_snapshots([Snapshot("p", 0, 1, b"", 1)])
