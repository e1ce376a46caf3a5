"""Reviews the log under another model before the switch to it, in a process of its own.

The authority commits meanwhile: the process reads the log as a reader does, partition by partition, and pruned events
from the archive. It runs the operator's rules, so it watches itself: a rule that does not return ends the review and
is named.

Input: a `ReviewRequest` on standard input. Output: lines of JSON, `ReviewProgress` and at the end `ReviewOutcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec
import orjson

from unisono.config import Settings
from unisono.lake.cold.archive import ArchivedReader, ArchiveFailed
from unisono.model.authorship import authorship_of
from unisono.model.load import ModelError, load_files, load_model
from unisono.model.model import Model
from unisono.model.partition import PartitionState
from unisono.model.replay import Review, Reviewer
from unisono.node.open_log import open_archive, open_reader
from unisono.protocol.tombstones import is_tombstone
from unisono.store.cluster import ModelBundle
from unisono.store.port import LogReader, Record, StorageError, StoreUnusable

EVENT_TIMEOUT_S: Final = 10.0
"""For one event under one model. Far more than any rule may take, so that a busy machine is not taken for a loop."""

LOAD_TIMEOUT_S: Final = 60.0
"""For loading a model: a schema of a hundred thousand properties takes some seconds."""

LOADING: Final = -1
"""Instead of an event's number."""

MAX_SILENCE_S: Final = 120.0
"""A process that writes nothing for this long is stuck where it cannot watch itself, and is killed."""

ANSWERED_GRACE_S: Final = 1.0
"""For a process to end by itself when nobody reads it any more; one that is stuck is killed then."""

PROGRESS_S: Final = 0.5
NICENESS: Final = 10
"""The authority's commits have priority over a review."""

PAGE_EVENTS: Final = 1_000
PAGE_BYTES: Final = 4 << 20
ARCHIVE_CACHE_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 16 << 20


class ReviewRequest(msgspec.Struct, frozen=True):
    """Which log, by the settings of its server, and which model directory."""

    settings: Settings
    model: str


class ReviewProgress(msgspec.Struct, frozen=True, tag="progress", tag_field="is"):
    """How far the review is, in events of the log."""

    events: int
    of: int


class ReviewOutcome(msgspec.Struct, frozen=True, tag="outcome", tag_field="is"):
    """The review and the digest of the reviewed model, or the error."""

    review: Review | None = None
    digest: str = ""
    error: str = ""


ReviewLine = ReviewProgress | ReviewOutcome


class ReviewFailed(Exception):
    """The log could not be reviewed; the text says why."""


class Observer(Protocol):
    """Is called after every reviewed event with the state after it, and after the last event of a partition."""

    def on_event(
        self, partition: str, record: Record, state: PartitionState, said: tuple[str | None, ...]
    ) -> None: ...

    def on_partition_end(self, partition: str, state: PartitionState) -> None: ...


class NamedReader(LogReader, Protocol):
    """A reader that also lists the partitions of its log, and the model in force."""

    def partition_names(self) -> Iterator[str]: ...

    def model_in_force(self) -> ModelBundle | None: ...


# -- in the process ------------------------------------------------------------------------------------------------


