"""One model for all nodes: a reload on one reaches every other, and a starting node joins it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.nodes.cluster import SERVE, cluster, node
from tests.behaviour.server.harness import Server, item, set_event
from tests.behaviour.server.reloading import Modelled, announced_version, note, write_model
from tests.store.postgres.server import shared_server
from tests.waiting import PATIENCE_S, until
from unisono.model.load import load_model


class Cluster:
    """Two nodes, each on a model directory of its own; versions only go up, from test to test."""

    def __init__(self, directory: Path, dsn: str, nodes: list[Server]) -> None:
        self.directory = directory
        self.dsn = dsn
        self.nodes = nodes
        self.a, self.b = (Modelled(server, directory / f"model-{server.data.name}") for server in nodes)

    @property
    def version(self) -> int:
        return max(self.a.version, self.b.version)

    def raise_version(self, on: Modelled, **limits: int) -> int:
        """Put the next version into force by a reload on one node, and wait for the other to know it."""
        on.version = self.version
        version = on.raise_version(**limits)
        for server in self.nodes:
            expect_version(server, version)
        return version

    def start(self, name: str, *arguments: str) -> Server:
        return node(self.directory, self.dsn, name, *arguments)


def expect_version(server: Server, version: int) -> None:
    until(
        lambda: announced_version(server, "waiting") == version,
        f"{server.data.name} does not take over version {version}",
    )


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory, postgres = tmp_path_factory.mktemp("modelled"), shared_server()
    dsn = postgres.create()
    nodes = []
    for name in "ab":
        write_model(directory / f"model-{name}", 1)
        model = ("--model", str(directory / f"model-{name}"))
        nodes.append(Server(directory / name, "--store", dsn, "--node-name", name, *SERVE, *model))
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Server.start, nodes))
        yield Cluster(directory, dsn, nodes)
    finally:
        for server in nodes:
            server.kill()
    postgres.drop(dsn)


@pytest.mark.req("MODEL-02", "SYNC-08")
@pytest.mark.parametrize("where", ["a", "b"])
def test_a_reload_on_one_node_is_told_on_both(modelled: Cluster, part: str, where: str) -> None:
    on: Modelled = getattr(modelled, where)
    old = modelled.version
    clients = [(server, f"{part}-{server.data.name}") for server in modelled.nodes]
    canonical = [server.client(name, "canonical") for server, name in clients]
    tree = [server.client(f"{name}-tree") for server, name in clients]
    new = modelled.raise_version(on)
    for peer in canonical:
        assert peer.expect("version_changed") == {"old_model_version": old, "new_model_version": new}
    for peer in tree:
        peer.expect_quiet(0.02)
        assert peer.sync([part])["model_version"] == new
    canonical[0].subscribe(part)
    committed_id = canonical[1].commit([part], note())
    assert canonical[0].expect("event_broadcast")["committed_id"] == committed_id
    for peer in (*canonical, *tree):
        peer.expect_quiet(0.02)
        peer.close()


@pytest.mark.req("MODEL-02", "VAL-02", "VAL-03")
def test_all_nodes_judge_by_the_new_model(modelled: Cluster, part: str) -> None:
    """Its schemas and its rules, over the state of all nodes' events folded anew."""
    modelled.raise_version(modelled.a)
    with modelled.a.client(f"{part}-a") as first, modelled.b.client(f"{part}-b") as second:
        assert first.commit([part], note("x" * 60))
        assert second.commit([part], note())
        modelled.raise_version(modelled.a, longest=50, most=3)
        for peer in (first, second):
            peer.expect("version_changed")
        long, third = second.submit(item([part], note("x" * 51)), item([part], note()))
        assert long["errors"][0]["field"] == "event.payload.data"
        assert third["status"] == "committed"  # two are counted from before, one of each node
        for peer in (first, second):
            (fourth,) = peer.submit(item([part], note()))
            assert fourth["errors"] == [{"field": "event.payload.data", "message": "there are notes enough"}]
        modelled.raise_version(modelled.b)
        for peer in (first, second):
            peer.expect("version_changed")
            assert peer.commit([part], note("x" * 60))


@pytest.mark.req("MODEL-02")
def test_a_reload_tells_what_all_nodes_committed(modelled: Cluster, part: str) -> None:
    modelled.raise_version(modelled.a)
    with modelled.a.client(f"{part}-a") as first, modelled.b.client(f"{part}-b") as second:
        first.commit([part], note("x" * 60))
        head = second.commit([part, f"{part}-2"], note())
        modelled.b.write(modelled.version + 1, longest=50)
        status, told = modelled.b.order("?dry_run=1")
        assert status == 200, told
        history = told["history"]
        assert (history["upto"], history["events"], history["no_longer"]) == (head, head, 0)
        assert history["refused"] >= 1
        assert history["partitions"] >= 2
        assert second.sync([part])["model_version"] == modelled.version


@pytest.mark.req("MODEL-02")
def test_a_version_that_is_not_higher_is_refused_on_every_node(modelled: Cluster, part: str) -> None:
    modelled.raise_version(modelled.a, longest=40)
    with modelled.a.client(f"{part}-a") as first, modelled.b.client(f"{part}-b") as second:
        for on in (modelled.a, modelled.b):
            for version in (modelled.version, modelled.version - 1):
                on.write(version, longest=90)
                status, told = on.order()
                assert status == 409
                assert f"{version} is not above {modelled.version}" in told["error"]
        for peer in (first, second):
            peer.expect_quiet(0.3)
            good, bad = peer.submit(item([part], note("x" * 40)), item([part], note("x" * 41)))
            assert (good["status"], bad["status"]) == ("committed", "rejected")


