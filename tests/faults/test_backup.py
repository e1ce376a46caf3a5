"""Backups while clients write: none disturbs the server, and each is a prefix of what everybody was told."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, running, set_event
from tests.behaviour.server.killing import SERVE
from tests.commands import unisono
from tests.faults.workload import ids_of, load
from tests.history.recorder import Recorder
from unisono.pipeline.open_log import open_reader
from unisono.store.sqlite.backup_files import BackupDirectory

BACKUPS = 4


@pytest.mark.req("DUR-02", "DUR-08", "ORD-01")
def test_backups_under_load_are_prefixes_of_the_log_and_can_be_served(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    server = Server(data, *SERVE).start()
    acknowledged = []
    try:
        with load([server], writers=3, followers=1, browsers=1, seed=7) as work:
            for _ in range(BACKUPS):
                work.expect_progress()
                acknowledged.append(max(work.ledger.by_committed_id))
                done = unisono("backup", str(target), "--data", str(data), "--quiet")
                assert done.exit_code == 0, done.output
            work.expect_progress()
            work.settle(data, [server])
        assert server.stop() == 0
    finally:
        server.kill()
    told = ids_of(data)
    verified = unisono("backup", str(target), "--verify", "--quiet")
    assert verified.exit_code == 0, verified.output
    names = BackupDirectory(target).names()
    assert len(names) == BACKUPS
    for name, before in zip(names, acknowledged, strict=True):
        done = unisono("restore", "--from", str(target), "--at", name, "--data", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        head = BackupDirectory(target).manifest(name).head
        assert head >= before, "what was acknowledged before the backup is in it"
        assert ids_of(tmp_path / name) == told[:head]
    expect_served(tmp_path / names[1], told[: BackupDirectory(target).manifest(names[1]).head])


def expect_served(data: Path, past: list[str]) -> None:
    """A server goes on from a restored log, and keeps its promises from there."""
    recorder = Recorder()
    with running(data, *SERVE) as server:
        server.recorder = recorder
        with server.client("writer") as writer:
            assert writer.commit(["part-0"], set_event("after", 1)) == len(past) + 1
        with server.client("reader") as reader:
            ids = [event["id"] for event in reader.history(["part-0"])]
        assert set(ids[:-1]) <= set(past)
    with closing(open_reader(str(data))) as log:
        recorder.judge(log)
