"""Decided rows in batches, and what judging changes in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from unisono.model.authorship import Authorship, authorship_of
from unisono.pipeline.jobs.import_.judge import Judge, LocalVerdict
from unisono.pipeline.jobs.import_.large_texts import LargeTexts
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED, REFUSED, REJECTED
from unisono.pipeline.jobs.import_.read_split import ROW_SCHEMA

TOLD: Final = ("outcome", "reason", "field", "message")

OUT: Final = pa.schema(
    [
        *(field for field in ROW_SCHEMA if field.name != "committed_id"),
        pa.field("committed_at", pa.int64()),
        pa.field("key", pa.int64()),
        pa.field("number", pa.int64()),
        pa.field("place", pa.int32()),
        *(pa.field(name, pa.string()) for name in TOLD),
        pa.field("rank", pa.int32()),
    ]
)
"""A decided row, of the event's partition at `place`, whose number is `number`, or of its component. The outcome of
the event is that at place 0. `rank`: of the verdict of that partition, null where it takes the event. `committed_at`:
the time of the commit with which it is judged, null where no rule reads it."""

_FEW_VALUES: Final = ["client_id", "author", *TOLD]
"""Columns in which values come often, so that a dictionary of them is worth its time."""

KINDS: Final = [(field.name, field.type) for field in OUT]


class BatchVerdicts:
    """The columns of a batch of decided rows that judging reads and changes."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.files, self.rows = self._values("file"), self._values("row")
        self.numbers, self.places = self._values("number"), self._values("place")
        self.outcomes, self.reasons = self._values("outcome"), self._values("reason")
        self._fields, self._messages = self._values("field"), self._values("message")
        self._ranks = self._values("rank")
        self.partitions, self.events = self._values("partitions"), self._values("event")
        self._who = [self._values(name) for name in ("client_id", "author", "committed_at")]

    def _values(self, name: str) -> list[Any]:
        values: list[Any] = self._batch.column(name).to_pylist()
        return values

    def author(self, row: int) -> Authorship:
        client, author, committed_at = (values[row] for values in self._who)
        return authorship_of(client, author, committed_at or 0)

    def set(self, row: int, verdict: LocalVerdict | None, rank: int | None) -> None:
        """The verdict on a row, None where it is accepted; `rank` is that of its own partition's verdict."""
        self._ranks[row] = rank
        self.outcomes[row] = ACCEPTED if verdict is None else REJECTED
        self.reasons[row] = None if verdict is None else REFUSED
        self._fields[row] = "" if verdict is None else verdict.field
        self._messages[row] = "" if verdict is None else verdict.message

    def batch(self) -> Any:
        """The batch with the changed columns."""
        changed = {
            "outcome": self.outcomes,
            "reason": self.reasons,
            "field": self._fields,
            "message": self._messages,
            "rank": self._ranks,
        }
        columns = [
            pa.array(changed[name], kind) if name in changed else self._batch.column(name).cast(kind)
            for name, kind in KINDS
        ]
        return pa.RecordBatch.from_arrays(columns, schema=OUT)


def decided_path(folder: str | Path, task: int) -> Path:
    """The file of decided rows of a task."""
    return Path(folder, f"part-{task:05d}.parquet")


def decided_rows(folder: Path) -> Any:
    """The decided rows of all tasks as a dataset of Arrow; a task without rows has no file."""
    files = sorted(str(path) for path in folder.glob("part-*.parquet"))
    return ds.dataset(files, schema=OUT, format="parquet")


@contextmanager
def decided_file(path: Path) -> Iterator[Any]:
    """Writes a file of decided rows, which is there when all of them are: a task may run twice at the same time."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with pq.ParquetWriter(beside, OUT, compression="zstd", use_dictionary=_FEW_VALUES) as writer:
            yield writer
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def judge_row(
    judge: Judge, texts: LargeTexts, verdicts: BatchVerdicts, row: int, *, refused_elsewhere: bool = False
) -> LocalVerdict | None:
    """What the row's own partition says to its event."""
    place = verdicts.places[row]
    name = verdicts.partitions[row][place]
    by, event = verdicts.author(row), texts.text(verdicts.events[row])
    return judge.judge_in(event, name, place, by, refused_elsewhere=refused_elsewhere)


def judge_whole(judge: Judge, texts: LargeTexts, verdicts: BatchVerdicts, row: int) -> LocalVerdict | None:
    """What all partitions of the row's event say to it."""
    event = texts.text(verdicts.events[row])
    error = judge.judge(event, verdicts.partitions[row], verdicts.author(row))
    return None if error is None else LocalVerdict(0, error.field, error.message)
