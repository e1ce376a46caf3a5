"""`kill -9` at any instant: no draft that was acknowledged is lost, and nothing is applied twice."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import apsw
import pytest

from tests.behaviour.server.harness import Server
from tests.client.running import QUICK, WAIT_S
from tests.client.workers import Worker, job
from unisono.client import connect


@pytest.mark.req("CLIENT-01", "CLIENT-04", "CLIENT-05")
def test_a_client_killed_again_and_again(server: Server, tmp_path: Path, part: str, who: str) -> None:
    path = tmp_path / "c.db"
    random = Random(20)
    worker = Worker(job(server.url, server.token(who), who, path, part, seed=20))
    for _ in range(25):
        worker.start()
        worker.wait_for_drafts(random.randint(1, 25))
        time.sleep(random.uniform(0, 0.03))
        worker.kill()
        connection = apsw.Connection(str(path))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()
    with connect(
        server.url, token=server.token(who), client_id=who, store=path, profile="compatibility", options=QUICK
    ) as last:
        last.caught_up(WAIT_S)
        rejected = {each.id for each in last.rejected()}
        shown = last.view(part)
    with server.client(f"{who}-reader") as reader:
        history = [event["id"] for event in reader.history([part])]
    assert len(history) == len(set(history)), "an event was committed twice"
    assert set(worker.acknowledged) <= set(history) | rejected, "a draft was lost"
    assert len(worker.acknowledged) >= 25
    with connect(
        server.url, token=server.token(f"{who}-2"), client_id=f"{who}-2", partitions=[part],
        profile="compatibility", options=QUICK,
    ) as fresh:  # fmt: skip
        fresh.caught_up(WAIT_S)
        assert fresh.view(part) == shown


@pytest.mark.req("CLIENT-01", "CLIENT-13")
def test_an_offline_client_killed_again_and_again(tmp_path: Path, who: str) -> None:
    path = tmp_path / "c.db"
    random = Random(21)
    worker = Worker(job("ws://127.0.0.1:9/sync", "t", who, path, "p", seed=21))
    for _ in range(20):
        worker.start()
        worker.wait_for_drafts(random.randint(1, 25))
        time.sleep(random.uniform(0, 0.01))
        worker.kill()
    with connect(
        "ws://127.0.0.1:9/sync", token="t", client_id=who, store=path, profile="compatibility"
    ) as last:
        pending = [draft.id for draft in last.pending()]
        clocks = [draft.draft_clock for draft in last.pending()]
    assert [id for id in pending if id in set(worker.acknowledged)] == worker.acknowledged, "all, in order"
    assert clocks == sorted(set(clocks))
