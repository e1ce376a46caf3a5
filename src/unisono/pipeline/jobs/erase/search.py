"""Looking through every file of a lake and of a data directory for what was erased.

Files of the lake's two tables of events are judged by the events' ids: each row of an erased event must be its
tombstone, also in files that no table names any more. Everything else, decoded where it is Parquet and as it is where
it is not, is searched for pieces of what was erased. Executors do the reading; in none of their processes is the
embedded log open while its files are read (see `sqlite_files`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.row_groups import Footer
from unisono.pipeline.jobs.erase.all_files import SearchedFile
from unisono.pipeline.jobs.erase.fragments import PIECE_BYTES, FragmentSearch, Pieces, sample
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, differing, touched

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

CHUNK_BYTES: Final = 16 << 20
"""Read at once of a file that is not Parquet."""

TASK_BYTES: Final = 64 << 20
"""Files of one task, at least one."""

TASK_FILES_MAX: Final = 64

PIECES_PER_FILE: Final = 1_000
"""Pieces taken of what a file still says, to look for it elsewhere."""


class Trace(msgspec.Struct, frozen=True):
    """A file that holds something of what was erased: so many events by their ids, and pieces with these tokens."""

    place: SearchedFile
    events: int
    pieces: frozenset[bytes]


class SearchResult(msgspec.Struct, frozen=True):
    """What a search read, and what it found."""

    files: int
    bytes: int
    traces: list[Trace]


class _Task(msgspec.Struct, frozen=True):
    places: tuple[SearchedFile, ...]
    erased: Any
    pieces: Any


def search(
    spark: SparkContext, places: Sequence[SearchedFile], erased: TombstoneTimes, pieces: Pieces
) -> SearchResult:
    """Read all of these files; every one that holds something of what was erased is a trace."""
    shared: tuple[Broadcast[TombstoneTimes], Broadcast[Pieces]] = (
        spark.broadcast(erased),
        spark.broadcast(pieces),
    )
    try:
        tasks = [_Task(part, *shared) for part in _portions(places)]
        traces = spark.parallelize(tasks, len(tasks)).flatMap(search_files).collect() if tasks else []
    finally:
        for each in shared:
            each.destroy()
    return SearchResult(len(places), sum(place.bytes for place in places), traces)


def _portions(places: Sequence[SearchedFile]) -> Iterator[tuple[SearchedFile, ...]]:
    part: list[SearchedFile] = []
    size = 0
    for place in places:
        if part and (size + place.bytes > TASK_BYTES or len(part) == TASK_FILES_MAX):
            yield tuple(part)
            part, size = [], 0
        part.append(place)
        size += place.bytes
    if part:
        yield tuple(part)


def search_files(task: _Task) -> list[Trace]:
    """On an executor. A file that is gone by now holds nothing."""
    traces = []
    for place in task.places:
        try:
            events, pieces = _search(place, task.erased.value, task.pieces.value)
        except FileNotFoundError:
            continue
        if events or pieces:
            traces.append(Trace(place, events, frozenset(pieces)))
    return traces


def _search(place: SearchedFile, erased: TombstoneTimes, pieces: Pieces) -> tuple[int, set[bytes]]:
    with place.opened() as source:
        if place.holds_events:
            return _events_in(source, erased, pieces.salt)
        if place.is_parquet:
            return 0, _decoded(source, pieces)
        return 0, _raw(source, pieces)


def _events_in(source: Any, erased: TombstoneTimes, salt: bytes) -> tuple[int, set[bytes]]:
    """How many rows of erased events say anything, and tokens of it."""
    count = 0
    texts: list[bytes] = []
    with pq.ParquetFile(source) as parquet:
        footer = Footer(parquet.metadata)
        for number in range(len(footer)):
            if touched(footer, number, erased):
                found = differing(parquet.read_row_group(number, columns=["committed_id", "event"]), erased)
                count += len(found)
                texts += found[: max(0, PIECES_PER_FILE - len(texts))]
    return count, set(sample(texts, PIECES_PER_FILE, salt))


def _decoded(source: Any, pieces: Pieces) -> set[bytes]:
    """What any column of text or bytes holds; another writer's file may be no Parquet at all, whatever its name."""
    hunt = FragmentSearch(pieces)
    try:
        with pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(1_024):
                for column in batch.columns:
                    for buffer in text_buffers(column):
                        hunt.look(buffer)
    except pa.ArrowInvalid:
        source.seek(0)
        return _raw(source, pieces)
    return hunt.found


def text_buffers(column: Any) -> Iterator[Any]:
    """The bytes under a column, however nested."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        yield from text_buffers(column.dictionary)
    elif pa.types.is_nested(kind):
        children = column.flatten()
        for child in children if isinstance(children, list) else [children]:
            yield from text_buffers(child)
    elif (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    ):
        data = column.buffers()[2]
        if data is not None:
            yield data


def _raw(source: Any, pieces: Pieces) -> set[bytes]:
    hunt = FragmentSearch(pieces)
    tail = b""
    while chunk := source.read(CHUNK_BYTES):
        hunt.look(tail + chunk)
        tail = chunk[1 - PIECE_BYTES :]
    return hunt.found
