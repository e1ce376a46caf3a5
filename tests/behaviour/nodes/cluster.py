"""Several real nodes on one real PostgreSQL, and what their log holds at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.behaviour.server.harness import Peer, Server
from tests.behaviour.server.killing import Gone, answer, until_gone
from tests.waiting import PATIENCE_S, until
from unisono.store.check import check_database
from unisono.store.port import Record
from unisono.store.postgres.log import PostgresReader

SERVE = ("--access-default", "allow")

SERVER_ERROR = 1011
"""How clients are let go when something failed."""


def node(directory: Path, dsn: str, name: str, *arguments: str) -> Server:
    """One node of the cluster on `dsn`, not started yet."""
    return Server(directory / name, "--store", dsn, "--node-name", name, *SERVE, *arguments)


@contextlib.contextmanager
def cluster(directory: Path, dsn: str, names: str = "ab", *arguments: str) -> Iterator[list[Server]]:
    """A node for each letter, started side by side and ended with the test; nothing unexpected is in their logs.

    What the peers of all of them saw is checked then, as one history.
    """
    nodes = [node(directory, dsn, name, *arguments) for name in names]
    recorder = nodes[0].recorder
    for server in nodes:
        server.recorder = recorder
    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(Server.start, nodes))
        yield nodes
    finally:
        for server in nodes:
            if hasattr(server, "process"):
                server.kill()
    for server in nodes:
        expect_calm(server)
    if not any(server.tampered or server.recorder is not recorder for server in nodes):
        recorder.check(dsn)


def expect_calm(server: Server) -> None:
    """Whatever happened to it, the node met nothing it does not know."""
    text = server.log.read_text()
    assert "Traceback" not in text, text
    assert "unexpected error" not in text, text


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def records_of(dsn: str) -> Sequence[Record]:
    """The whole log, which is sound."""
    report = check_database(dsn)
    assert report.ok, report.text()
    with closing(PostgresReader.open(dsn)) as reader:
        return reader.scan(0, report.head, limit=report.events)


def head_of(peer: Peer) -> int:
    """The log's head, told by a sync from beyond it (SYNC-07)."""
    head: int = peer.sync(["nothing-here"], 2**53 - 1)["sync_to_committed_id"]
    return head


def ids(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["id"] for event in events]


def expect_serving(server: Server) -> None:
    """The node has found its log again."""
    until(server.is_ready, lambda: f"{server.data.name} is not ready; log:\n{server.log.read_text()}")


def expect_let_go(peer: Peer) -> None:
    peer.expect_error("server_error")
    peer.expect_close(SERVER_ERROR)


def client_again(server: Server, client_id: str, profile: str = "compatibility") -> Peer:
    """A connection as soon as one can be had; until then everybody is turned away in order."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        peer = server.peer()
        with contextlib.suppress(Gone):
            with until_gone():
                peer.send_connect(client_id, server.token(client_id), supported_profiles=[profile])
            answer(peer, "connected")
            return peer
        peer.close()
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.05)
