"""The pipeline as a service: export, snapshot, publish and retain in cycles; compact, audit and report now and then.

One Spark session for all of it. Every stage can be killed at any time and is done again, or goes on, in the next
cycle; a stage that fails is told and counted, tried again ever more seldom, and the others go on. Stages with an
interval of their own remember across restarts when they were last done, by the status file.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from unisono.display import hide_credentials
from unisono.ipc.files import PipelineStatus, StageStatus, read_pipeline_status, write_pipeline_status
from unisono.lake.lake import Lake
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import brief
from unisono.pipeline.open_log import extent
from unisono.pipeline.service.lease import Lease

FAILED_IN_A_ROW_MAX: Final = 20
"""Failures of every stage of the cycle, after which a new process may do better: some three hours of trying."""

RETRY_S_MAX: Final = 600.0
"""Longest pause of a stage that keeps failing; of one with an interval of its own, that."""

BEAT_S: Final = 20.0
"""How often the status file is written anew, however long a stage or a rest takes."""

Say = Callable[[str], None]


class StageResult(msgspec.Struct, frozen=True):
    """What a stage came to: how many items (events, snapshots, rows) it moved, and a word about it.

    `wrong`: it was done, and found what somebody should look at.
    """

    items: int
    note: str = ""
    wrong: str = ""


class ServiceStage(msgspec.Struct, frozen=True):
    """Work of the cycle; done in every cycle, or when `every_s` has passed since it was last done."""

    name: str
    work: Callable[[], StageResult]
    every_s: float | None = None


class Service:
    """Runs stages until told to stop, while the lake's lease is ours.

    `alive`: whether Spark still is; without it no stage can do anything, and a new process must start a new one.
    """

    def __init__(
        self,
        store: str,
        lake: Lake,
        stages: Sequence[ServiceStage],
        *,
        every_s: float,
        status_file: Path | None,
        say: Say,
        lease: Lease,
        alive: Callable[[], bool] = lambda: True,
        beat_s: float = BEAT_S,
    ) -> None:
        self._store = store
        self._lake = lake
        self._stages = stages
        self._every_s = every_s
        self._file = status_file
        self._say = say
        self._lease = lease
        self._alive = alive
        self._beat_s = beat_s
        self._writing = threading.Lock()
        self._troubles: dict[str, str] = {}
        self.status = self._first_status()

    def run(self, stop: threading.Event, cycles: int | None = None) -> bool:
        """Until `stop`, or for so many cycles; False when it could not go on, or after these something is wrong."""
        with self._beating():
            while not stop.is_set() and not self._obstacle():
                began = time.monotonic()
                self._cycle(stop)
                self.status.cycles += 1
                self._keep()
                if cycles == self.status.cycles:
                    break
                self._rest(stop, began + self._every_s)
        if obstacle := self._obstacle():
            self._say(obstacle)
            return False
        return cycles is None or not any(told.error for _, told in self._told())

    def _obstacle(self) -> str:
        """Why the service cannot go on; empty when it can."""
        if self._lease.lost.is_set():
            return self._lease.why
        if not self._alive():
            return "Spark has ended: start the service again"
        in_cycle = [told.failed_in_a_row for stage, told in self._told() if stage.every_s is None]
        if in_cycle and min(in_cycle) >= FAILED_IN_A_ROW_MAX:
            return f"every stage has failed {FAILED_IN_A_ROW_MAX} times in a row"
        return ""

    def _cycle(self, stop: threading.Event) -> None:
        for stage in self._stages:
            if self._is_due(stage):
                if stop.is_set() or self._obstacle():
                    return
                self._do(stage)

    def _do(self, stage: ServiceStage) -> None:
        told = self.status.stages[stage.name]
        self.status.at_work, told.last_began_ms = stage.name, now_ms()
        self._keep()
        began, before = time.monotonic(), told.error
        try:
            did, done = stage.work(), True
        except Exception as error:
            did, done = StageResult(0, wrong=brief(error)), False
        self.status.at_work = ""
        told.runs += 1
        told.last_seconds = round(time.monotonic() - began, 3)
        told.items += did.items
        told.error = did.wrong
        told.failures += bool(did.wrong)
        told.failed_in_a_row = 0 if done else told.failed_in_a_row + 1
        if done:
            told.last_done_ms, told.note = now_ms(), did.note
        if did.wrong:
            self._say(f"{stage.name} failed: {did.wrong}")
        elif did.items or before:
            self._say(f"{stage.name}: {did.note} ({told.last_seconds:.1f} s)")

    def _is_due(self, stage: ServiceStage) -> bool:
        told = self.status.stages[stage.name]
        if told.failed_in_a_row:
            return _has_passed(told.last_began_ms, self._pause_s(stage, told.failed_in_a_row))
        return stage.every_s is None or _has_passed(told.last_done_ms, stage.every_s)

    def _pause_s(self, stage: ServiceStage, failures: int) -> float:
        """After the first failure the next cycle tries again; then one is left out, three, seven, …"""
        cycles = (1 << min(failures - 1, 16)) - 1
        return min(cycles * self._every_s, RETRY_S_MAX if stage.every_s is None else stage.every_s)

    def _rest(self, stop: threading.Event, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._lease.lost.is_set():
            if stop.wait(min(left, 1.0)):
                return

    # -- the status ----------------------------------------------------------------------------------------

    def _first_status(self) -> PipelineStatus:
        before = None if self._file is None else read_pipeline_status(self._file)
        location, store = self._lake.storage.location, hide_credentials(self._store)
        status = PipelineStatus(location, store, socket.gethostname(), os.getpid(), now_ms())
        status.stages = {stage.name: StageStatus() for stage in self._stages}
        if before is not None and (before.lake, before.store) == (location, store):
            for name, told in before.stages.items():
                error = told.error if name in status.stages else ""
                status.stages[name] = StageStatus(last_done_ms=told.last_done_ms, note=told.note, error=error)
        return status

    def _told(self) -> Iterator[tuple[ServiceStage, StageStatus]]:
        return ((stage, self.status.stages[stage.name]) for stage in self._stages)

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Meanwhile the status is kept fresh; in the end it says that nobody keeps it any longer."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self._beat_s):
                self._write()

        thread = threading.Thread(target=beat, name="status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.status.running, self.status.at_work = False, ""
            self._keep()

    def _keep(self) -> None:
        try:
            held = extent(self._store)
            self.status.log_head, self.status.log_pruned_to = held.head, held.pruned_to
            self.status.lake_head = self._lake.head()
        except Exception as error:
            self._trouble("log or lake out of reach", brief(error))
        else:
            self._trouble("log or lake out of reach", "")
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        with self._writing:
            self.status.updated_ms = now_ms()
            try:
                write_pipeline_status(self._file, self.status)
            except OSError as error:
                self._trouble("the status cannot be written", brief(error))
            else:
                self._trouble("the status cannot be written", "")

    def _trouble(self, what: str, why: str) -> None:
        """Said when it comes about or changes, not again and again."""
        if why and why != self._troubles.get(what):
            self._say(f"{what}: {why}")
        self._troubles[what] = why


def _has_passed(since_ms: int, seconds: float) -> bool:
    """Also when the clock was set back behind that moment."""
    return not 0 <= now_ms() - since_ms < seconds * 1_000
