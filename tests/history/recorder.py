"""Records what the peers of a test send and receive, and checks it when their server has ended."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Raw

from unisono.history.check import check_history
from unisono.history.final_read import read_log
from unisono.history.findings import Verdict
from unisono.history.records import (
    ConnectionClosed,
    ConnectionOpened,
    Fault,
    Frame,
    HistoryRecord,
    HistoryStart,
    HistoryUnreadable,
    Located,
)
from unisono.store.port import LogReader, StorageError, StoreUnusable
from unisono.store.postgres.log import PostgresReader
from unisono.store.sqlite.reader import SqliteReader

BYTES_MAX: Final = 32 << 20
"""Of recorded frames; a test that sends more is about something else."""

FRAMES_SHOWN: Final = 30
FINDINGS_SHOWN: Final = 30

_decode = msgspec.json.Decoder().decode


class Recorder:
    """The history of one log, in memory. `complete`: the log is empty, and all its clients are recorded here."""

    def __init__(self, *, complete: bool = False, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._records: list[HistoryRecord] = [HistoryStart(complete=complete)]
        self._lock = threading.Lock()
        self._names = itertools.count(1)
        self._bytes = 0

    def name(self) -> str:
        return f"connection {next(self._names)}"

    def opened(self, connection: str, client_id: str) -> None:
        self._add(ConnectionOpened(time.monotonic(), connection, client_id))

    def closed(self, connection: str) -> None:
        self._add(ConnectionClosed(time.monotonic(), connection))

    def fault(self, what: str) -> None:
        self._add(Fault(time.monotonic(), what))

    def add(self, record: HistoryRecord) -> None:
        """A record of another kind: an outcome that a client told, or what its store holds."""
        self._add(record)

    def faults(self) -> list[str]:
        return [each.what for each in self._records if isinstance(each, Fault)]

    def frame(self, connection: str, direction: Literal["sent", "received"], data: str | bytes) -> None:
        at = time.monotonic()
        self._bytes += len(data)
        if self._bytes > self._bytes_max:
            self._records.clear()
            return
        raw = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _decode(raw)
            self._add(Frame(at, connection, direction, Raw(raw)))

    def _add(self, record: HistoryRecord) -> None:
        with self._lock:
            self._records.append(record)

    def check(self, store: Path | str) -> None:
        """Fail when a promise was broken; where the log cannot be read, by what the clients saw alone."""
        if self._bytes > self._bytes_max:
            return
        with contextlib.suppress(HistoryUnreadable):  # another epoch of the log
            try:
                reader = SqliteReader.open(store) if isinstance(store, Path) else PostgresReader.open(store)
            except (StoreUnusable, StorageError):
                self.judge(None)
                return
            with contextlib.closing(reader):
                self.judge(reader)

    def judge(self, reader: LogReader | None, *, same_past: bool = False) -> Verdict:
        """What the history says, which is that every promise was kept; AssertionError otherwise."""
        assert self._bytes <= self._bytes_max, "too much was recorded to keep"
        records = [Located(f"record {number}", each) for number, each in enumerate(self._records)]
        if reader is not None:
            with contextlib.suppress(StoreUnusable, StorageError):
                records += [Located("the log", each) for each in read_log(reader)]
        verdict = check_history(records, same_past=same_past)
        findings = [f"{each.invariant}: {each.text} ({each.where})" for each in verdict.findings()]
        assert not findings, "\n".join([*findings[:FINDINGS_SHOWN], *self._frames_of(findings[0])])
        return verdict

    def _frames_of(self, finding: str) -> list[str]:
        """What passed on the connection that a finding names."""
        frames = [
            each for each in self._records if isinstance(each, Frame) and f"{each.connection}:" in finding
        ]
        return [
            f"{each.at:.3f} {each.direction} {bytes(each.message)[:300]!r}" for each in frames[:FRAMES_SHOWN]
        ]
