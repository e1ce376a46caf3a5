"""How many cores a process of a node may use: to wait without sleeping takes one that nobody needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""The CPU time of this container (cgroup v2): what it may use of a period, and the period; `max` for all."""


def usable_cores(quota: Path = CPU_QUOTA) -> float:
    """The cores that this process may use; some systems only say how many there are."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = float((os.cpu_count() or 1) if allowed is None else len(allowed(0)))
    try:
        used, period = quota.read_text().split()
        return cores if used == "max" else min(cores, int(used) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
