"""The process in which the console replays partitions: it reads the log as any reader does, and runs the model.

A process of its own, because rules are the operator's code and may never return: the node kills it then, and nothing
else is touched. It has the lowest priority, keeps at most HISTORIES_KEPT histories, and ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec

from unisono.config import Settings
from unisono.console.partition_history import (
    BYTES_MAX,
    EVENTS_MAX,
    HistoryTooLarge,
    PartitionHistory,
    event_row,
)
from unisono.console.process_requests import (
    AskChanges,
    AskDifference,
    AskEvent,
    AskModel,
    AskPartitionHistory,
    AskState,
    ProcessAnswer,
    ReplayRequest,
    StartReplays,
)
from unisono.console.state_view import bounded_view, state_differences
from unisono.lake.cold.archive import ArchivedReader, ArchiveFailed
from unisono.model.load import ModelError, load_files, load_model, open_model
from unisono.model.model import Model, no_model
from unisono.node.model_review import NICENESS, LineOutput
from unisono.node.open_log import open_archive, open_reader
from unisono.store.browse import BrowsableLog
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import StorageError, StoreUnusable
from unisono.vocabulary import Json

HISTORIES_KEPT: Final = 2
ARCHIVE_CACHE_BYTES: Final = 32 << 20
EVENT_BYTES_SHOWN: Final = 256 << 10
FILE_BYTES_SHOWN: Final = 64 << 10
FILES_SHOWN: Final = 100

_ANSWERED_ERRORS: Final = (HistoryTooLarge, ModelError, StoreUnusable, StorageError, ArchiveFailed)


class Replays:
    """Answers requests about one log."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log: BrowsableLog = open_reader(settings)  # type: ignore[assignment]
        self._whole = ArchivedReader(self._log, open_archive(settings, ARCHIVE_CACHE_BYTES))
        self._model: Model | None = None
        self._digest = ""
        self._version = NO_MODEL_VERSION
        self._histories: OrderedDict[str, PartitionHistory] = OrderedDict()

    def answer(self, request: ReplayRequest) -> Json:
        match request:
            case AskPartitionHistory():
                return self._describe(self._history(request.partition))
            case AskState():
                state, skipped = self._history(request.partition).state(request.at)
                view = bounded_view(state)
                return {**msgspec.to_builtins(view), "skipped": skipped}
            case AskDifference():
                history = self._history(request.partition)
                before, after = history.state(request.at)[0], history.state(request.then)[0]
                found, more = state_differences(before, after)
                return {"differences": list(found), "more": more}
            case AskChanges():
                history = self._history(request.partition)
                why = history.changes(request.at, request.path, request.item)
                return {
                    "value": bounded_view(why.value).value,
                    "changes": msgspec.to_builtins(why.changes),
                    "looked_after": why.looked_after,
                    "start": history.start,
                }
            case AskEvent():
                return self._event(request.committed_id)
            case AskModel():
                return self._describe_model()

    def _history(self, partition: str) -> PartitionHistory:
        """The history of a partition up to the head of the log."""
        model = self._model_in_force()
        history = self._histories.pop(partition, None)
        if history is not None:
            with contextlib.suppress(HistoryTooLarge):
                history.read(self._whole)
                self._histories[partition] = history
                return history
        history = self._read_history(partition, model)
        self._histories[partition] = history
        while len(self._histories) > HISTORIES_KEPT:
            self._histories.popitem(last=False)
        return history

    def _read_history(self, partition: str, model: Model) -> PartitionHistory:
        if self._log.partition_size(partition, EVENTS_MAX + 1).events <= EVENTS_MAX:
            history = PartitionHistory(partition, model, None)
            with contextlib.suppress(HistoryTooLarge):
                history.read(self._whole)
                return history
        snapshot = self._log.snapshot(partition, self._version, self._digest)
        if snapshot is None:
            raise HistoryTooLarge(
                f"this partition has more than {EVENTS_MAX:,} events or {BYTES_MAX >> 20} MB and no snapshot of "
                "the model in force; `unisono snapshot` writes one, and states after it can be shown then"
            )
        history = PartitionHistory(partition, model, snapshot)
        history.read(self._whole)
        return history

    def _describe(self, history: PartitionHistory) -> Json:
        return {
            "start": history.start,
            "ids": [record.committed_id for record in history.records],
            "times": [record.status_updated_at for record in history.records],
            "model_version": None if self._model is None else self._model.version,
        }

    def _event(self, committed_id: int) -> Json:
        found = self._whole.scan(committed_id - 1, committed_id, limit=1)
        if not found:
            return None
        record = found[0]
        text = record.event[:EVENT_BYTES_SHOWN].decode("utf-8", "replace")
        left_out = max(0, len(record.event) - EVENT_BYTES_SHOWN)
        return {
            **event_row(record),
            "hash": record.hash.hex(),
            "author": record.author,
            "event": text,
            "left_out_bytes": left_out,
        }

    def _model_in_force(self) -> Model:
        """The model of the log, loaded again when another one is in force; histories are folded again then."""
        bundle = self._log.model_in_force()
        version, digest = (NO_MODEL_VERSION, "") if bundle is None else (bundle.version, bundle.digest)
        if self._model is None or (version, digest) != (self._version, self._digest):
            self._histories.clear()
            settings = self._settings
            if bundle is not None:
                self._model = load_files(bundle.files, accept_init=settings.accept_init)
            elif settings.model == "open":
                self._model = open_model(accept_init=settings.accept_init)
            elif settings.model is None:
                self._model = no_model(accept_init=settings.accept_init)
            else:
                self._model = load_model(Path(settings.model), accept_init=settings.accept_init)
            if self._model.canonical is not None:
                self._model.canonical.silence()
            self._version, self._digest = version, digest
        return self._model

    def _describe_model(self) -> Json:
        model = self._model_in_force()
        names = sorted(model.files)[:FILES_SHOWN]
        files: Json = [
            {
                "name": name,
                "bytes": len(model.files[name]),
                "text": model.files[name][:FILE_BYTES_SHOWN].decode("utf-8", "replace"),
            }
            for name in names
        ]
        return {**model.describe(), "files": files, "files_left_out": len(model.files) - len(names)}


def main() -> None:
    """The process: lines of requests in, one line of answer for each out."""
    out = LineOutput()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    encode = msgspec.json.encode
    decode = msgspec.json.Decoder(ReplayRequest).decode
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=StartReplays)
    replays: Replays | None = None
    for line in iter(sys.stdin.buffer.readline, b""):
        try:
            replays = replays or Replays(start.settings)
            answer = ProcessAnswer(replays.answer(decode(line)))
        except _ANSWERED_ERRORS as error:
            answer = ProcessAnswer(error=str(error))
            if isinstance(error, StorageError):
                replays = None  # the next request opens the log again
        try:
            out.send(encode(answer))
        except BrokenPipeError:
            os._exit(1)  # the node is gone


if __name__ == "__main__":
    main()
