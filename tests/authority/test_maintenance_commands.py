"""Admin commands by which the pipeline maintains a log: between groups, bounded, never of a shared log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.authority.seat import Seat, candidate, push, seated, seated_on
from unisono.authority import maintenance_commands
from unisono.authority.cluster_view import ClusterView
from unisono.authority.maintenance_commands import MaintenanceCommands
from unisono.ipc.messages import MAINTENANCE_COMMANDS, AdminCommand, CommandResult
from unisono.protocol.tombstones import tombstone
from unisono.store.cluster import News
from unisono.store.maintenance import MaintenanceRefused, Tombstone
from unisono.store.port import Snapshot
from unisono.store.sqlite.log import SqliteLog

STONE = tombstone(1_700_000_000_000)
encode = msgspec.msgpack.encode


def order(seat: Seat[SqliteLog], command: str, body: object) -> tuple[bool, object]:
    seat.node.send(AdminCommand(900, command, body=encode(body)))
    report = seat.node.of(CommandResult)
    seat.node.forget()
    return report.ok, msgspec.json.decode(report.body)


def test_a_shared_log_is_not_kept_by_its_nodes(tmp_path: Path) -> None:
    with seated(tmp_path / "data") as seat:  # whose orders were not given the log
        for command in MAINTENANCE_COMMANDS:
            ok, answer = order(seat, command, 0)
            assert not ok
            assert "in the database itself" in str(answer)


class Pruned(SqliteLog):
    """Counts what it is asked to let go at a time."""

    limits: list[int]
    took_s = 0.0

    def prune_batch(self, upto: int, *, limit: int = 500) -> int:
        self.limits = [*getattr(self, "limits", []), limit]
        time.sleep(self.took_s)
        return super().prune_batch(upto, limit=limit)


def test_as_many_leave_as_do_not_hold_up_a_group(tmp_path: Path) -> None:
    with seated(tmp_path) as seat:
        caller = seat.front.connect()
        for n in range(30):
            caller.submit(*(candidate(["p"], push(f"n{n}-{m}")) for m in range(100)))
    log = Pruned.open(tmp_path)
    log.set_archive("file:///lake")
    commands = MaintenanceCommands(log)
    ask = AdminCommand(1, "prune", body=encode(3_000))
    for _ in range(3):
        commands.execute(None, ask)  # type: ignore[arg-type]
    log.took_s = 0.2
    for _ in range(3):
        commands.execute(None, ask)  # type: ignore[arg-type]
    assert log.limits[0] == maintenance_commands.PRUNE_EVENTS_MIN
    assert log.limits[-1] == maintenance_commands.PRUNE_EVENTS_MIN, "a slow disk is given little at a time"
    log.close()


def test_snapshots_are_stored_a_portion_at_a_time(tmp_path: Path) -> None:
    stored: list[int] = []
    took_s = 0.02

    class Storing(SqliteLog):
        def put_snapshots(self, snapshots: Sequence[Snapshot], *, per_transaction: int = 128) -> None:
            stored.append(len(snapshots))
            assert per_transaction >= len(snapshots), "a step is one transaction"
            super().put_snapshots(snapshots, per_transaction=per_transaction)
            time.sleep(took_s)

    class Judge:
        class states:  # noqa: N801
            snapshot_version = 0
            model_digest = ""

    log = Storing.open(tmp_path)
    commands = MaintenanceCommands(log)
    snapshots = [Snapshot(f"s{n}", 0, 0, b"x" * 100, 1) for n in range(150)]
    ask = AdminCommand(7, "snapshots", body=encode((0, snapshots)))
    answers = [commands.execute(Judge, ask) for _ in range(4)]  # type: ignore[arg-type]
    assert answers == [None, None, None, {}]
    assert stored == [64, 64, 22], "a slow disk is given little at a time"
    took_s = 0
    many = [Snapshot(f"s{n}", 0, 0, b"x", 2) for n in range(maintenance_commands.STORED_SNAPSHOTS_MAX * 3)]
    ask = AdminCommand(9, "snapshots", body=encode((0, many)))
    while commands.execute(Judge, ask) is None:  # type: ignore[arg-type]
        pass
    assert sum(stored[3:]) == len(many)
    assert max(stored) <= maintenance_commands.STORED_SNAPSHOTS_MAX
    with pytest.raises(MaintenanceRefused, match="fold them again"):
        commands.execute(Judge, AdminCommand(8, "snapshots", body=encode((5, snapshots))))  # type: ignore[arg-type]
    log.close()


class Erasing(ClusterView):
    """Another node's owner erased something."""

    def __init__(self) -> None:
        super().__init__(None)
        self.erased = False

    def news(self, *, fresh: bool) -> News | None:
        erased, self.erased = self.erased, False
        return News(0, erased=True) if erased else None


def test_states_are_forgotten_when_something_was_erased_elsewhere(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path)
    elsewhere = Erasing()
    with seated_on(log, cluster=elsewhere) as seat:
        caller = seat.front.connect()
        assert caller.submit(candidate(["p"], push("a")))[0].status == "committed"
        assert caller.submit(candidate(["p"], push("a")))[0].status == "rejected"
        seat.front.head()
        log.erase([Tombstone(1, STONE)])  # as the owner of a shared log does, past this node
        elsewhere.erased = True
        assert caller.submit(candidate(["p"], push("a")))[0].status == "committed", "what pushed it is gone"