@pytest.mark.req("MODEL-02")
def test_of_two_reloads_at_once_the_higher_version_stays(modelled: Cluster) -> None:
    """The lower one was in force before, or is refused; no node is left with it."""
    for turn in range(4):
        lower, higher = (modelled.a, modelled.b) if turn % 2 else (modelled.b, modelled.a)
        base = modelled.version
        lower.write(base + 1, longest=30)
        higher.write(base + 2, longest=20)
        start = threading.Barrier(2)

        def order(on: Modelled, start: threading.Barrier = start) -> int:
            start.wait(PATIENCE_S)
            return on.order()[0]

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(order, (lower, higher))
        higher.version = base + 2
        assert second == 200
        assert first in (200, 409)
        for server in modelled.nodes:
            expect_version(server, base + 2)
            with server.client("judged", "canonical") as peer:
                (result,) = peer.submit(item(["p"], note("x" * 21)))
                assert result["status"] == "rejected"


@pytest.mark.req("MODEL-02")
def test_requests_on_another_node_around_a_change_are_all_answered(modelled: Cluster, part: str) -> None:
    """Each result is of the model in force at its place in the one order; version_changed stands between."""
    modelled.raise_version(modelled.a)
    modelled.a.version = modelled.version + 1
    modelled.a.write(modelled.a.version, longest=10)
    with modelled.b.client(f"{part}-b") as peer, ThreadPoolExecutor(1) as pool:
        statuses: list[str] = []
        changed_at: int | None = None
        ordered = None
        while changed_at is None or len(statuses) < changed_at + 20:
            if len(statuses) == 10:
                ordered = pool.submit(modelled.a.order)
            peer.send("submit_events", {"events": [item([part], note("x" * 20))]})
            message = peer.receive()
            if message["type"] == "version_changed":
                changed_at = len(statuses)
                message = peer.receive()
            assert message["type"] == "submit_events_result"
            statuses.append(message["payload"]["results"][0]["status"])
        assert ordered is not None
        assert ordered.result(timeout=PATIENCE_S)[0] == 200
    assert changed_at > 0
    assert statuses == ["committed"] * changed_at + ["rejected"] * (len(statuses) - changed_at)


@pytest.mark.req("MODEL-01", "MODEL-02")
def test_what_a_starting_node_brings(modelled: Cluster, part: str, tmp_path: Path) -> None:
    """An older model, or none, gives way; a newer one comes into force; another of the same version is refused."""
    modelled.raise_version(modelled.a, longest=40)
    present = modelled.version
    write_model(tmp_path / "older", 1, longest=5)
    write_model(tmp_path / "different", present, longest=7)
    older = modelled.start("older", "--model", str(tmp_path / "older"))
    none = modelled.start("none")
    different = modelled.start("different", "--model", str(tmp_path / "different"))
    with ThreadPoolExecutor(3) as pool:
        starting = [pool.submit(server.start) for server in (older, none, different)]
        refused = starting[2].exception(timeout=PATIENCE_S)
    try:
        for server in (older, none):
            assert announced_version(server, f"{part}-x") == present
            with server.client(f"{part}-x", "canonical") as peer:
                good, bad = peer.submit(item([part], note("x" * 40)), item([part], note("x" * 41)))
                assert (good["status"], bad["status"]) == ("committed", "rejected")
    finally:
        older.kill()
        none.kill()
    assert f"model version {present} is not newer than {present}" in str(refused)
    assert load_model(tmp_path / "different").digest[:12] in str(refused), "it says which content is which"
    assert different.process.returncode == 2
    assert announced_version(modelled.a.server, f"{part}-x") == present

    write_model(tmp_path / "newer", present + 1, longest=8)
    with modelled.a.client(f"{part}-a") as first, modelled.b.client(f"{part}-b") as second:
        newer = modelled.start("newer", "--model", str(tmp_path / "newer")).start()
        try:
            modelled.a.version = present + 1
            changed = {"old_model_version": present, "new_model_version": present + 1}
            for peer in (first, second):
                assert peer.expect("version_changed") == changed
                (result,) = peer.submit(item([part], note("x" * 9)))
                assert result["status"] == "rejected"
        finally:
            newer.kill()


@pytest.mark.req("MODEL-02", "DUR-07")
def test_a_node_that_restarts_alone_keeps_the_model_in_force(database: str, tmp_path: Path) -> None:
    """The model lives in the log: whoever comes with an older directory judges by it, also after all were gone."""
    write_model(tmp_path / "model", 1, longest=100)
    options: Any = ("--model", str(tmp_path / "model"))
    with cluster(tmp_path, database, "a", *options) as (a,):
        modelled = Modelled(a, tmp_path / "model")
        modelled.raise_version(longest=10)
        with a.client("x", "canonical") as peer:
            peer.commit(["p"], note("x" * 10))
        assert a.stop() == 0
        write_model(tmp_path / "model", 1, longest=100)
        a.start()
        assert announced_version(a, "x") == 2
        with a.client("x", "canonical") as peer:
            (result,) = peer.submit(item(["p"], note("x" * 11)))
            assert result["status"] == "rejected"
        with a.client("y") as tree:
            assert tree.commit(["p"], set_event("title", 1)) == 2
