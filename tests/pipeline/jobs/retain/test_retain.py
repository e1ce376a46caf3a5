"""What leaves the log and what stays: never an event whose copy or whose snapshots are in doubt (DUR-05)."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.history import START_MS, append, make_store, read_store
from tests.pipeline.processes import kill, start, wait_until
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.errors import Mismatch, PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.retain.job import RetentionPolicy, plan, retain
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.maintain.embedded import LogMaintainer, open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.check import check_directory
from unisono.store.port import LogExtent, Pruned, Record, Snapshot
from unisono.store.sqlite.log import SqliteLog, SqliteReader

EVENTS = 3_000
REMEMBERED_BYTES = 200
"""Of an event that has left: its id, number, hash, client and time, in an index that is two thirds full."""


def publish(maintainer: LogMaintainer, lake: Lake, names: set[str] | None = None) -> None:
    """The lake's snapshots into the store, of all partitions or of some."""
    rows = [row for row in latest(lake, 0) if names is None or row.partition in names]
    maintainer.put_snapshots([Snapshot(r.partition, r.committed_id, 0, r.state, r.created_at) for r in rows])


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, its lake and its snapshots: to be copied, not changed."""
    folder = tmp_path_factory.mktemp("retention")
    make_store(folder / "data", EVENTS)
    lake = Lake.at(str(folder / "lake"))
    lake.make(buckets=4)
    export(HERE, sqlite_uri(folder / "data"), lake, events_per_file=700)
    snapshot(HERE, lake, ShippedModel.open())
    return folder


class Place:
    """A copy of it, that may be changed."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.store = sqlite_uri(self.data)
        self.lake = Lake.at(str(folder / "lake"))
        self.maintainer = open_maintainer(self.store)

    def publish(self, names: set[str] | None = None) -> None:
        publish(self.maintainer, self.lake, names)


@pytest.fixture
def place(ready: Path, tmp_path: Path) -> Iterator[Place]:
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    place = Place(tmp_path)
    with closing(place.maintainer):
        yield place


@pytest.mark.req("DUR-05")
def test_old_events_leave_and_are_still_known(spark: SparkSession, place: Place) -> None:
    records = read_store(place.data)
    place.publish()
    size = (place.data / "log.db").stat().st_size
    done = retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=500, newest=10))
    assert done.events == EVENTS - 500
    held = place.maintainer.extent()
    assert (held.pruned_to, held.head, held.archive) == (2_500, EVENTS, place.lake.storage.location)
    assert (place.data / "log.db").stat().st_size < size * 0.7
    with closing(SqliteReader.open(place.data)) as reader:
        assert list(reader.scan(2_500, EVENTS, limit=10_000)) == records[2_500:]
        with pytest.raises(Pruned):
            reader.scan(0, EVENTS, limit=1)
    with closing(SqliteLog.open(place.data)) as log:
        known = log.begin([records[0].id, records[2_499].id, records[-1].id]).known
        log.abandon()
        assert {id: found.committed_id for id, found in known.items()} == {
            records[0].id: 1,
            records[2_499].id: 2_500,
            records[-1].id: EVENTS,
        }
    assert list(check_directory(place.data).findings) == []
    assert (
        retain(
            spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=500, newest=10)
        ).events
        == 0
    )


@pytest.mark.req("DUR-05")
def test_a_partition_without_a_snapshot_keeps_its_events(spark: SparkSession, place: Place) -> None:
    records = read_store(place.data)
    names = {name for record in records for name in record.partitions}
    place.publish(names - {"room-007"})
    first = next(record.committed_id for record in records if "room-007" in record.partitions)
    told = plan(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=100, newest=0))
    assert told.upto == first - 1
    assert told.blocked_partitions == 1
    blocker = told.blockers[0]
    assert (blocker.partition, blocker.first_id, blocker.watermark) == ("room-007", first, None)
    assert blocker.events == sum(
        "room-007" in r.partitions for r in records if r.committed_id <= EVENTS - 100
    )
    assert "'room-007': no snapshot" in told.text()
    retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=100, newest=0))
    assert place.maintainer.extent().pruned_to == first - 1


@pytest.mark.req("DUR-05")
def test_a_snapshot_that_lags_behind_keeps_what_it_lacks(spark: SparkSession, place: Place) -> None:
    place.publish()
    with closing(SqliteLog.open(place.data)) as log:
        append(log, 400, seed=7)
    export(HERE, place.store, place.lake)
    fresh = read_store(place.data)[EVENTS:]
    told = plan(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=0, newest=0))
    assert told.upto == EVENTS
    assert told.blockers[0].first_id == EVENTS + 1
    assert told.blocked_partitions == len({name for record in fresh for name in record.partitions})
    assert {blocker.watermark for blocker in told.blockers} <= {*range(EVENTS + 1), None}


