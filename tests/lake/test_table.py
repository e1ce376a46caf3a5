from __future__ import annotations

import os
import random
import resource
import shutil
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures

from tests.lake.lakes import export_to
from tests.pipeline.history import make_record, make_store
from unisono.lake import table as tables
from unisono.lake import write
from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.cold.pages import LakePages
from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA, to_batch
from unisono.lake.errors import CommitConflict, LakeUnusable, OutsideLake
from unisono.lake.file_actions import remove_actions
from unisono.lake.lake import Lake
from unisono.lake.scan import scan_log
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG
from unisono.lake.table import EXPORT
from unisono.lake.write import DataFile, write_runs
from unisono.pipeline.jobs.erase.erasure_table import erasures, record
from unisono.pipeline.jobs.erase.select import SelectedEvent


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=4)
    return made


def written(lake: Lake, since: int, upto: int) -> list[DataFile]:
    chance = random.Random(since)
    batch = to_batch([make_record(number, chance) for number in range(since + 1, upto + 1)])
    return write_runs(lake.storage, [batch], buckets=4, events_per_file=1000, tables=frozenset((LOG,))).files


def count(lake: Lake) -> int:
    return int(DeltaTable(lake.storage.table(LOG)).to_pyarrow_table().num_rows)


def test_a_range_is_added_where_the_table_stands(lake: Lake) -> None:
    files = written(lake, 0, 10)
    lake.table(LOG).append(files, 0, 10, {})
    assert lake.table(LOG).head == lake.head() == 10
    for since, upto in ((0, 10), (5, 15), (11, 20)):
        with pytest.raises(CommitConflict, match="ends at event 10"):
            lake.table(LOG).append(written(lake, since, upto), since, upto, {})
    assert count(lake) == 10
    assert lake.view().log_files == files


def test_files_of_somebody_else_are_no_place_for_a_table(tmp_path: Path) -> None:
    """A vacuum would remove them, as a project's own directory `log`."""
    kept = tmp_path / "log" / "app" / "today.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("started")
    lake = Lake.at(str(tmp_path))
    with pytest.raises(
        LakeUnusable, match=r"log has files and is no table of ours .app/today.log.: name another"
    ):
        lake.make(buckets=2)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    kept.unlink()
    lake.make(buckets=2)
    lake.make(buckets=2)


def test_of_two_at_once_one_is_refused(lake: Lake) -> None:
    one, other = lake.table(LOG), lake.table(LOG)
    one.append(written(lake, 0, 10), 0, 10, {})
    with pytest.raises(CommitConflict):
        other.append(written(lake, 0, 10), 0, 10, {})
    assert count(lake) == 10


def test_racing_writers_add_every_range_once(lake: Lake) -> None:
    def race(_: int) -> int:
        won = 0
        while (table := lake.table(LOG)).head < 60:
            since = table.head
            try:
                table.append(written(lake, since, since + 5), since, since + 5, {})
                won += 1
            except CommitConflict:
                pass
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(race, range(4))) == 12
    assert count(lake) == lake.head() == 60


def test_a_rewrite_beside_an_append_and_beside_another_rewrite(lake: Lake) -> None:
    lake.table(LOG).append(old := written(lake, 0, 10), 0, 10, {})
    first, second, appending = lake.table(LOG), lake.table(LOG), lake.table(LOG)
    appending.append(written(lake, 10, 20), 10, 20, {})
    first.replace(old, written(lake, 0, 10), {}, same_rows=True)
    with pytest.raises(CommitConflict):
        second.replace(old, written(lake, 0, 10), {}, same_rows=True)
    with pytest.raises(CommitConflict, match="no longer in the table"):
        lake.table(LOG).replace(old, written(lake, 0, 10), {}, same_rows=True)
    assert count(lake) == 20
    behind = lake.table(LOG)
    lake.table(LOG).replace(lake.table(LOG).files()[:1], written(lake, 0, 10), {}, same_rows=True)
    behind.append(written(lake, 20, 30), 20, 30, {})
    assert count(lake) == lake.head() == 30


