"""One run of a model over events, in a process of its own: rules that never return cannot hang the command.

Several such processes, each with another seed for hashes, another time and another working directory, send whether
the model is deterministic. A `TrialRequest` goes in on standard input, and lines of JSON, `TrialAnswer`, come out.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, TextIO

import msgspec

from unisono.cli.model_javascript import JavaScriptFailed, TwinResult, compare_log, compare_stories
from unisono.config import Settings
from unisono.lake.cold.archive import ArchiveFailed
from unisono.model.lint import ModelCheckReport, check_model
from unisono.model.load import ModelError, load_model
from unisono.model.partition import PartitionState
from unisono.model.replay import Review
from unisono.model.trials import Mark, Probe, state_digest
from unisono.node.model_review import LineOutput, ReviewProgress, ReviewWatch, review_log
from unisono.store.port import Record, StorageError, StoreUnusable

ALIVE_INTERVAL_S: Final = 1.0


class LogRequest(msgspec.Struct, frozen=True):
    """A log to read, by the settings of its server; `digests` is a file to write a line per partition to."""

    settings: Settings
    upto: int
    compare: bool = False
    partition: str | None = None
    digests: str = ""


class TrialRequest(msgspec.Struct, frozen=True):
    """`stories`: names and files of JSON lines. `shift_s`: how far off the clock is. `elsewhere`: run in `/`.

    `javascript`: a file of reducers in JavaScript to compare with; nothing else is done.
    """

    model: str
    timeout_s: float
    stories: list[tuple[str, str]] = []
    probe: Probe = Probe()
    log: LogRequest | None = None
    shift_s: float = 0.0
    elsewhere: bool = False
    javascript: str = ""


class TrialAnswer(msgspec.Struct, frozen=True):
    """The last one has a report, or an error; those before it send how far the reading of a log is."""

    progress: ReviewProgress | None = None
    report: ModelCheckReport | None = None
    review: Review | None = None
    marks: list[Mark] = []
    states: dict[str, Any] = {}
    twin: TwinResult | None = None
    error: str = ""


class Digests:
    """Follows the reading of a log: a digest per partition into a file, or marks of one partition."""

    def __init__(self, file: TextIO | None, probe: Probe) -> None:
        self.marks: list[Mark] = []
        self.states: dict[str, Any] = {}
        self._file = file
        self._probe = probe
        self._place = 0
        self._refusals = hashlib.sha256()
        self._last: tuple[str, tuple[str | None, ...]] = "", ()

    def on_event(
        self, partition: str, record: Record, state: PartitionState, refusals: tuple[str | None, ...]
    ) -> None:
        self._place += 1
        if any(refusals):
            self._refusals.update(repr((record.committed_id, refusals)).encode())
        if self._probe.due(self._place):
            kind = f"event {record.committed_id} in {partition!r}"
            self.marks.append(self._mark(partition, state, kind, refusals))

    def on_partition_end(self, partition: str, state: PartitionState) -> None:
        mark = self._mark(partition, state, "", ())
        if self._file is not None:
            line = [partition, self._place, mark.digest]
            self._file.write(msgspec.json.encode(line).decode() + "\n")
        else:
            self.states[partition] = state.dump()
        self._place, self._refusals = 0, hashlib.sha256()

    def _mark(
        self, partition: str, state: PartitionState, kind: str, refusals: tuple[str | None, ...]
    ) -> Mark:
        dump = state.dump()
        digest = self._refusals.copy()
        digest.update(state_digest(partition, dump))
        states = {partition: dump} if self._probe.states else None
        return Mark(self._place, digest.hexdigest(), kind, states, tuple(each for each in refusals if each))


def run(request: TrialRequest, send: Any, watch: ReviewWatch) -> TrialAnswer:
    """Perform a request."""
    if request.elsewhere:
        os.chdir("/")
    if request.shift_s:
        shift_clock(request.shift_s)
    watch.start_loading()
    if request.javascript:
        return _compare_javascript(request, send, watch)
    if request.log is None:
        with ExitStack() as stack:
            stories: Mapping[str, BinaryIO] = {
                name: stack.enter_context(Path(path).open("rb")) for name, path in request.stories
            }
            return TrialAnswer(
                report=check_model(Path(request.model), stories=stories, probe=request.probe, watch=watch)
            )
    log = request.log
    model = load_model(Path(request.model), accept_init=log.settings.accept_init)
    watch.idle()
    with ExitStack() as stack:
        file = stack.enter_context(Path(log.digests).open("w")) if log.digests else None
        digests = Digests(file, request.probe)
        review = review_log(
            log.settings,
            model,
            send,
            watch,
            compare=log.compare,
            upto=log.upto,
            partition=log.partition,
            observer=digests,
        )
    return TrialAnswer(review=review, marks=digests.marks, states=digests.states)


def _compare_javascript(request: TrialRequest, send: Any, watch: ReviewWatch) -> TrialAnswer:
    model, functions, log = load_model(Path(request.model)), Path(request.javascript), request.log
    watch.idle()
    watch.watch_models(model)
    if log is not None:
        return TrialAnswer(twin=compare_log(model, functions, log.settings, log.upto, send, watch))
    with ExitStack() as stack:
        stories = {name: stack.enter_context(Path(path).open("rb")) for name, path in request.stories}
        return TrialAnswer(twin=compare_stories(model, functions, stories, watch))


def shift_clock(by_s: float) -> None:
    """Let whatever is imported from now on believe that it is another time."""
    clock = time.time
    by_ns = int(by_s * 1e9)
    nanoseconds, gmtime, localtime, strftime = time.time_ns, time.gmtime, time.localtime, time.strftime
    time.time = lambda: clock() + by_s
    time.time_ns = lambda: nanoseconds() + by_ns
    time.gmtime = lambda seconds=None: gmtime(clock() + by_s if seconds is None else seconds)
    time.localtime = lambda seconds=None: localtime(clock() + by_s if seconds is None else seconds)
    time.strftime = lambda form, at=None: strftime(form, time.localtime() if at is None else at)
    delta = datetime.timedelta(seconds=by_s)
    moment, day = datetime.datetime, datetime.date

    class LikeMoment(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, moment)

    class LikeDay(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, day)

    class Shifted(datetime.datetime, metaclass=LikeMoment):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return moment.now(tz) + delta

        @classmethod
        def utcnow(cls) -> Any:
            return moment.now(datetime.UTC).replace(tzinfo=None) + delta

        @classmethod
        def today(cls) -> Any:
            return moment.now() + delta

    class ShiftedDay(datetime.date, metaclass=LikeDay):
        @classmethod
        def today(cls) -> Any:
            return (moment.now() + delta).date()

    datetime.datetime, datetime.date = Shifted, ShiftedDay  # type: ignore[misc]


def main() -> None:
    """Entry of the process: one request on stdin, answers in lines on stdout."""
    out = LineOutput()
    sent_at = time.monotonic()

    def send(answer: TrialAnswer) -> None:
        try:
            out.send(msgspec.json.encode(answer))
        except BrokenPipeError:
            os._exit(1)  # the parent process is gone

    def overdue(error: str) -> NoReturn:
        send(TrialAnswer(error=error))
        os._exit(0)

    def alive() -> None:
        nonlocal sent_at
        if time.monotonic() - sent_at > ALIVE_INTERVAL_S:
            sent_at = time.monotonic()
            send(TrialAnswer())

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialRequest)
    watch = ReviewWatch(overdue, request.timeout_s, named=_named, alive=alive)
    try:
        send(run(request, lambda progress: send(TrialAnswer(progress)), watch))
    except (ModelError, StoreUnusable, StorageError, ArchiveFailed, JavaScriptFailed, OSError) as error:
        send(TrialAnswer(error=str(error)))


def _named(where: str, number: int) -> str:
    return f"line {number} of {where or 'the events'}"


if __name__ == "__main__":
    main()