def test_what_is_to_be_kept(spark: SparkSession, place: Place) -> None:
    place.publish()

    def upto(keep: RetentionPolicy) -> int:
        return plan(spark, place.store, place.maintainer, place.lake, keep).upto

    assert upto(RetentionPolicy(events=1_000, newest=0)) == 2_000
    assert upto(RetentionPolicy(events=10, newest=700)) == 2_300, "the newest stay whatever is asked"
    assert upto(RetentionPolicy(events=10_000, newest=0)) == 0
    records = read_store(place.data)
    age = time.time_ns() // 1_000_000 - records[1_999].status_updated_at
    at = upto(RetentionPolicy(age_ms=age, newest=0))
    assert 1_999 < at <= EVENTS  # milliseconds pass while this runs
    assert upto(RetentionPolicy(age_ms=age, events=1_500, newest=0)) == 1_500, "both hold"
    assert upto(RetentionPolicy(age_ms=10**12 * 3, newest=0)) == 0
    with pytest.raises(PipelineError, match="no retention given"):
        upto(RetentionPolicy())


def test_the_lake_must_have_it(spark: SparkSession, place: Place) -> None:
    place.publish()
    with closing(SqliteLog.open(place.data)) as log:
        append(log, 50, seed=9)
    told = plan(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=0, newest=0))
    assert told.upto == EVENTS
    assert told.bounds[0].why.startswith("the lake ends there")


def damage(lake: Lake, table: str, committed_id: int, column: str = "event") -> None:
    """Change an event in one of the lake's files, as a bad disk or a bad program would."""
    other = {"event": '{"payload":{"target":"x","value":1},"type":"set"}', "client_id": "another"}[column]
    view = lake.view()
    files = view.log_files if table == LOG else view.partition_files
    for file in files:
        path = lake.storage.uri(table, file.path)
        rows = pq.read_table(path, partitioning=None)
        ids = rows.column("committed_id").to_pylist()
        if committed_id in ids:
            values = rows.column(column).to_pylist()
            values[ids.index(committed_id)] = other
            place = rows.schema.get_field_index(column)
            pq.write_table(rows.set_column(place, rows.field(column), pa.array(values)), path)
            return
    raise AssertionError("no such event")


@pytest.mark.req("DUR-05")
@pytest.mark.parametrize("table", [LOG, BY_PARTITION])
def test_a_copy_that_is_wrong_is_noticed_before_anything_goes(
    spark: SparkSession, place: Place, table: str
) -> None:
    place.publish()
    damage(place.lake, table, 1_234)
    with pytest.raises(Mismatch, match=r"event 1234 .*: nothing was removed"):
        retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=500, newest=0))
    assert place.maintainer.extent().pruned_to == 0
    retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=EVENTS - 1_000, newest=0))
    assert place.maintainer.extent().pruned_to == 1_000, "what comes before it can go"


@pytest.mark.req("DUR-05", "DUR-06")
def test_all_that_is_served_of_an_event_is_compared(spark: SparkSession, place: Place) -> None:
    place.publish()
    damage(place.lake, BY_PARTITION, 1_234, "client_id")
    with pytest.raises(Mismatch, match=r"by_partition differs from the log within .*: nothing was removed"):
        retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=500, newest=0))
    assert place.maintainer.extent().pruned_to == 0


@pytest.mark.req("DUR-05", "DUR-06")
def test_another_lake_must_have_what_left_before_too(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.publish()
    retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=1_500, newest=0))
    moved, damaged = (
        Lake.at(str(shutil.copytree(tmp_path / "lake", tmp_path / name))) for name in ("moved", "damaged")
    )
    damage(damaged, BY_PARTITION, 100)
    keep = RetentionPolicy(events=500, newest=0)
    told = plan(spark, place.store, place.maintainer, damaged, keep).text()
    assert f"events pruned before are at {tmp_path / 'lake'}: this lake is audited first" in told
    with pytest.raises(Mismatch, match=r"damaged is NOT SOUND, .* nothing was removed"):
        retain(spark, place.store, place.maintainer, damaged, keep)
    assert place.maintainer.extent() == LogExtent(1_500, EVENTS, str(tmp_path / "lake"))
    retain(spark, place.store, place.maintainer, moved, keep)
    assert place.maintainer.extent() == LogExtent(2_500, EVENTS, str(tmp_path / "moved"))


