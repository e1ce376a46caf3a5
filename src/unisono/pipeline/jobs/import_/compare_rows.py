"""The rows that were read, with their outcome as far as ids decide it.

The first row of an id counts, unless the log has the id. What is left to judge is given for each of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_.commit_times import CommitTimes, Times, read_times
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED, DUPLICATE, KNOWN, REJECTED
from unisono.pipeline.jobs.import_.read_split import number_of, split_name
from unisono.pipeline.jobs.import_.repeats import LAST, Repeats, read_repeats, split_and_row
from unisono.pipeline.jobs.import_.verdicts import KINDS, OUT, TOLD
from unisono.pipeline.open_log import gc_paused
from unisono.store.bulk_load import Ids, open_ids
from unisono.store.port import RememberedId

Leaders = Mapping[int, int]
"""The component of each partition that shares events with others, both by number."""


class Deciding(msgspec.Struct, frozen=True):
    """What all tasks need. `base` is the log's head; 0 for an empty log. `order` is the column that rows are ordered
    by, before files and rows; None for none. `split_files` has the file of each split, `rows` is the folder of what
    was read, and `repeats` that of rows with the id of another, in `repeat_files`. `times`: if a rule reads them."""

    store: str
    base: int
    model: ShippedModel
    order: str | None
    files: tuple[str, ...]
    split_files: tuple[int, ...]
    rows: str
    repeats: str
    repeat_files: int
    times: CommitTimes | None


def compare(
    deciding: Deciding, leaders: Leaders | None, spread: bool, splits: Sequence[int]
) -> Iterator[Any]:
    """On an executor: the rows of some splits, with what is known before they are judged.

    `spread`: an event has a row for each of its partitions. Without, it has one, which is of its component where
    `leaders` has one.
    """
    ids = open_ids(deciding.store) if deciding.base else None
    try:
        with gc_paused():
            for split in splits:
                repeats = read_repeats(deciding.repeats, deciding.repeat_files, split)
                times = None
                if deciding.times is not None:
                    times = read_times(deciding.times.folder, deciding.repeat_files, split)
                with pq.ParquetFile(Path(deciding.rows, f"{split_name(split)}.rows.parquet")) as file:
                    for group in range(file.num_row_groups):
                        for batch in file.read_row_group(group).to_batches():
                            yield _Comparing(deciding, repeats, times, batch).compared(
                                ids, leaders or {}, spread
                            )
    finally:
        if ids is not None:
            ids.close()


class _Comparing:
    """One batch of rows of a split."""

    def __init__(self, deciding: Deciding, repeats: Repeats, times: Times | None, batch: Any) -> None:
        self._deciding = deciding
        self._repeats = repeats
        self._times = times
        self._batch = batch

    def compared(self, ids: Ids | None, leaders: Leaders, spread: bool) -> Any:
        batch, order = self._batch, self._deciding.order
        outcomes = self._outcomes(ids)
        columns = {name: batch.column(name) for name in OUT.names if name in batch.schema.names}
        for name, values in zip(TOLD, zip(*outcomes, strict=True), strict=True):
            columns[name] = pa.array(values, pa.string())
        columns["committed_at"] = self._committed_at()
        columns["key"] = (
            pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
            if order is None
            else pc.fill_null(batch.column(order), LAST)
        )
        # Rows that are in the log, or staged under another row, need no content.
        done = pc.is_in(columns["outcome"], pa.array([DUPLICATE, KNOWN]))
        columns["event"] = pc.if_else(done, pa.scalar(None, pa.string()), columns["event"])
        several = [spread and outcome[0] == ACCEPTED for outcome in outcomes]
        rows = [
            (row, place, number_of(name))
            for row, (names, all) in enumerate(zip(columns["partitions"].to_pylist(), several, strict=True))
            for place, name in enumerate(names if all else names[:1])
        ]
        parents, places, numbers = zip(*rows, strict=True)
        if len(rows) > batch.num_rows:
            taken = pa.array(parents, pa.int32())
            columns = {name: column.take(taken) for name, column in columns.items()}
        columns["number"] = pa.array([leaders.get(number, number) for number in numbers], pa.int64())
        columns["place"] = pa.array(places, pa.int32())
        columns["rank"] = pa.nulls(len(rows), pa.int32())
        return pa.RecordBatch.from_arrays([columns[name].cast(kind) for name, kind in KINDS], schema=OUT)

    def _committed_at(self) -> Any:
        """When each row is going to be committed; null where no rule reads it."""
        if self._times is None:
            return pa.nulls(self._batch.num_rows, pa.int64())
        rows, times = self._batch.column("row").to_pylist(), self._batch.column("time").to_pylist()
        return pa.array(map(self._times.get, rows, times), pa.int64())

    def _outcomes(self, ids: Ids | None) -> list[tuple[str, str | None, str, str]]:
        names = ("row", "id", "hash", "committed_id")
        rows = list(zip(*(self._batch.column(name).to_pylist() for name in names), strict=True))
        repeats = self._repeats
        known = {} if ids is None else ids.known([id for row, id, *_ in rows if row not in repeats])
        return [self._outcome(known, *row) for row in rows]

    def _outcome(
        self, known: dict[str, RememberedId], row: int, id: str, hash: bytes, committed_id: int | None
    ) -> tuple[str, str | None, str, str]:
        deciding = self._deciding
        repeated = self._repeats.get(row)
        if repeated is not None:
            source, same = repeated
            if same:
                return DUPLICATE, None, "", ""
            split, first = split_and_row(source)
            where = f"{deciding.files[deciding.split_files[split]]}, row {first}"
            return REJECTED, "conflict", "event", f"{where} has this id with other content"
        logged = known.get(id)
        if logged is not None:
            if logged.hash == hash:
                return KNOWN, None, "", ""
            says = f"event {logged.committed_id} of the log has this id with other content"
            return REJECTED, "conflict_in_log", "event", says
        if deciding.order == "committed_id" and committed_id is None:
            return REJECTED, "no_committed_id", "committed_id", "other rows are ordered by theirs"
        return ACCEPTED, None, "", ""
