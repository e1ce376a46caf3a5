"""Power failures of a log on a disk that loses and tears what was not synced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest.mock import patch

import apsw

from tests.simulation.disk import InlineCheckpointer, SimulatedDisk, SimulatedVfs, abandon, expect_simulated
from tests.store.records import make_record
from unisono.store.port import StorageError
from unisono.store.sqlite.log import SqliteLog

LIVES = 3
GROUPS_MAX = 12


def survive(
    seed: int,
    directory: Path,
    vfs: SimulatedVfs,
    weaken: Callable[[apsw.Connection], object] = lambda _: None,
) -> list[str]:
    """Commit groups over some lives, each ended by a power failure; what is wrong afterwards."""
    random = Random(seed)
    vfs.random = Random(seed)
    disk = SimulatedDisk(directory)
    vfs.disks[:] = [disk]
    acknowledged = 0
    wrong: list[str] = []
    with patch("unisono.store.sqlite.log.WalCheckpointer", InlineCheckpointer):
        for life in range(LIVES + 1):
            log = SqliteLog.open(directory)
            weaken(log._connection)
            head = log.head()
            if head < acknowledged:
                wrong.append(f"life {life}: {acknowledged} was acknowledged, the log ends at {head}")
            found = [each.committed_id for each in log.scan(0, head, limit=head + 1)] if head else []
            if found != list(range(1, head + 1)):
                wrong.append(f"life {life}: the log has {found}, its head is {head}")
            acknowledged = head
            disk.fail_at = disk.calls + random.randint(1, 60) if random.random() < 0.3 else None
            for _ in range(random.randint(0, GROUPS_MAX)):
                size = random.randint(1, 4)
                group = [make_record(head + n, id=f"e-{life}-{head + n}") for n in range(1, size + 1)]
                try:
                    log.begin([each.id for each in group])
                    if random.random() < 0.1:
                        break  # the power fails in the middle of a group
                    log.commit(group)
                    head = acknowledged = head + size
                    log.maintain()
                except StorageError as error:
                    expect_simulated(error)
                    break
            disk.crash(lambda log=log: abandon(log), random)  # type: ignore[misc]
    return wrong
