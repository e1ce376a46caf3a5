"""A part of one core for a process and all that it starts, by Linux's control groups; only root may."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
PERIOD_US: Final = 20_000
"""A group that has used its share waits for the next period; short periods keep all of them going."""

EMPTY_TIMEOUT_S: Final = 10.0


def possible() -> bool:
    return os.geteuid() == 0 and _controller() is not None


@contextmanager
def limited(processes: Iterable[int], share: float) -> Iterator[None]:
    """Each of the processes has `share` of one core, with what it starts from now on; until they have ended."""
    controller = _controller()
    assert controller is not None, "possible() says whether there is one"
    groups = [controller / f"unisono-{os.getpid()}-{process}" for process in processes]
    try:
        for process, group in zip(processes, groups, strict=True):
            group.mkdir()
            quota = int(share * PERIOD_US)
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for group in groups:
            _remove(group)


def _controller() -> Path | None:
    """Where groups with a share of the processors can be made: version 2 of control groups, or 1."""
    try:
        if "cpu" in (ROOT / "cgroup.subtree_control").read_text().split():
            return ROOT
    except OSError:
        pass
    place = ROOT / "cpu"
    return place if (place / "cgroup.procs").exists() else None


def _remove(group: Path) -> None:
    """A group can go when its last process has ended."""
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
