"""Searches every file of a lake and of a data directory for erased content.

Files of `log` and `by_partition` are judged by event ids: each row of an erased event must be its tombstone, also in
files that no table names any more. All other files, Parquet decoded and the rest as it is, are searched for pieces of
erased text. Executors read; none of their processes has the embedded log open while its files are read (see
`store/sqlite/files.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.row_groups import Footer
from unisono.lake.sorted_copies import BATCH_BYTES, BATCH_ROWS
from unisono.pipeline.jobs.erase.all_files import SearchedFile, UnreadableFile
from unisono.pipeline.jobs.erase.fragments import PIECE_BYTES, FragmentSearch, Pieces, sample, token
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, differing, touched
from unisono.pipeline.spark.executors import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_BYTES: Final = 16 << 20
"""Bytes per read of a file that is not Parquet."""

TASK_BYTES: Final = 64 << 20
"""Bytes of files per task, which has at least one."""

TASK_FILES_MAX: Final = 64

_MAGIC: Final = b"PAR1"


class Unseen(msgspec.Struct, frozen=True):
    """Events of which no pieces are known: where a file has the content of one, `share` of its pieces are taken."""

    ids: frozenset[int] = frozenset()
    share: int = 0


NONE_UNSEEN: Final = Unseen()


class Trace(msgspec.Struct, frozen=True):
    """A file with erased content: the number of events by their ids, and tokens: of the pieces found, or of those of
    unseen events. `unreadable`: it may have some, and cannot be searched.
    """

    place: SearchedFile
    events: int
    pieces: frozenset[bytes]
    unreadable: bool = False


class SearchResult(msgspec.Struct, frozen=True):
    """The files searched, and the traces found."""

    files: int
    bytes: int
    traces: list[Trace]


def search(
    spark: SparkSession,
    places: Sequence[SearchedFile],
    erased: TombstoneTimes,
    pieces: Pieces,
    unseen: Unseen = NONE_UNSEEN,
) -> SearchResult:
    """Search all of these files; each with erased content is a trace."""
    found = run_on_executors(spark, list(_batches(places)), partial(_search_part, erased, pieces, unseen))
    traces = [trace for part in found for trace in part.traces]
    # Executors on other machines do not see the driver's own directories. They do see an embedded log, and the driver
    # must not open its files.
    missing = [place for part in found for place in part.missing if not place.is_of_log]
    traces += search_files(erased, pieces, missing, unseen)
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


def search_files(
    erased: TombstoneTimes, pieces: Pieces, places: Sequence[SearchedFile], unseen: Unseen = NONE_UNSEEN
) -> list[Trace]:
    """The traces in these files. One that was deleted meanwhile has none."""
    return _search_part(erased, pieces, unseen, places).traces


class _Part(msgspec.Struct):
    """What a task found, and the files that are not there, or not where it runs."""

    traces: list[Trace]
    missing: list[SearchedFile]


def _search_part(
    erased: TombstoneTimes, pieces: Pieces, unseen: Unseen, places: Sequence[SearchedFile]
) -> _Part:
    """On an executor."""
    part = _Part([], [])
    for place in places:
        try:
            events, found = place.read(partial(_search, place, erased, pieces, unseen))
        except FileNotFoundError:
            part.missing.append(place)
            continue
        except UnreadableFile:
            if _may_have(place, erased):
                part.traces.append(Trace(place, 0, frozenset(), unreadable=True))
            continue
        if events or found:
            part.traces.append(Trace(place, events, frozenset(found)))
    return part


def _may_have(place: SearchedFile, erased: TombstoneTimes) -> bool:
    """Whether an unreadable file may have erased content: one of events may not where its name has other ids."""
    return not place.holds_events or place.ids is None or len(erased.within(*place.ids)) > 0


def _search(
    place: SearchedFile, erased: TombstoneTimes, pieces: Pieces, unseen: Unseen, source: Any
) -> tuple[int, set[bytes]]:
    if not place.is_parquet or (place.ids is None and not _is_begun(source)):
        return 0, _raw(source, pieces)
    if place.holds_events:
        return _events_in(source, erased, pieces.salt, unseen)
    return 0, _decoded(source, pieces)


def _is_begun(source: Any) -> bool:
    """Whether a file begins as Parquet does: one of another program may not, despite its name."""
    begins: bytes = source.read(len(_MAGIC))
    source.seek(0)
    return begins == _MAGIC


def _events_in(source: Any, erased: TombstoneTimes, salt: bytes, unseen: Unseen) -> tuple[int, set[bytes]]:
    """The number of rows of erased events that still have content, and tokens of it where it is unseen."""
    count = 0
    tokens = set[bytes]()
    with pq.ParquetFile(source) as parquet:
        footer = Footer(parquet.metadata)
        for number in range(len(footer)):
            for rows in _event_rows(parquet, footer, number) if touched(footer, number, erased) else ():
                for committed_id, text in differing(rows, erased):
                    count += 1
                    if committed_id in unseen.ids:
                        tokens.update(token(piece, salt) for piece in sample(text, unseen.share))
    return count, tokens


def _event_rows(parquet: Any, footer: Footer, group: int) -> Iterator[pa.RecordBatch]:
    """Ids and texts of a row group in batches: those of another program's may take gigabytes."""
    rows = max(1, parquet.metadata.row_group(group).num_rows)
    mean = max(1, footer.uncompressed_bytes(group, "event") // rows)
    count = max(1, min(BATCH_ROWS, BATCH_BYTES // mean))
    yield from parquet.iter_batches(count, row_groups=[group], columns=["committed_id", "event"])


def _decoded(source: Any, pieces: Pieces) -> set[bytes]:
    """Search all columns of text or bytes."""
    finder = FragmentSearch(pieces)
    with pq.ParquetFile(source) as parquet:
        for batch in parquet.iter_batches(1_024):
            for column in batch.columns:
                for buffer in text_buffers(column):
                    finder.look(buffer)
    return finder.found


def text_buffers(column: Any) -> Iterator[Any]:
    """The bytes of a column, however nested."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from text_buffers(column.storage)
    elif pa.types.is_dictionary(kind):
        yield from text_buffers(column.dictionary)
    elif pa.types.is_nested(kind):
        for child in _children(column):
            yield from text_buffers(child)
    elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        yield from text_buffers(column.cast(pa.large_binary()))
    elif (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        data = column.buffers()[-1]
        if data is not None:
            yield data


def _children(column: Any) -> list[Any]:
    if pa.types.is_map(column.type):
        return [column.keys, column.items]
    children = column.flatten()
    return children if isinstance(children, list) else [children]


def _raw(source: Any, pieces: Pieces) -> set[bytes]:
    finder = FragmentSearch(pieces)
    tail = b""
    while chunk := source.read(CHUNK_BYTES):
        finder.look(tail + chunk)
        tail = chunk[1 - PIECE_BYTES :]
    return finder.found
