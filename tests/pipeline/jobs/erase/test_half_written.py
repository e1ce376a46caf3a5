"""Files that a killed job has left half written in a lake: an erasure removes its own, and names those of others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake.lakes import HERE
from tests.pipeline.jobs.erase.erasing import require_erased, run
from tests.pipeline.jobs.erase.prepared import Prepared
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.jobs.erase.all_files import STILL_S, lake_files
from unisono.pipeline.jobs.erase.delete_files import clear_events
from unisono.pipeline.jobs.erase.erasure_table import recorded
from unisono.pipeline.jobs.erase.fragments import Pieces, token
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes
from unisono.pipeline.jobs.erase.search import search_files

LONG_AGO_S = 2 * STILL_S
TEXT = b"what was once said"
SALT = bytes(16)


def leave(path: Path, content: bytes, *, ago_s: float = LONG_AGO_S) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - ago_s,) * 2)
    return path


def half(lake: Lake, table: str) -> tuple[Path, bytes]:
    """The place of a file of a table, and its first half."""
    place = Path(lake.storage.uri(table, lake.table(table).listed_files()[0].path))
    content = place.read_bytes()
    return place, content[: len(content) // 2]


def left_behind(lake: Lake) -> Iterator[Path]:
    for table in (LOG, BY_PARTITION, SNAPSHOTS):
        place, content = half(lake, table)
        yield leave(place.with_name(f"000000000001-000000000400-{7:032x}.parquet"), content)
    yield leave(Path(lake.storage.uri(LOG, f"000000000001-000000000400-{9:032x}.parquet")), b"")


def test_those_that_may_have_erased_events_are_removed(prepared: Prepared, tmp_path: Path) -> None:
    data, lake = prepared.copy(tmp_path)
    left = list(left_behind(lake))
    _, content = half(lake, LOG)
    others = leave(Path(lake.storage.uri(LOG, f"000000000041-000000000079-{8:032x}.parquet")), content)
    done = run(HERE, data, lake)
    assert done.proof.holds, done.proof.text()
    assert [path for path in left if path.exists()] == []
    assert others.exists(), "none of the erased events can be in it"
    others.unlink()
    require_erased(data, lake, prepared.records)


def test_those_of_others_are_named(prepared: Prepared, tmp_path: Path) -> None:
    data, lake = prepared.copy(tmp_path)
    _, content = half(lake, LOG)
    for path in (tmp_path / "lake" / "mine.parquet", tmp_path / "data" / "staging" / "rows.parquet"):
        leave(path, content)
    leave(tmp_path / "lake" / "text.parquet", b"no Parquet at all")
    done = run(HERE, data, lake)
    assert sorted(Path(trace.place.location).name for trace in done.proof.traces) == [
        "mine.parquet",
        "rows.parquet",
    ]
    assert not done.proof.holds
    assert "mine.parquet: it cannot be read, so it was not searched" in done.proof.text()


def test_one_that_a_table_names_stays(prepared: Prepared, tmp_path: Path) -> None:
    data, lake = prepared.copy(tmp_path)
    run(HERE, data, lake)
    place, content = half(lake, LOG)
    leave(place, content)
    times = TombstoneTimes.of(recorded(lake))
    with pytest.raises(LakeUnusable, match="cannot be read: run `unisono lake audit`"):
        clear_events(HERE, lake, times, {}, SALT)
    assert place.exists()


def test_one_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [TEXT]}), sink)
    content = sink.getvalue().to_pybytes()
    place = leave(tmp_path / "other" / "a.parquet", content[:-10], ago_s=0)
    writer = threading.Timer(1.0, place.write_bytes, [content])
    writer.start()
    pieces = Pieces([token(TEXT[:16], SALT)], SALT)
    (trace,) = search_files(TombstoneTimes.of({}), pieces, lake_files(Lake.at(str(tmp_path)).storage))
    writer.join()
    assert (trace.unreadable, trace.pieces) == (False, pieces.tokens)
