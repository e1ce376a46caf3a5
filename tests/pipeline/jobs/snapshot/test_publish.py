from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.equality import by_partition, replayed, require_replay
from tests.pipeline.outline import OUTLINE, Outlines, append_outlines, make_outlines, shipped_outline
from tests.pipeline.processes import run
from tests.pipeline.watermarks import watermarks
from unisono.authority.states.resident import States
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.pipeline.errors import Mismatch, ModelContentChanged
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot import publish as publishing
from unisono.pipeline.jobs.snapshot.job import folded_to, snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.store.cluster import ModelBundle
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite.log import SqliteLog

VERSION = 1


def stored(store: str) -> dict[str, int]:
    return watermarks(store, VERSION, shipped_outline().digest)


def require_published(store: str, records: list[Record]) -> None:
    model = shipped_outline().load()
    reader = open_reader(store)
    try:
        for name, history in by_partition(records).items():
            held = reader.snapshot(name, VERSION, shipped_outline().digest)
            assert held is not None
            assert (
                held.state == replayed(model, [r for r in history if r.committed_id <= held.committed_id])[0]
            )
            assert held.committed_id >= history[-1].committed_id, "every event of the partition is in it"
    finally:
        reader.close()


def test_what_is_newer_goes_into_the_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PORTION_ROWS", 7)
    outlines, log = Outlines(3, 30), SqliteLog.open(tmp_path / "data")
    records = append_outlines(log, outlines, 600)
    log.put_snapshots(
        [Snapshot("room-00004", 600, VERSION, b"the server's own", 1, shipped_outline().digest)]
    )
    log.close()
    store, lake, model = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake")), shipped_outline()
    lake.make(buckets=4)
    export(HERE, store, lake, to=500)
    assert publish(lake, store, VERSION).snapshots == 0, "there are none"
    snapshot(spark, lake, model)
    told: list[int] = []
    done = publish(lake, store, VERSION, told.append)
    assert done.snapshots == 29, "all but the one that is as new as can be"
    assert told == [7, 14, 21, 22, 29] or told[-1] == 29
    assert stored(store) == {f"room-{n:05d}": 600 if n == 4 else 500 for n in range(30)}
    assert publish(lake, store, VERSION).snapshots == 0
    export(HERE, store, lake)
    snapshot(spark, lake, model)
    touched = {name for record in records[500:] for name in record.partitions} - {"room-00004"}
    assert publish(lake, store, VERSION).snapshots == len(touched)
    log = SqliteLog.open(tmp_path / "data")
    try:
        states = States(model.load(), log, bytes_max=1 << 30, snapshot_every=0, now_ms=lambda: 0)
        assert states.load("room-00001"), "the authority starts from it"
        while (written := states.write_snapshot("room-00001")) is None:
            states.reset_fold_budget()
        assert written.state == replayed(model.load(), by_partition(records)["room-00001"])[0]
    finally:
        log.close()


def test_a_process_that_publishes_again_reads_only_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = make_outlines(tmp_path / "data", 600, 30)
    store, lake, model = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake")), shipped_outline()
    lake.make(buckets=4)
    export(HERE, store, lake, to=590)
    snapshot(HERE, lake, model)
    reads: list[str] = []
    read = Storage.read

    def noted(storage: Storage, table: str, path: str) -> object:
        if table == SNAPSHOTS:
            reads.append(path)
        return read(storage, table, path)

    first = publish(lake, store, VERSION)
    assert first.snapshots == 30
    monkeypatch.setattr(Storage, "read", noted)
    again = publish(lake, store, VERSION, before=first.published)
    assert (again.snapshots, reads) == (0, [])
    export(HERE, store, lake)
    snapshot(HERE, lake, model)
    reads.clear()
    third = publish(lake, store, VERSION, before=again.published)
    assert third.snapshots == len({name for record in records[590:] for name in record.partitions})
    assert not set(reads) & first.published.files
    require_published(store, records)

    with closing(open_maintainer(store)) as maintainer:
        maintainer.erase([], ["room-00001"])
    assert "room-00001" not in stored(store)
    assert publish(lake, store, VERSION, before=third.published).snapshots == 1
    require_published(store, records)


def snapped(spark: SparkSession, folder: Path) -> tuple[str, Lake]:
    """A log of fifty events, and a lake that has them and snapshots of them."""
    make_outlines(folder / "data", 50)
    store, lake = sqlite_uri(folder / "data"), Lake.at(str(folder / "lake"))
    lake.make()
    export(HERE, store, lake)
    snapshot(spark, lake, shipped_outline())
    return store, lake


def test_not_into_another_log(spark: SparkSession, tmp_path: Path) -> None:
    make_outlines(tmp_path / "other", 60, seed=2)
    _, lake = snapped(spark, tmp_path)
    with pytest.raises(Mismatch, match="the lake is a copy of another log"):
        publish(lake, sqlite_uri(tmp_path / "other"), VERSION)
    assert stored(sqlite_uri(tmp_path / "other")) == {}


def test_not_of_an_older_model_than_the_one_in_force(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = snapped(spark, tmp_path)
    log = SqliteLog.open(tmp_path / "data")
    log.record_model(ModelBundle(2, "later", {}))
    log.close()
    with pytest.raises(
        ModelContentChanged, match="model version 2 is in force: snapshots of version 1 are not"
    ):
        publish(lake, store, VERSION)
    assert stored(store) == {}


def test_not_of_another_content_of_the_version_in_force(spark: SparkSession, tmp_path: Path) -> None:
    """The server would serve, and judge by, states that its model does not come to."""
    store, lake = snapped(spark, tmp_path)
    log = SqliteLog.open(tmp_path / "data")
    log.record_model(ModelBundle(VERSION, "d" * 64, {}))
    log.close()
    with pytest.raises(
        ModelContentChanged, match=r"version 1 has another content .* in force \(dddddddddddd\): its"
    ):
        publish(lake, store, VERSION)
    assert stored(store) == {}
    place = ["--lake", lake.storage.location, "--data", str(tmp_path / "data"), "--model", str(OUTLINE)]
    told = asked("snapshot", *place, "--rebuild", "--publish")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "its snapshots are not published" in told.stderr
    assert folded_to(lake, shipped_outline()) == 50, "what there was stays"


def asked(*arguments: str) -> Result:
    return unisono("lake", *arguments)


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    records = make_outlines(tmp_path / "data", 700, 20)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    place = ["--data", str(tmp_path / "data"), "--lake", lake.storage.location]
    missing = asked("snapshot", *place, "--model", str(tmp_path / "nowhere"))
    assert missing.exit_code == 2
    assert "is not a directory" in missing.stderr
    assert asked("snapshot", *place, "--rebuild", "--partition", "p").exit_code == 2
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    place += ["--model", str(OUTLINE)]
    done = run("snapshot", *place, "--publish", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    rows = sum(len(record.partitions) for record in records)
    assert done.stdout.startswith(f"folded {rows} events in ")
    assert ": 20 snapshots of model version 1 at event 700, " in done.stdout
    assert "events do not fit the model, 20 published\n" in done.stdout
    assert done.stderr == "folded 700 of about 700 rows\n", "nothing of Spark's own"
    require_replay(lake, shipped_outline(), records)
    require_published(sqlite_uri(tmp_path / "data"), records)
    again = asked("snapshot", *place, "--publish")
    assert again.exit_code == 0
    assert "folded 0 events" in again.stdout
    assert "0 snapshots of model version 1 at event 700, 0 published" in again.stdout
    told = asked("info", *place[:4])
    assert "snapshots     model       1  head        700           20 rows" in told.stdout