class ReviewWatch:
    """Calls `overdue` from a thread when one event takes too long; `start_event` is called for every event."""

    def __init__(
        self,
        overdue: Callable[[str], None],
        timeout_s: float = EVENT_TIMEOUT_S,
        *,
        named: Callable[[str, int], str] = lambda partition, id: f"event {id} in {partition!r}",
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`named` describes an event. `alive` is called regularly, as long as threads get to run."""
        self._overdue = overdue
        self._timeout_s = timeout_s
        self._named = named
        self._alive = alive
        self._at: tuple[float, str, int] | None = None
        self._models: list[Model] = []
        threading.Thread(target=self._run, daemon=True).start()

    def watch_models(self, *models: Model | None) -> None:
        self._models = [model for model in models if model is not None]

    def start_event(self, where: str, number: int) -> None:
        self._at = time.monotonic(), where, number

    def start_loading(self) -> None:
        """A model is being loaded: its schemas may be large, and its module may never return."""
        self._at = time.monotonic() + max(0.0, LOAD_TIMEOUT_S - self._timeout_s), "", LOADING

    def idle(self) -> None:
        """Nothing of a model is running."""
        self._at = None

    def _run(self) -> None:
        while True:
            time.sleep(min(1.0, self._timeout_s / 20))
            self._alive()
            at = self._at
            if at is not None and time.monotonic() - at[0] > self._timeout_s:
                running = [m.canonical.running_rule for m in self._models if m.canonical is not None]
                rule = next((label for label in running if label is not None), None)
                if at[2] == LOADING:
                    limit_s = max(LOAD_TIMEOUT_S, self._timeout_s)
                    self._overdue(f"the model could not be loaded within {limit_s:g} s")
                    continue
                what = f"the rule {rule}" if rule else "the model"
                place = self._named(at[1], at[2])
                self._overdue(f"{what} did not return within {self._timeout_s:g} s on {place}")


def review_log(
    settings: Settings,
    model: Model,
    on_progress: Callable[[ReviewProgress], None],
    watch: ReviewWatch,
    *,
    compare: bool = True,
    upto: int | None = None,
    partition: str | None = None,
    observer: Observer | None = None,
) -> Review:
    """Review a log up to `upto`, or one partition, under a model; with `compare`, against the model in force there.

    Memory: the states of one partition and a page of its events.
    """
    for_names, for_pages = _open(settings), _open(settings)
    archive = open_archive(settings, ARCHIVE_CACHE_BYTES)
    try:
        bundle = for_names.model_in_force() if compare else None
        before = None if bundle is None else load_files(bundle.files, accept_init=settings.accept_init)
        for each in (model, before):
            if each is not None and each.canonical is not None:
                each.canonical.silence()
        watch.watch_models(model, before)
        reviewer = Reviewer(model, before, for_names.head() if upto is None else upto)
        whole = ArchivedReader(for_pages, archive)
        reported_at = 0.0
        for name in for_names.partition_names() if partition is None else (partition,):
            for records in _pages(whole, name, reviewer.review.upto):
                _review_page(reviewer, name, records, watch, observer)
                if time.monotonic() - reported_at > PROGRESS_S:
                    reported_at = time.monotonic()
                    on_progress(ReviewProgress(reviewer.review.events, reviewer.review.upto))
            if observer is not None and reviewer.partition == name:
                observer.on_partition_end(name, reviewer.state)
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


def _review_page(
    reviewer: Reviewer, partition: str, records: list[Record], watch: ReviewWatch, observer: Observer | None
) -> None:
    reviewer.go_on(partition)
    for record in records:
        if is_tombstone(record.event):
            reviewer.skip(record.partitions)
            continue
        watch.start_event(partition, record.committed_id)
        by = authorship_of(record.client_id, record.author, record.status_updated_at)
        said = reviewer.take(record.committed_id, orjson.loads(record.event), record.partitions, by)
        if observer is not None:
            observer.on_event(partition, record, reviewer.state, said)
    watch.idle()


class LineOutput:
    """Writes lines to standard output; what a rule prints goes to standard error instead.

    Signals to the process group are ignored: the parent ends this process.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        self._lock = threading.Lock()
        os.dup2(2, 1)
        for name in (signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)

    def send(self, line: bytes) -> None:
        with self._lock:
            self._out.write(line + b"\n")
            self._out.flush()


def main() -> None:
    """The process: its standard output has lines of JSON only, whatever a rule prints."""
    out = LineOutput()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)

    def send(line: ReviewLine) -> None:
        out.send(msgspec.json.encode(line))

    def overdue(error: str) -> None:
        send(ReviewOutcome(error=error))
        os._exit(0)

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ReviewRequest)
    try:
        watch = ReviewWatch(overdue)
        watch.start_loading()
        model = load_model(Path(request.model), accept_init=request.settings.accept_init)
        watch.idle()
        review = review_log(request.settings, model, send, watch)
    except (ModelError, StoreUnusable, StorageError, ArchiveFailed) as error:
        send(ReviewOutcome(error=str(error)))
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
    else:
        send(ReviewOutcome(review, model.digest))


# -- in the node ---------------------------------------------------------------------------------------------------


async def review_in_process(
    settings: Settings, model: str, on_progress: Callable[[ReviewProgress], None]
) -> tuple[Review, str]:
    """Review this server's log under the model in a directory; also the digest of that model."""
    decode = msgspec.json.Decoder(ReviewLine).decode
    request = msgspec.json.encode(ReviewRequest(settings, model))
    async with contextlib.aclosing(
        process_lines("unisono.node.model_review", request, MAX_SILENCE_S)
    ) as lines:
        async for line in lines:
            message = decode(line)
            if isinstance(message, ReviewProgress):
                on_progress(message)
            elif message.review is None:
                raise ReviewFailed(message.error)
            else:
                return message.review, message.digest
    raise ReviewFailed("the process that reads the log ended without a result; the server's log says why")


async def process_lines(
    module: str, request: bytes, silence_s: float, **environment: str
) -> AsyncGenerator[bytes, None]:
    """Run a Python module as a process with `request` as its input, and yield the lines it writes.

    A process that runs on when the generator is closed is killed. ReviewFailed when no line arrives for `silence_s`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
        env={**os.environ, **environment},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.close()
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), silence_s)
            except TimeoutError:
                raise ReviewFailed(f"the process wrote nothing for {silence_s:g} s") from None
            if not line:
                return
            yield line
    finally:
        # One that has answered ends by itself. Killing it while it does, the library takes its exit code from under
        # the thread that waits for it, which then says so on stderr.
        try:
            async with asyncio.timeout(ANSWERED_GRACE_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


if __name__ == "__main__":
    main()