def test_what_a_plan_says(spark: SparkSession, place: Place) -> None:
    place.publish()

    def told(keep: RetentionPolicy) -> str:
        return plan(spark, place.store, place.maintainer, place.lake, keep).text()

    few = told(RetentionPolicy(events=10_000, age_ms=90_000, newest=5_000))
    assert "nothing can be pruned\n" in few
    assert "  up to 0: 10000 events are kept\n" in few
    assert "  up to 0: the newest 5000 events always stay\n" in few
    assert "events of the last 1.5 minutes are kept" in few
    size = sum(len(record.event) for record in read_store(place.data)[:1_000])
    some = plan(
        spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=EVENTS - 1_000, newest=0)
    )
    assert size / 2 < some.bytes < size * 2
    retain(spark, place.store, place.maintainer, place.lake, RetentionPolicy(events=0, newest=0))
    assert told(RetentionPolicy(events=0)).startswith(
        f"the log has no events, {EVENTS} were pruned, snapshots"
    )


@pytest.mark.soak
def test_the_log_stays_small_while_the_history_grows(spark: SparkSession, tmp_path: Path) -> None:
    """Ten times the events over the same settings: what grows is what deduplication remembers, and no more."""
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    sizes: list[int] = []
    with closing(SqliteLog.open(data)):
        pass
    with closing(open_maintainer(sqlite_uri(data))) as maintainer:
        for upto in (2_000, 20_000):
            settings(data, upto)
            export(HERE, sqlite_uri(data), lake)
            snapshot(HERE, lake, ShippedModel.open())
            publish(maintainer, lake)
            retain(spark, sqlite_uri(data), maintainer, lake, RetentionPolicy(events=500, newest=0))
            assert maintainer.extent() == LogExtent(upto - 500, upto, lake.storage.location)
            sizes.append(sum(file.stat().st_size for file in data.glob("log.db*")))
    assert sizes[1] < sizes[0] + 18_000 * REMEMBERED_BYTES


def settings(data: Path, upto: int) -> None:
    """Events up to `upto`, each of which sets one of a hundred settings again."""
    chance = random.Random(upto)
    with closing(SqliteLog.open(data)) as log:
        while (head := log.begin([]).head) < upto:
            log.commit([set_again(head + place + 1, chance) for place in range(500)])
            log.maintain()


def set_again(committed_id: int, chance: random.Random) -> Record:
    target, value = f"key{chance.randrange(100)}", "x" * 500
    event = {"type": "set", "payload": {"target": target, "value": value, "options": {"replace": True}}}
    body, partitions = canonical(event), (f"room-{chance.randrange(10)}",)  # type: ignore[arg-type]
    hash = content_hash(body, canonical(list(partitions)))
    return Record(committed_id, f"{chance.getrandbits(128):032x}", "c", partitions, body, hash, START_MS)


def kill_and_complete(place: Place, keeping: Sequence[int], seed: int) -> None:
    """Retention killed while it prunes, once for each number of events to keep; then in peace."""
    records: list[Record] = read_store(place.data)
    place.publish()
    arguments = ["--store", place.store, "--lake", place.lake.storage.location, "--master", "local[2]"]
    chance = random.Random(seed)
    for keep in keeping:
        command = start("retain", "--keep-events", str(keep), "--keep-newest", "0", *arguments)
        before = place.maintainer.extent().pruned_to
        wait_until(lambda before=before: place.maintainer.extent().pruned_to > before, command)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.02))
        kill(command)
        held = place.maintainer.extent()
        with closing(SqliteReader.open(place.data)) as reader:
            assert list(reader.scan(held.pruned_to, EVENTS, limit=10_000)) == records[held.pruned_to :]
    told = unisono("lake", "retain", "--keep-events", "300", "--keep-newest", "0", "--dry-run", *arguments)
    assert told.exit_code == 0, told.output
    assert "can be pruned: " in told.stdout
    done = unisono("lake", "retain", "--keep-events", "300", "--keep-newest", "0", *arguments)
    assert done.exit_code == 0, done.output
    assert f"the log holds events 2701 to {EVENTS}" in done.stdout
    assert list(check_directory(place.data).findings) == []
    assert (place.data / "log.db").stat().st_size < 2_000_000
    refused = unisono("lake", "retain", *arguments)
    assert refused.exit_code == 2
    assert "give what to keep" in refused.stderr


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_killed_and_gone_on_with(spark: SparkSession, place: Place) -> None:
    """More kills: soak/test_retention.py."""
    kill_and_complete(place, [1_200], time.time_ns())