def test_a_rewrite_beside_an_optimize_of_another_program(lake: Lake) -> None:
    """delta-rs would let both remove the same files, and every row would be there twice."""
    for since in (0, 10):
        lake.table(LOG).append(written(lake, since, since + 10), since, since + 10, {})
    table = lake.table(LOG)
    old = table.files()
    DeltaTable(lake.storage.table(LOG)).optimize.compact()
    with pytest.raises(CommitConflict, match="no longer in the table"):
        table.replace(old, written(lake, 0, 20), {}, same_rows=True, foreign=True)
    DeltaTable(lake.storage.table(LOG)).restore(table.version)
    stale = lake.table(LOG)
    DeltaTable(lake.storage.table(LOG)).optimize.compact()
    with pytest.raises(CommitConflict, match="committed to the table log first"):
        stale._commit([], remove_actions(old, data_change=False), [], {})
    assert count(lake) == 20


def test_where_a_table_stands_survives_checkpoints(lake: Lake) -> None:
    for since in range(0, 40):
        lake.table(LOG).append(written(lake, since, since + 1), since, since + 1, {})
    assert list(Path(lake.storage.table(LOG)).glob("_delta_log/*.checkpoint.parquet"))
    assert DeltaTable(lake.storage.table(LOG)).transaction_version(EXPORT) == 40
    assert count(lake) == 40


def test_expired_commits_go_at_times_and_the_table_stays(lake: Lake) -> None:
    for value in range(40):
        lake.table(LOG).write_notes({"note": value})
    in_log = Path(lake.storage.table(LOG)) / "_delta_log"
    eight_days_ago = time.time() - 8 * 86_400
    for path in in_log.iterdir():
        os.utime(path, (eight_days_ago, eight_days_ago))
    first = in_log / f"{0:020d}.json"
    for value in range(40, 62):
        lake.table(LOG).write_notes({"note": value})
        assert first.exists(), "each commit looks for expired ones"
    for value in range(62, 66):
        lake.table(LOG).write_notes({"note": value})
    assert not first.exists()
    assert (lake.table(LOG).version, lake.table(LOG).read_note("note")) == (66, 65)


def test_partitions_are_named_as_people_write_them(tmp_path: Path) -> None:
    """A text is one name, and is normalised as those of the log are."""
    records = make_store(tmp_path / "data", 200)
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, tmp_path / "data")
    own = [record.committed_id for record in records if "ünï-cødé" in record.partitions]
    assert own
    for given in ("ünï-cødé", unicodedata.normalize("NFD", "ünï-cødé"), ["ünï-cødé", "nobody's"]):
        batches = lake.scan_arrow(given, columns=["committed_id"])
        assert [id for batch in batches for id in batch.column(0).to_pylist()] == own
    assert list(lake.scan_arrow([])) == []
    with pytest.raises(OutsideLake, match="invalid partition name"):
        lake.scan_arrow("")


def test_a_feature_that_this_program_cannot_write_is_no_conflict(lake: Lake) -> None:
    """A job would do its work again twenty times and then speak of another process."""
    delta = DeltaTable(lake.storage.table(LOG))
    delta.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(LakeUnusable, match=r"/log takes no commits .*RowTracking.*; restore the table"):
        lake.table(LOG).append(written(lake, 0, 10), 0, 10, {})
    assert lake.view().head == 0


def test_records_of_erasures_need_no_order(lake: Lake) -> None:
    """An OPTIMIZE of all tables stops no later erasure; a DELETE does."""

    def erase(committed_id: int) -> None:
        record(lake, [SelectedEvent(committed_id, f"e{committed_id}", ("p",), 0, True)], 1_000, "id", None)

    for committed_id in (3, 1):
        erase(committed_id)
    delta = DeltaTable(lake.storage.table(ERASURES))
    delta.optimize.compact()
    delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
    erase(2)
    assert [(row.committed_id, row.id) for row in erasures(lake)] == [(1, "e1"), (2, "e2"), (3, "e3")]
    DeltaTable(lake.storage.table(ERASURES)).delete("committed_id = 1")
    with pytest.raises(LakeUnusable, match="with 2 rows and 3 were committed"):
        erase(4)


