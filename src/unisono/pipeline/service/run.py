"""Runs the pipeline as a service: export, snapshot, publish and retain in cycles; compact, audit and report at
intervals.

One Spark session serves all stages. A stage may be killed at any time; the next cycle continues or repeats it. A
failing stage is reported and counted, retried with growing pauses, and does not stop the others. The status file
keeps the time of a stage's last run across restarts.
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
from unisono.lake.errors import LakeError
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RunRecord, new_run_id, record_runs
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import brief
from unisono.pipeline.open_log import extent
from unisono.pipeline.progress import Notify
from unisono.pipeline.service.lease import Lease

FAILED_IN_A_ROW_MAX: Final = 20
"""Consecutive failures of every stage after which the process ends for a fresh start: about three hours."""

RETRY_S_MAX: Final = 600.0
"""Longest pause of a failing stage; a stage with an interval pauses for that at most."""

HEARTBEAT_S: Final = 20.0
"""Interval at which the status file is updated, also during a long stage or pause."""


class StageResult(msgspec.Struct, frozen=True):
    """The number of items (events, snapshots, rows) a stage processed, and a note.

    `wrong`: the stage completed, and found a problem that needs attention. `run_id`: of rows that the stage itself
    put into the lake's table of findings.
    """

    items: int
    note: str = ""
    wrong: str = ""
    run_id: str = ""


class ServiceStage(msgspec.Struct, frozen=True):
    """A stage that runs in every cycle, or when `every_s` has passed since its last success."""

    name: str
    work: Callable[[], StageResult]
    every_s: float | None = None


class Service:
    """Runs stages until stopped, while it has the lake's lease.

    `alive`: whether Spark runs. When it ends, the service ends too, for a supervisor to start it again.
    """

    def __init__(
        self,
        store: str,
        lake: Lake,
        stages: Sequence[ServiceStage],
        *,
        every_s: float,
        status_file: Path | None,
        notify: Notify,
        lease: Lease,
        alive: Callable[[], bool] = lambda: True,
        heartbeat_s: float = HEARTBEAT_S,
        out: Path | None = None,
    ) -> None:
        """`out`: where the stages write reports, for the status."""
        self._out = "" if out is None else str(out.absolute())
        self._store = store
        self._lake = lake
        self._stages = stages
        self._every_s = every_s
        self._file = status_file
        self._notify = notify
        self._lease = lease
        self._alive = alive
        self._heartbeat_s = heartbeat_s
        self._writing = threading.Lock()
        self._problems: dict[str, str] = {}
        self.status = self._first_status()

    def run(self, stop: threading.Event, cycles: int | None = None) -> bool:
        """Run until `stop`, or for `cycles`; False when it had to end early, or the last cycle left an error."""
        with self._heartbeat():
            while not stop.is_set() and not self._blocked_by():
                began = time.monotonic()
                self._cycle(stop)
                self.status.cycles += 1
                self._save_status()
                if cycles == self.status.cycles:
                    break
                self._pause(stop, began + self._every_s)
        if reason := self._blocked_by():
            self._notify(reason)
            return False
        return cycles is None or not any(status.error for _, status in self._stage_statuses())

    def _blocked_by(self) -> str:
        """Why the service must end; empty when it can continue."""
        if self._lease.lost.is_set():
            return self._lease.why
        if not self._alive():
            return "Spark has ended: start the service again"
        in_cycle = [
            status.failed_in_a_row for stage, status in self._stage_statuses() if stage.every_s is None
        ]
        if in_cycle and min(in_cycle) >= FAILED_IN_A_ROW_MAX:
            return f"every stage has failed {FAILED_IN_A_ROW_MAX} times in a row"
        return ""

    def _cycle(self, stop: threading.Event) -> None:
        runs: list[RunRecord] = []
        for stage in self._stages:
            if self._is_due(stage):
                if stop.is_set() or self._blocked_by():
                    break
                runs += self._run_stage(stage)
        if runs and not self._lease.lost.is_set():
            self._record(runs)

    def _record(self, runs: Sequence[RunRecord]) -> None:
        """Keep the cycle's runs in the lake, in one commit."""
        try:
            record_runs(self._lake.storage, runs)
        except LakeError as error:
            self._report_problem("cannot record runs in the lake", brief(error))
        else:
            self._report_problem("cannot record runs in the lake", "")

    def _run_stage(self, stage: ServiceStage) -> Iterator[RunRecord]:
        """Run it; yields a record, unless there was nothing to do and nothing wrong."""
        status = self.status.stages[stage.name]
        self.status.at_work, status.last_began_ms = stage.name, now_ms()
        self._save_status()
        began, before = time.monotonic(), status.error
        try:
            result, done = stage.work(), True
        except Exception as error:
            result, done = StageResult(0, wrong=brief(error)), False
        self.status.at_work = ""
        status.runs += 1
        status.last_seconds = round(time.monotonic() - began, 3)
        status.items += result.items
        status.error = result.wrong
        status.failures += bool(result.wrong)
        status.failed_in_a_row = 0 if done else status.failed_in_a_row + 1
        if done:
            status.last_done_ms, status.note = now_ms(), result.note
        if result.wrong:
            self._notify(f"{stage.name} failed: {result.wrong}")
        elif result.items or before:
            self._notify(f"{stage.name}: {result.note} ({status.last_seconds:.1f} s)")
        if result.wrong or result.items or before:
            yield RunRecord(
                result.run_id or new_run_id(),
                stage.name,
                status.last_began_ms,
                status.last_seconds,
                result.items,
                not result.wrong,
                result.note,
                result.wrong,
            )

    def _is_due(self, stage: ServiceStage) -> bool:
        status = self.status.stages[stage.name]
        if status.failed_in_a_row:
            return _has_passed(status.last_began_ms, self._retry_after_s(stage, status.failed_in_a_row))
        return stage.every_s is None or _has_passed(status.last_done_ms, stage.every_s)

    def _retry_after_s(self, stage: ServiceStage, failures: int) -> float:
        """After the first failure the next cycle retries; then 1, 3, 7, … cycles are skipped."""
        cycles = (1 << min(failures - 1, 16)) - 1
        return min(cycles * self._every_s, RETRY_S_MAX if stage.every_s is None else stage.every_s)

    def _pause(self, stop: threading.Event, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._lease.lost.is_set():
            if stop.wait(min(left, 1.0)):
                return

    # -- the status ----------------------------------------------------------------------------------------

    def _first_status(self) -> PipelineStatus:
        before = None if self._file is None else read_pipeline_status(self._file)
        location, store = self._lake.storage.location, hide_credentials(self._store)
        status = PipelineStatus(location, store, socket.gethostname(), os.getpid(), now_ms(), out=self._out)
        status.stages = {stage.name: StageStatus() for stage in self._stages}
        if before is not None and (before.lake, before.store) == (location, store):
            for name, stage in before.stages.items():
                error = stage.error if name in status.stages else ""
                status.stages[name] = StageStatus(
                    last_done_ms=stage.last_done_ms, note=stage.note, error=error
                )
        return status

    def _stage_statuses(self) -> Iterator[tuple[ServiceStage, StageStatus]]:
        return ((stage, self.status.stages[stage.name]) for stage in self._stages)

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Update the status file regularly; at the end mark the service as not running."""
        ended = threading.Event()

        def write_regularly() -> None:
            while not ended.wait(self._heartbeat_s):
                self._write()

        thread = threading.Thread(target=write_regularly, name="status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.status.running, self.status.at_work = False, ""
            self._save_status()

    def _save_status(self) -> None:
        try:
            log = extent(self._store)
            self.status.log_head, self.status.log_pruned_to = log.head, log.pruned_to
            self.status.lake_head = self._lake.head()
        except Exception as error:
            self._report_problem("log or lake unavailable", brief(error))
        else:
            self._report_problem("log or lake unavailable", "")
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        with self._writing:
            self.status.updated_ms = now_ms()
            try:
                write_pipeline_status(self._file, self.status)
            except OSError as error:
                self._report_problem("cannot write the status", brief(error))
            else:
                self._report_problem("cannot write the status", "")

    def _report_problem(self, what: str, why: str) -> None:
        """Report a problem when it appears or changes, not each time."""
        if why and why != self._problems.get(what):
            self._notify(f"{what}: {why}")
        self._problems[what] = why


def _has_passed(since_ms: int, seconds: float) -> bool:
    """Also true when the clock was set back before `since_ms`."""
    return not 0 <= now_ms() - since_ms < seconds * 1_000
