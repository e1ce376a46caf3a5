"""Searches every file of a lake and of a data directory for erased content.

Files of `log` and `by_partition` are judged by event ids: each row of an erased event must be its tombstone, also in
files that no table names any more. All other files, Parquet decoded and the rest as it is, are searched for pieces of
erased text. Executors read; none of their processes has the embedded log open while its files are read (see
`sqlite_files`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.row_groups import Footer
from unisono.pipeline.jobs.erase.all_files import SearchedFile
from unisono.pipeline.jobs.erase.fragments import PIECE_BYTES, FragmentSearch, Pieces, sample
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, differing, touched
from unisono.pipeline.spark.executors import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_BYTES: Final = 16 << 20
"""Bytes per read of a file that is not Parquet."""

TASK_BYTES: Final = 64 << 20
"""Bytes of files per task, which has at least one."""

TASK_FILES_MAX: Final = 64

PIECES_PER_FILE: Final = 1_000
"""Pieces sampled from a file's remaining content, to search for it elsewhere."""


class Trace(msgspec.Struct, frozen=True):
    """A file with erased content: the number of events by their ids, and the tokens of pieces."""

    place: SearchedFile
    events: int
    pieces: frozenset[bytes]


class SearchResult(msgspec.Struct, frozen=True):
    """The files searched, and the traces found."""

    files: int
    bytes: int
    traces: list[Trace]


def search(
    spark: SparkSession, places: Sequence[SearchedFile], erased: TombstoneTimes, pieces: Pieces
) -> SearchResult:
    """Search all of these files; each with erased content is a trace."""
    found = run_on_executors(spark, list(_batches(places)), partial(search_files, erased, pieces))
    traces = list(chain.from_iterable(found))
    return SearchResult(len(places), sum(place.bytes for place in places), traces)


def _batches(places: Sequence[SearchedFile]) -> Iterator[tuple[SearchedFile, ...]]:
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


def search_files(erased: TombstoneTimes, pieces: Pieces, places: Sequence[SearchedFile]) -> list[Trace]:
    """On an executor. A file that was deleted meanwhile has no trace."""
    traces = []
    for place in places:
        try:
            events, found = _search(place, erased, pieces)
        except FileNotFoundError:
            continue
        if events or found:
            traces.append(Trace(place, events, frozenset(found)))
    return traces


def _search(place: SearchedFile, erased: TombstoneTimes, pieces: Pieces) -> tuple[int, set[bytes]]:
    with place.opened() as source:
        if place.holds_events:
            return _events_in(source, erased, pieces.salt)
        if place.is_parquet:
            return 0, _decoded(source, pieces)
        return 0, _raw(source, pieces)


def _events_in(source: Any, erased: TombstoneTimes, salt: bytes) -> tuple[int, set[bytes]]:
    """The number of rows of erased events that still have content, and tokens of it."""
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
    """Search all columns of text or bytes; a foreign file may not be Parquet despite its name."""
    finder = FragmentSearch(pieces)
    try:
        with pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(1_024):
                for column in batch.columns:
                    for buffer in text_buffers(column):
                        finder.look(buffer)
    except pa.ArrowInvalid:
        source.seek(0)
        return _raw(source, pieces)
    return finder.found


def text_buffers(column: Any) -> Iterator[Any]:
    """The bytes of a column, however nested."""
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
    finder = FragmentSearch(pieces)
    tail = b""
    while chunk := source.read(CHUNK_BYTES):
        finder.look(tail + chunk)
        tail = chunk[1 - PIECE_BYTES :]
    return finder.found
