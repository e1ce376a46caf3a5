"""The lines of a history file: what clients sent and received, what failed, and what storage had in the end.

One JSON object a line, distinguished by `record`; `docs/protocol/history.md` describes each. Times are seconds of one
monotonic clock. Unknown fields are ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

FORMAT: Final = 1


class HistoryUnreadable(Exception):
    """A file that is no history; the text names the file, the line and the reason."""


class HistoryStart(msgspec.Struct, tag_field="record", tag="history", frozen=True):
    """The first line. `complete`: the log was empty at the start, and every client was recorded."""

    format: int = FORMAT
    complete: bool = False


class AccessScope(msgspec.Struct, frozen=True):
    """The partitions that a token, or the ACL, allows: to read and write, and those to read alone."""

    partitions: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    readable_partitions: tuple[str, ...] = ()
    readable_prefixes: tuple[str, ...] = ()

    def allows(self, partition: str) -> bool:
        """To read and to write."""
        return partition in self.partitions or partition.startswith(self.prefixes)

    def reads(self, partition: str) -> bool:
        also = partition in self.readable_partitions or partition.startswith(self.readable_prefixes)
        return also or self.allows(partition)


class ConnectionOpened(msgspec.Struct, tag_field="record", tag="connection", frozen=True):
    """A connection, named uniquely in the history. Without a scope its deliveries are not judged by access."""

    at: float
    connection: str
    client_id: str
    node: str = ""
    scope: AccessScope | None = None
    expires_at: float | None = None


class Frame(msgspec.Struct, tag_field="record", tag="frame", frozen=True):
    """One message, `sent` or `received` by the client; a string where it was no JSON."""

    at: float
    connection: str
    direction: Literal["sent", "received"]
    message: Raw


class ConnectionClosed(msgspec.Struct, tag_field="record", tag="closed", frozen=True):
    at: float
    connection: str
    code: int | None = None


class ScopeChanged(msgspec.Struct, tag_field="record", tag="access", frozen=True):
    """What a client may do has changed: its open connections have this scope from then on.

    Without a scope they were ended (a kick, a revoked token), and new ones refused until `until`.
    """

    at: float
    client_id: str
    scope: AccessScope | None = None
    until: float | None = None


class Operation(msgspec.Struct, tag_field="record", tag="operation", frozen=True):
    """The outcome of a submission by a client whose frames are not recorded."""

    at: float
    client: str
    id: str
    phase: Literal["invoked", "ok", "failed", "unknown"]
    committed_id: int | None = None


class ClientCursor(msgspec.Struct, tag_field="record", tag="cursor", frozen=True):
    """The durable cursor of a client's store after a transaction."""

    at: float
    client: str
    cursor: int


class Fault(msgspec.Struct, tag_field="record", tag="fault", frozen=True):
    """Something that was broken on purpose. Findings name the fault before them."""

    at: float
    what: str


class HistoryEvent(msgspec.Struct, frozen=True):
    """One event of the final read; `hash` is the hexadecimal SHA-256 of ORD-06, absent where the event was erased."""

    committed_id: int
    id: str
    partitions: tuple[str, ...]
    hash: str | None = None
    client_id: str = ""


class LogEvent(HistoryEvent, tag_field="record", tag="stored", frozen=True):
    """An event of the log."""


class LakeEvent(HistoryEvent, tag_field="record", tag="archived", frozen=True):
    """An event of the lake."""


class LogRead(msgspec.Struct, tag_field="record", tag="log", frozen=True):
    """The log was read to its end: its events are those in `pruned_to < committed_id <= head`."""

    head: int
    pruned_to: int = 0


class LakeRead(msgspec.Struct, tag_field="record", tag="lake", frozen=True):
    """The lake was read to its end: it has every event up to and including `upto`."""

    upto: int


class SnapshotRead(msgspec.Struct, tag_field="record", tag="snapshot", frozen=True):
    """A snapshot beside the state that replaying the partition gives, both as digests."""

    partition: str
    committed_id: int
    state: str
    replayed: str


class ClientStore(msgspec.Struct, tag_field="record", tag="client_store", frozen=True):
    """What a client has in the end: events up to `cursor`, above the snapshot that a partition starts from."""

    client: str
    partitions: tuple[str, ...]
    cursor: int
    committed: tuple[tuple[int, str], ...] = ()
    drafts: tuple[str, ...] = ()
    snapshot_starts: Mapping[str, int] = {}
    state: str | None = None


HistoryRecord: TypeAlias = (
    HistoryStart
    | ConnectionOpened
    | Frame
    | ConnectionClosed
    | ScopeChanged
    | Operation
    | ClientCursor
    | Fault
    | LogEvent
    | LakeEvent
    | LogRead
    | LakeRead
    | SnapshotRead
    | ClientStore
)

_decode = msgspec.json.Decoder(HistoryRecord).decode
_encode = msgspec.json.Encoder().encode


class Located(msgspec.Struct, frozen=True):
    """A record and where it stands."""

    where: str
    record: HistoryRecord


def read_history(paths: Sequence[Path]) -> Iterator[Located]:
    """The records of several files, file by file; HistoryUnreadable for a line that is none."""
    for path in paths:
        try:
            with path.open("rb") as file:
                yield from _read(path, file)
        except OSError as error:
            raise HistoryUnreadable(f"{path}: {error.strerror}") from None


def _read(path: Path, lines: Iterable[bytes]) -> Iterator[Located]:
    number = 0
    for number, line in enumerate(lines, start=1):
        where = f"{path.name}:{number}"
        try:
            record: HistoryRecord = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HistoryUnreadable(f"{path}: line {number} is no record of a history: {error}") from None
        if (number == 1) != isinstance(record, HistoryStart):
            raise HistoryUnreadable(
                f'{path}: line {number}: {{"record":"history"}} belongs in line 1 and only there'
            )
        if isinstance(record, HistoryStart) and record.format != FORMAT:
            raise HistoryUnreadable(f"{path}: format {record.format}; this version reads format {FORMAT}")
        yield Located(where, record)
    if not number:
        raise HistoryUnreadable(f"{path}: the file is empty")


class HistoryWriter:
    """Appends records to a file; several threads may use it."""

    def __init__(self, path: Path, *, complete: bool = False) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._lock = threading.Lock()
        self.write(HistoryStart(complete=complete))

    def write(self, record: HistoryRecord) -> None:
        line = _encode(record) + b"\n"
        with self._lock:
            self._file.write(line)

    def frame(
        self, at: float, connection: str, direction: Literal["sent", "received"], text: str | bytes
    ) -> None:
        """A message as it was on the wire; one that is no JSON is written as a string."""
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        try:
            msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raw = _encode(raw.decode("utf-8", "replace"))
        self.write(Frame(at, connection, direction, Raw(raw.replace(b"\n", b" "))))

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
