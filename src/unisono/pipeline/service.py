"""The pipeline as a service: export, snapshot, publish and retain in cycles; compact, audit and report now and then.

One Spark session for all of it. Every stage can be killed at any time and is done again, or goes on, in the next
cycle; a stage that fails is told and counted, and the others go on. Stages with an interval of their own remember
across restarts when they were last done, by the status file.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from unisono.pipeline.lease import Lease
from unisono.pipeline.status import StageStatus, Status, read, write
from unisono.pipeline.stores import extent, shown
from unisono.store.delta.lake import Lake

FAILURES_IN_A_ROW_MAX: Final = 100
"""Cycles in which every stage failed, after which somebody should look: the service ends with an error."""

Say = Callable[[str], None]


class Did(msgspec.Struct, frozen=True):
    """What a stage came to: how many items (events, snapshots, rows) it moved, and a word about it."""

    items: int
    note: str = ""


class Stage(msgspec.Struct, frozen=True):
    """Work of the cycle; done in every cycle, or when `every_s` has passed since it was last done well."""

    name: str
    work: Callable[[], Did]
    every_s: float | None = None


class Service:
    """Runs stages until told to stop, while the lake's lease is ours.

    `alive`: whether Spark still is; without it no stage can do anything, and a new process must start a new one.
    """

    def __init__(
        self,
        store: str,
        lake: Lake,
        stages: Sequence[Stage],
        *,
        every_s: float,
        status_file: Path | None,
        say: Say,
        lease: Lease,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._lake = lake
        self._stages = stages
        self._every_s = every_s
        self._file = status_file
        self._say = say
        self._lease = lease
        self._alive = alive
        self.status = self._first_status()

    def run(self, stop: threading.Event, cycles: int | None = None) -> bool:
        """Until `stop`, or for so many cycles; False when it ended because nothing works or the lease was lost."""
        failed_cycles = 0
        try:
            while not stop.is_set() and not self._lease.lost.is_set() and self._alive():
                began = time.monotonic()
                failed_cycles = 0 if self._cycle(stop) else failed_cycles + 1
                self.status.cycles += 1
                self._keep()
                if failed_cycles >= FAILURES_IN_A_ROW_MAX or cycles == self.status.cycles:
                    break
                self._rest(stop, began + self._every_s)
        finally:
            self.status.running, self.status.at_work = False, ""
            self._keep()
        if self._lease.lost.is_set():
            self._say("the lake's lease was lost to another service")
        elif not self._alive():
            self._say("Spark has ended: start the service again")
        else:
            return failed_cycles == 0
        return False

    def _cycle(self, stop: threading.Event) -> bool:
        """One look at every stage; whether any that was due went well."""
        due = [stage for stage in self._stages if self._is_due(stage)]
        good = 0
        for stage in due:
            if stop.is_set() or self._lease.lost.is_set():
                return True
            good += self._do(stage)
        return good > 0 or not due

    def _do(self, stage: Stage) -> bool:
        told = self.status.stages.setdefault(stage.name, StageStatus())
        self.status.at_work = stage.name
        told.last_began_ms = _now_ms()
        self._keep()
        began = time.monotonic()
        try:
            did = stage.work()
        except Exception as error:
            told.failures += 1
            told.error = f"{type(error).__name__}: {error}".partition("\n")[0]
            self._say(f"{stage.name} failed: {told.error}")
            return False
        finally:
            told.runs += 1
            told.last_seconds = round(time.monotonic() - began, 3)
            self.status.at_work = ""
        told.last_done_ms, told.error = _now_ms(), ""
        told.items += did.items
        told.note = did.note
        if did.items:
            self._say(f"{stage.name}: {did.note} ({told.last_seconds:.1f} s)")
        return True

    def _is_due(self, stage: Stage) -> bool:
        if stage.every_s is None:
            return True
        told = self.status.stages.get(stage.name)
        return told is None or _now_ms() - told.last_done_ms >= stage.every_s * 1_000

    def _rest(self, stop: threading.Event, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._lease.lost.is_set():
            if stop.wait(min(left, 1.0)):
                return

    def _first_status(self) -> Status:
        before = None if self._file is None else read(self._file)
        location, store = self._lake.storage.location, shown(self._store)
        status = Status(location, store, socket.gethostname(), os.getpid(), _now_ms())
        if before is not None and (before.lake, before.store) == (location, store):
            status.stages = {
                name: StageStatus(last_done_ms=stage.last_done_ms, note=stage.note)
                for name, stage in before.stages.items()
            }
        return status

    def _keep(self) -> None:
        self.status.updated_ms = _now_ms()
        try:
            held = extent(self._store)
            self.status.log_head, self.status.log_pruned_to = held.head, held.pruned_to
            self.status.lake_head = self._lake.head()
        except Exception as error:
            self._say(f"log or lake out of reach: {error}")
        if self._file is not None:
            write(self._file, self.status)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
