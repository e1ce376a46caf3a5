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
from unisono.history.records import (
    ConnectionClosed,
    ConnectionOpened,
    Frame,
    HistoryRecord,
    HistoryStart,
    HistoryUnreadable,
    Located,
)
from unisono.store.port import StorageError, StoreUnusable
from unisono.store.sqlite.reader import SqliteReader

BYTES_MAX: Final = 32 << 20
"""Of recorded frames; a test that sends more is about something else."""

FRAMES_SHOWN: Final = 30

_decode = msgspec.json.Decoder().decode


class Recorder:
    """The history of one data directory, in memory."""

    def __init__(self) -> None:
        self._records: list[HistoryRecord] = [HistoryStart()]
        self._lock = threading.Lock()
        self._names = itertools.count(1)
        self._bytes = 0

    def name(self) -> str:
        return f"connection {next(self._names)}"

    def opened(self, connection: str, client_id: str) -> None:
        self._add(ConnectionOpened(time.monotonic(), connection, client_id))

    def closed(self, connection: str) -> None:
        self._add(ConnectionClosed(time.monotonic(), connection))

    def frame(self, connection: str, direction: Literal["sent", "received"], data: str | bytes) -> None:
        at = time.monotonic()
        self._bytes += len(data)
        if self._bytes > BYTES_MAX:
            self._records.clear()
            return
        raw = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _decode(raw)
            self._add(Frame(at, connection, direction, Raw(raw)))

    def _add(self, record: HistoryRecord) -> None:
        with self._lock:
            self._records.append(record)

    def check(self, directory: Path) -> None:
        """Fail when the server broke a promise; where the log cannot be read, by what the clients saw alone."""
        if self._bytes > BYTES_MAX:
            return
        records = [Located(f"record {number}", each) for number, each in enumerate(self._records)]
        with contextlib.suppress(StoreUnusable, StorageError):
            reader = SqliteReader.open(directory)
            try:
                records += [Located("the log", each) for each in read_log(reader)]
            finally:
                reader.close()
        with contextlib.suppress(HistoryUnreadable):  # another epoch of the log
            findings = [
                f"{each.invariant}: {each.text} ({each.where})" for each in check_history(records).findings()
            ]
            assert not findings, "\n".join([*findings, *self._frames_of(findings[0])])

    def _frames_of(self, finding: str) -> list[str]:
        """What passed on the connection that a finding names."""
        frames = [
            each for each in self._records if isinstance(each, Frame) and f"{each.connection}:" in finding
        ]
        return [
            f"{each.at:.3f} {each.direction} {bytes(each.message)[:300]!r}" for each in frames[:FRAMES_SHOWN]
        ]
