"""Checkpoints that keep the WAL short while the writer commits.

Commits append frames to the WAL; a checkpoint copies them into the database. Passes run in a thread with a
connection of its own, so a commit does not wait for them (SQLite works without the interpreter's lock). The
WAL starts over by itself at the first commit that finds all of it copied and no reader in it; under steady
load a pass alone never catches up, so once what is left is small the writer copies that little itself.

Bound: between groups the WAL holds fewer than CAP_FRAMES frames, since a reader stays in it for one page at
most. A reader of another process (a backup, a check) may stay longer; the log then continues and retries every
RETRY_FRAMES.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import apsw

from unisono.store.sqlite.files import LOG_FILE, PAGE_BYTES, configure
from unisono.store.sqlite.wal_space import FREE_BYTES_MIN, WalSpace

PASS_FRAMES = 16_384
"""64 MiB: long enough that pages changed many times are copied once and that fewer than one commit in a hundred meets
the few milliseconds at the end of a pass, short enough for a brief recovery."""

TAIL_FRAMES = 128
"""512 KiB: what the writer at most copies itself, so that the WAL can start over; everybody waits meanwhile. Passes
follow each other until so little is left: each one is shorter, because less was written during the one before."""

CAP_FRAMES = 49_152
"""192 MiB: here the writer waits for the pass and the readers, so that reads and recovery stay fast."""

RESTART_TRIES = 5
"""One try waits for the readers it saw at first, even if they have moved on since; the next looks again."""

RETRY_FRAMES = 4_096
"""16 MiB of growth before waiting for a reader again, so that waiting is rare."""

_FRAME_BYTES = PAGE_BYTES + 24
"""A page behind its header."""

_CACHE_KIB = 2_000


class WalCheckpointer:
    """Decides when to checkpoint, and does it. All methods belong to the writer's thread.

    Invariant: one checkpoint at a time; `_passing` is set by the writer when it asks for a pass and cleared
    by the thread when the pass is over, and the writer checkpoints only while it is clear.
    """

    def __init__(self, writer: apsw.Connection, directory: Path) -> None:
        self._writer = writer
        self._frames = 0
        self._copied = 0
        self._next_step = PASS_FRAMES
        self._next_pass = PASS_FRAMES
        self._next_restart = CAP_FRAMES
        self._failure: Exception | None = None
        self._stopping = False
        self._passing = False
        self._wake = threading.Condition()
        self._beside = apsw.Connection(str(directory / LOG_FILE), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            configure(self._beside, _CACHE_KIB)
            self._space = WalSpace(writer, PASS_FRAMES * _FRAME_BYTES, FREE_BYTES_MIN)
        except BaseException:
            self._beside.close()
            raise
        writer.set_wal_hook(self._committed)
        self._thread = threading.Thread(target=self._passes, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def frames(self) -> int:
        """Frames in the WAL after the last commit."""
        return self._frames

    def now(self) -> float:
        """Seconds of any clock."""
        return time.monotonic()

    def maintain(self) -> None:
        """Between two groups: `step`, and room for the commits to come."""
        self.step()
        self._space.keep(self._frames * _FRAME_BYTES, self.now())

    def step(self) -> None:
        """Between two transactions: ask for a pass, finish its tail, or enforce the cap. Raises what a pass met."""
        if self._frames < self._next_step and self._failure is None:
            return
        if self._frames >= self._next_restart:
            self._restart()
        elif not self._passing:
            self._raise_failure()
            if self._frames - self._copied <= TAIL_FRAMES:
                self._checkpoint(self._writer, apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._next_step = self._frames + TAIL_FRAMES
            elif self._frames >= self._next_pass:
                self._next_pass = self._frames + TAIL_FRAMES
                self._ask_for_pass()

    def truncate(self) -> bool:
        """Empty the WAL's file, between two groups; False: not yet, a pass or a reader is in the way.

        What is too much for the writer to copy at once goes by a pass first.
        """
        if self._passing:
            return False
        self._raise_failure()
        if self._frames - self._copied > TAIL_FRAMES:
            self._ask_for_pass()
            return False
        if not self._checkpoint(self._writer, apsw.SQLITE_CHECKPOINT_TRUNCATE):
            return False
        self._start_over()
        self._frames = 0
        self._space.truncated()
        return True

    def close(self) -> None:
        """Stop and join the thread; waits for a running pass."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()
        self._space.close()
        self._writer.set_wal_hook(None)
        self._beside.close()

    def _restart(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: not self._passing)
        self._raise_failure()
        tries = (self._checkpoint(self._writer, apsw.SQLITE_CHECKPOINT_RESTART) for _ in range(RESTART_TRIES))
        if not any(tries):
            self._next_restart = self._frames + RETRY_FRAMES
        self._next_step = self._frames + TAIL_FRAMES

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _checkpoint(self, connection: apsw.Connection, mode: int) -> bool:
        """True when it ran; False when a reader or a foreign checkpoint was in its way."""
        try:
            _, self._copied = connection.wal_checkpoint("main", mode)
        except apsw.BusyError:
            return False
        return True

    def _committed(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._frames:
            self._start_over()
        self._frames = frames
        return apsw.SQLITE_OK

    def _start_over(self) -> None:
        """The WAL starts over."""
        self._copied = 0
        self._next_step = PASS_FRAMES
        self._next_pass = PASS_FRAMES
        self._next_restart = CAP_FRAMES

    def _ask_for_pass(self) -> None:
        with self._wake:
            self._passing = True
            self._wake.notify_all()

    def _passes(self) -> None:
        with self._wake:
            while self._wake.wait_for(lambda: self._passing or self._stopping) and not self._stopping:
                self._wake.release()
                try:
                    self._checkpoint(self._beside, apsw.SQLITE_CHECKPOINT_PASSIVE)
                except Exception as error:
                    self._failure = error
                finally:
                    self._wake.acquire()
                self._passing = False
                self._wake.notify_all()
