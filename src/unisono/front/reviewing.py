"""The log read through another model before it is put into force, in a process of its own beside the authority.

Commits go on meanwhile: the process reads the log as a reader does, one partition after the other, and events that
have left the log from their archive. It runs the operator's rules, so it watches itself: a rule that does not return
ends the review and is named.

What goes in is a `Request` on standard input; what comes out are lines of JSON, `Progress` and at the end `Outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec
import orjson

from unisono.config import Settings
from unisono.front.processes import open_archive, open_reader
from unisono.model.loading import ModelError, load_files, load_model
from unisono.model.model import Model
from unisono.model.replaying import Review, Reviewer
from unisono.protocol.tombstones import is_tombstone
from unisono.store.archive import ArchivedReader, ArchiveFailed
from unisono.store.cluster import ModelBundle
from unisono.store.port import LogReader, Record, StorageError, StoreUnusable

EVENT_TIMEOUT_S: Final = 10.0
"""One event under one model. Far more than any rule may take, so that a busy machine is not mistaken for a loop."""

SILENCE_MAX_S: Final = 120.0
"""Without a word for so long the process is taken for stuck where it cannot watch itself."""

PROGRESS_S: Final = 0.5
NICENESS: Final = 10
"""Whoever commits comes first."""

PAGE_EVENTS: Final = 1_000
PAGE_BYTES: Final = 4 << 20
ARCHIVE_CACHE_BYTES: Final = 64 << 20
LINE_BYTES_MAX: Final = 16 << 20


class Request(msgspec.Struct, frozen=True):
    """Which log, by the settings of its server, and which model directory."""

    settings: Settings
    model: str


class Progress(msgspec.Struct, frozen=True, tag="progress", tag_field="is"):
    """How far the review is, in events of the log."""

    events: int
    of: int


class Outcome(msgspec.Struct, frozen=True, tag="outcome", tag_field="is"):
    """The review and the content of the model it is of; or why there is none."""

    review: Review | None = None
    digest: str = ""
    error: str = ""


Told = Progress | Outcome


class ReviewFailed(Exception):
    """The log could not be reviewed; the text says why."""


class NamedReader(LogReader, Protocol):
    """A reader that knows its partitions, and which model its server judges by."""

    def partition_names(self) -> Iterator[str]: ...

    def model_in_force(self) -> ModelBundle | None: ...


# -- in the process ------------------------------------------------------------------------------------------------


class Watch:
    """Calls `overdue` from a thread when one event takes too long; `at` is to be told of every event."""

    def __init__(self, overdue: Callable[[str], None], timeout_s: float = EVENT_TIMEOUT_S) -> None:
        self._overdue = overdue
        self._timeout_s = timeout_s
        self._at: tuple[float, str, int] | None = None
        self._models: list[Model] = []
        threading.Thread(target=self._run, daemon=True).start()

    def of(self, *models: Model | None) -> None:
        self._models = [model for model in models if model is not None]

    def at(self, partition: str, committed_id: int) -> None:
        self._at = time.monotonic(), partition, committed_id

    def rest(self) -> None:
        """No event is at work."""
        self._at = None

    def _run(self) -> None:
        while True:
            time.sleep(self._timeout_s / 20)
            at = self._at
            if at is not None and time.monotonic() - at[0] > self._timeout_s:
                running = [m.canonical.running_rule for m in self._models if m.canonical is not None]
                rule = next((label for label in running if label is not None), None)
                what = f"the rule {rule}" if rule else "the model"
                self._overdue(
                    f"{what} did not return within {self._timeout_s:g} s on event {at[2]} in {at[1]!r}"
                )


def review_log(
    settings: Settings, model: Model, tell: Callable[[Progress], None], watch: Watch, *, compare: bool = True
) -> Review:
    """What a model makes of a whole log; with `compare`, beside the model that is in force there.

    Memory holds the states of one partition and a page of its events.
    """
    for_names, for_pages = _open(settings), _open(settings)
    archive = open_archive(settings, ARCHIVE_CACHE_BYTES)
    try:
        bundle = for_names.model_in_force() if compare else None
        before = None if bundle is None else load_files(bundle.files, accept_init=settings.accept_init)
        for each in (model, before):
            if each is not None and each.canonical is not None:
                each.canonical.silence()
        watch.of(model, before)
        reviewer = Reviewer(model, before, for_names.head())
        whole = ArchivedReader(for_pages, archive)
        told = 0.0
        for partition in for_names.partition_names():
            for records in _pages(whole, partition, reviewer.review.upto):
                _take(reviewer, partition, records, watch)
                if time.monotonic() - told > PROGRESS_S:
                    told = time.monotonic()
                    tell(Progress(reviewer.review.events, reviewer.review.upto))
    finally:
        archive.close()
        for_pages.close()
        for_names.close()
    return reviewer.review


def _open(settings: Settings) -> NamedReader:
    reader = open_reader(settings)
    assert hasattr(reader, "partition_names")
    return reader  # type: ignore[return-value]


def _pages(log: ArchivedReader, partition: str, upto: int) -> Iterator[list[Record]]:
    since, more = 0, True
    while more:
        page = log.page((partition,), since, upto, limit=PAGE_EVENTS, bytes_max=PAGE_BYTES)
        if page.records:
            yield list(page.records)
            since = page.records[-1].committed_id
        more = page.has_more


def _take(reviewer: Reviewer, partition: str, records: list[Record], watch: Watch) -> None:
    reviewer.go_on(partition)
    for record in records:
        if is_tombstone(record.event):
            reviewer.skip(record.partitions)
            continue
        watch.at(partition, record.committed_id)
        reviewer.take(record.committed_id, orjson.loads(record.event), record.partitions)
    watch.rest()


def main() -> None:
    """The process: nothing but lines of JSON goes to its standard output, whatever a rule prints."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for name in (signal.SIGINT, signal.SIGHUP):  # to the whole process group: the node's to follow
        signal.signal(name, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)

    def tell(told: Told) -> None:
        out.write(msgspec.json.encode(told) + b"\n")

    def overdue(error: str) -> None:
        tell(Outcome(error=error))
        os._exit(0)

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        model = load_model(Path(request.model), accept_init=request.settings.accept_init)
        review = review_log(request.settings, model, tell, Watch(overdue))
    except (ModelError, StoreUnusable, StorageError, ArchiveFailed) as error:
        tell(Outcome(error=str(error)))
    except BrokenPipeError:
        os._exit(1)  # whoever asked is gone
    else:
        tell(Outcome(review, model.digest))


# -- in the node ---------------------------------------------------------------------------------------------------


async def review_beside(
    settings: Settings, model: str, tell: Callable[[Progress], None]
) -> tuple[Review, str]:
    """The review of this server's log under the model in a directory, and the digest of that model."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "unisono.front.reviewing",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(Request(settings, model)))
        process.stdin.close()
        async for told in _heard(process.stdout):
            if isinstance(told, Progress):
                tell(told)
            elif told.review is None:
                raise ReviewFailed(told.error)
            else:
                return told.review, told.digest
        raise ReviewFailed("the process that reads the log ended without a result; the server's log says why")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def _heard(lines: asyncio.StreamReader) -> AsyncIterator[Told]:
    decode = msgspec.json.Decoder(Told).decode
    while True:
        try:
            line = await asyncio.wait_for(lines.readline(), SILENCE_MAX_S)
        except TimeoutError:
            raise ReviewFailed(f"the log could not be read on for {SILENCE_MAX_S:g} s") from None
        if not line:
            return
        yield decode(line)


if __name__ == "__main__":
    main()