def test_files_that_no_commit_names_are_not_read(lake: Lake) -> None:
    lake.table(LOG).append(written(lake, 0, 10), 0, 10, {})
    written(lake, 0, 10)
    written(lake, 10, 20)
    assert len(list(Path(lake.storage.table(LOG)).glob("*.parquet"))) == 3
    assert count(lake) == 10
    assert sum(batch.num_rows for batch in lake.scan_arrow()) == 10


@pytest.mark.parametrize(
    ("since", "upto", "error"),
    [
        (
            0,
            11,
            r"ends at event 10, events up to 11 are requested: `unisono lake export` adds what the log has",
        ),
        (11, None, "ends at event 10, events after 11 are requested"),
        (9, 5, r"\(9, 5\] is not a range: 0 <= from <= to must hold"),
        (-1, None, r"\(-1, 10\] is not a range"),
    ],
)
@pytest.mark.parametrize("names", [None, ["plain"]])
def test_a_range_that_the_lake_does_not_have_is_refused(
    lake: Lake, since: int, upto: int | None, error: str, names: list[str] | None
) -> None:
    lake.table(LOG).append(written(lake, 0, 10), 0, 10, {})
    with pytest.raises(OutsideLake, match=error):
        lake.scan_arrow(names, since, upto)


def test_of_a_file_that_does_not_fit_nothing_is_left(lake: Lake) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            written(lake, 0, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(Path(lake.storage.table(LOG)).glob("*.parquet"))


def test_of_a_commit_that_does_not_fit_nothing_is_left(lake: Lake) -> None:
    files = written(lake, 0, 100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with (
            pytest.raises(OSError, match=r"commit to .*/log/_delta_log failed: .*File too large"),
            removed_unless_committed(lake.storage, files),
        ):
            lake.table(LOG).append(files, 0, 100, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lake.head() == 0
    assert not list(Path(lake.storage.table(LOG)).glob("*.parquet"))
    lake.table(LOG).append(written(lake, 0, 100), 0, 100, {})
    assert count(lake) == 100


def test_what_a_failed_attempt_wrote_goes_unless_a_table_names_it(lake: Lake) -> None:
    kept = written(lake, 0, 5)
    named: list[DataFile] = []
    unnamed: list[DataFile] = []

    def fail() -> None:
        with job_attempt(lake.storage) as storage:
            own = Lake(storage)
            named.extend(written(own, 0, 10))
            unnamed.extend(written(own, 10, 20))
            own.table(LOG).append(named, 0, 10, {})
            raise RuntimeError("after a commit")

    with pytest.raises(RuntimeError):
        fail()
    left = {path.name for path in Path(lake.storage.table(LOG)).glob("*.parquet")}
    assert left == {file.path for file in (*kept, *named)}, "those of others stay"
    assert unnamed[0].path not in left
    assert count(lake) == 10


def test_two_makers_make_one_lake(tmp_path: Path) -> None:
    places = [Lake.at(str(tmp_path / "lake")) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda place: place.make(buckets=8), places))
    assert [place.view().buckets for place in places] == [8, 8, 8, 8]
    assert places[0].head() == 0


def test_what_is_no_lake(tmp_path: Path, lake: Lake) -> None:
    nowhere = Lake.at(str(tmp_path / "nowhere"))
    assert not nowhere.exists()
    with pytest.raises(LakeUnusable, match="`unisono lake export` makes one"):
        nowhere.head()
    with pytest.raises(LakeUnusable, match="1 to 1024 buckets"):
        nowhere.make(buckets=0)
    DeltaTable.create(str(tmp_path / "other" / LOG), lake.table(LOG).delta.schema())
    with pytest.raises(LakeUnusable, match="not one of a lake"):
        Lake.at(str(tmp_path / "other")).make()
    DeltaTable(lake.storage.table(LOG)).alter.set_table_description("all events")
    with pytest.raises(LakeUnusable, match="changed that, restore the version of the table before"):
        lake.view()
    DeltaTable(lake.storage.table(LOG)).restore(0)
    assert lake.view().buckets == 4
    Path(lake.storage.table(BY_PARTITION)).rename(tmp_path / "aside")
    shutil.copytree(lake.storage.table(LOG), lake.storage.table(BY_PARTITION))
    with pytest.raises(
        LakeUnusable, match="by_partition is not the table by_partition of a lake but 'unisono log'"
    ):
        lake.view()
    Path(lake.storage.table(LOG), "_delta_log", "00000000000000000000.json").write_text("{")
    with pytest.raises(LakeUnusable, match="cannot be opened"):
        lake.head()


def test_a_lake_from_before_there_were_authors_gets_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files have no such column and are read as null; the next commit adds it to the table."""
    chance = random.Random(1)
    old = [make_record(number, chance, author="") for number in range(1, 11)]
    new = [make_record(number, chance, author='{"user_id":"ann"}') for number in range(11, 21)]
    lake = Lake.at(str(tmp_path / "old"))
    with monkeypatch.context() as before:
        schemas = {
            name: schema.remove(schema.get_field_index("author")) if "author" in schema.names else schema
            for name, schema in tables._SCHEMAS.items()
        }
        before.setattr(tables, "_SCHEMAS", schemas)
        narrow = {LOG: schemas[LOG], BY_PARTITION: PARTITION_SCHEMA.remove(10)}
        before.setattr(write, "FILE_SCHEMAS", narrow)
        lake.make(buckets=4)
        first = append_to_both(lake, to_batch(old).drop_columns(["author"]), 0, 10)
    assert "author" not in pq.read_schema(lake.storage.uri(LOG, first[0].path)).names
    delta = DeltaTable(lake.storage.table(LOG))
    assert "author" not in [field.name for field in delta.schema().fields]
    append_to_both(lake, to_batch(new), 10, 20)
    assert count(lake) == lake.head() == 20
    seen = DeltaTable(lake.storage.table(LOG)).to_pyarrow_table().sort_by("committed_id")
    assert seen.column("author").to_pylist() == [None] * 10 + ['{"user_id":"ann"}'] * 10
    scanned = pa.Table.from_batches(scan_log(lake.storage, lake.view().log_files, 0, 20), LOG_SCHEMA)
    assert scanned.equals(pa.Table.from_batches([to_batch([*old, *new])]).combine_chunks())
    pages = LakePages(lake, 1 << 20)
    found = pages.page(None, 0, 20, limit=50, bytes_max=1 << 20).records
    assert list(found) == [*old, *new]
    own = [record for record in (*old, *new) if record.partitions[0] == old[0].partitions[0]]
    first_of = pages.page(own[0].partitions[:1], 0, 20, limit=50, bytes_max=1 << 20).records[0]
    assert first_of == own[0]
    pages.close()


def test_what_came_before_the_column_is_not_added_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program that does not know the column, after this one has looked where the table ends."""
    lake = Lake.at(str(tmp_path / "old"))
    with monkeypatch.context() as before:
        known = LOG_SCHEMA.remove(LOG_SCHEMA.get_field_index("author"))
        before.setitem(tables._SCHEMAS, LOG, known)
        lake.make(buckets=4)
        late = lake.table(LOG)
        lake.table(LOG).append(written(lake, 0, 10), 0, 10, {})
    with pytest.raises(CommitConflict, match="another process committed to the table log first"):
        late.append(written(lake, 0, 10), 0, 10, {})
    assert "author" in [field.name for field in lake.table(LOG).delta.schema().fields]
    assert count(lake) == lake.head() == 10
    lake.table(LOG).append(written(lake, 10, 20), 10, 20, {})
    assert lake.view().head == 20


def append_to_both(lake: Lake, batch: pa.RecordBatch, since: int, upto: int) -> list[DataFile]:
    """The files of `log`; those of both tables are committed."""
    files = write_runs(lake.storage, [batch], buckets=4, events_per_file=99).files
    for name in (BY_PARTITION, LOG):
        lake.table(name).append([file for file in files if file.table == name], since, upto, {})
    return [file for file in files if file.table == LOG]
