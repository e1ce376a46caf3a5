"""Acknowledged means on disk, whatever happens to the processes or to the disk (DUR-*)."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, set_event, tree_event
from tests.behaviour.server.killing import expect_nothing_left
from tests.waiting import PATIENCE_S
from unisono.store.check import check_directory
from unisono.store.sqlite.files import LOG_FILE
from unisono.store.sqlite.log import SqliteReader
from unisono.store.statements import load_queries

FILE_BYTES_MAX = 256 * 1024
"""Room for the schema and some dozens of commits."""


def limit_file_size() -> None:
    """In the server before it starts: no file can grow past the bound (Python ignores SIGXFSZ by itself)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


def write_until_it_fails(peer: Peer) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Batches of two: what was acknowledged, and the batch that was not."""
    acknowledged: dict[str, int] = {}
    for number in range(500):
        batch = [item(["p"], tree_event(f"{number}-{half}", text="x" * 2000)) for half in (1, 2)]
        peer.send("submit_events", {"events": batch})
        message = peer.receive()
        if message["type"] == "error":
            assert message["payload"]["code"] == "server_error"
            return acknowledged, batch
        for result in message["payload"]["results"]:
            acknowledged[result["id"]] = result["committed_id"]
    raise AssertionError("the log grew past its bound")


@pytest.mark.req("DUR-04", "ERR-01", "CONN-10", "ORD-05")
def test_a_write_that_fails_acknowledges_nothing_and_stops_the_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, "--access-default", "allow", preexec_fn=limit_file_size) as server:
        writer, idle = server.client("writer"), server.client("idle")
        idle.subscribe("p")
        acknowledged, failed = write_until_it_fails(writer)
        assert acknowledged
        writer.expect_close(1011)
        heard = broadcast_ids(idle)
        assert heard == list(acknowledged.values()), (
            "each acknowledged event, and nothing of the failed group"
        )
        idle.expect_close(1011)
        assert server.process.wait(timeout=PATIENCE_S) not in (0, None)
        expect_nothing_left(server)
        assert "log failed, stopping" in server.log.read_text()
    assert check_directory(data).ok

    with running(data, "--access-default", "allow") as server, server.client("writer") as writer:
        stored = {event["id"]: event["committed_id"] for event in writer.history(["p"])}
        assert stored == acknowledged
        results = writer.submit(*failed)
        assert [result["committed_id"] for result in results] == [len(stored) + 1, len(stored) + 2]
        again = [item(["p"], event["event"], id=event["id"]) for event in writer.history(["p"])[:100]]
        told = {result["id"]: result["committed_id"] for result in writer.submit(*again)}
        assert told.items() <= (acknowledged | {r["id"]: r["committed_id"] for r in results}).items()
        assert server.stop() == 0
    assert check_directory(data).ok


def broadcast_ids(peer: Peer) -> list[int]:
    """Broadcasts up to the error that ends them."""
    heard: list[int] = []
    while (message := peer.receive())["type"] == "event_broadcast":
        heard.append(message["payload"]["committed_id"])
    assert message["type"] == "error"
    assert message["payload"]["code"] == "server_error"
    return heard


@pytest.mark.req("DUR-01", "SYNC-10")
def test_the_three_indexes_exist_and_are_used(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        peer.commit([part, f"{part}/2"], set_event("a", 1), id=f"{part}-1")
    queries = load_queries("sqlite")
    connection = apsw.Connection(str(server.data / LOG_FILE), flags=apsw.SQLITE_OPEN_READONLY)
    try:

        def plan(query: str) -> str:
            unset = (None,) * max(int(number) for number in re.findall(r"\?(\d)", query))
            return " / ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", unset))

        assert "SEARCH events USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in plan(queries["scan"])
        assert "SEARCH event_ids USING PRIMARY KEY (key=?)" in plan(queries["find_keys"])
        assert "SEARCH events USING INTEGER PRIMARY KEY (rowid=?)" in plan(queries["find_events"])
        ranges = queries["page_range"].replace("{number}", "?4")
        page = plan(queries["page"].replace("{ids}", queries["page_ids"].replace("{ranges}", ranges)))
        wanted = (
            "SEARCH event_partitions USING PRIMARY KEY (partition=? AND committed_id>? AND committed_id<?)"
        )
        assert wanted in page
        assert "SEARCH events USING INTEGER PRIMARY KEY (rowid=?)" in page
        for statement in ("scan", "find_events"):
            assert "SCAN events" not in plan(queries[statement])
        assert "TEMP B-TREE" not in page
    finally:
        connection.close()


@pytest.mark.req("DUR-01", "SUBMIT-08")
def test_only_what_is_committed_is_stored(server: Server, who: str, part: str) -> None:
    reader = SqliteReader.open(server.data)
    try:
        with server.client(who) as peer:
            head = reader.head()
            assert [result["status"] for result in peer.submit(
                item([part], tree_event("A"), id=f"{part}-1"),
                item([part], tree_event("A"), id=f"{part}-2"),
                item([part], {"type": "sing", "payload": {}}, id=f"{part}-3"),
            )] == ["committed", "rejected", "rejected"]  # fmt: skip
        assert [record.id for record in reader.scan(head, head + 10, limit=10)] == [f"{part}-1"]
    finally:
        reader.close()
