from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import orjson
import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.equality import by_partition, replayed
from tests.pipeline.outline import HOT, OUTLINE, START_MS, Outlines, make_outlines, shipped_outline
from tests.pipeline.processes import run
from unisono.lake.lake import Lake
from unisono.model.pack import pack
from unisono.pipeline.errors import NoSuchMoment, NoSuchPartition
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import resolve_moment, state_at, states_at
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

EVENTS = 2_000


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, list[Record]]:
    """A lake with snapshots at several moments, some of them of a single partition, some thinned out."""
    directory = tmp_path_factory.mktemp("past")
    records = make_outlines(directory / "data", EVENTS, 20, skewed=True)
    lake = Lake.at(str(directory / "lake"))
    lake.make(buckets=4)
    model = shipped_outline()
    for upto in (300, 500, 900, 1_000, 1_100, 1_500):
        export(HERE, sqlite_uri(directory / "data"), lake, to=upto, events_per_file=350)
        snapshot(HERE, lake, model)
        if upto == 1_100:
            compact(HERE, lake)
    export(HERE, sqlite_uri(directory / "data"), lake, to=1_700)
    snapshot(HERE, lake, model, partitions=[HOT, "room-00004"])
    export(HERE, sqlite_uri(directory / "data"), lake)
    return lake, records


def test_any_partition_at_any_moment(past: tuple[Lake, list[Record]]) -> None:
    lake, records = past
    model, histories, chance = shipped_outline(), by_partition(records), random.Random()
    bases = set()
    for upto in (0, 1, 299, 300, 301, 1_700, EVENTS, *(chance.randrange(EVENTS) for _ in range(8))):
        for name in (HOT, "room-00004", f"room-{chance.randrange(20):05d}"):
            history = [record for record in histories[name] if record.committed_id <= upto]
            found = state_at(lake, name, model, upto)
            assert (pack(found.state), found.skipped) == replayed(model.load(), history), (name, upto)
            assert (found.events, found.committed_id, found.model_version) == (len(history), upto, 1)
            assert found.replayed == sum(record.committed_id > found.base for record in history)
            assert found.base <= upto
            bases.add(found.base)
    assert len(bases) > 3, "snapshots are used where there are some"


def test_without_snapshots_of_this_model_everything_is_replayed(past: tuple[Lake, list[Record]]) -> None:
    lake, records = past
    history = by_partition(records)["room-00004"]
    found = state_at(lake, "room-00004", ShippedModel.open())
    assert (found.base, found.replayed, found.model_version) == (0, len(history), 0)
    assert pack(found.state) == replayed(ShippedModel.open().load(), history)[0]
    shipped = shipped_outline()
    changed = ShippedModel(shipped.version, "other", shipped.files)
    assert state_at(lake, "room-00004", changed).base == 0, "another content of the same version"


@pytest.mark.parametrize("upto", [None, 1_700, 1_600, 1_500, 1_050, 200, 0])
def test_all_partitions_at_once(
    spark: SparkSession, past: tuple[Lake, list[Record]], upto: int | None
) -> None:
    lake, records = past
    last = EVENTS if upto is None else upto
    model = shipped_outline()
    rows = states_at(spark, lake, upto, model=model).collect()
    histories = by_partition(records[:last])
    assert {row["partition"] for row in rows} == histories.keys()
    assert len(rows) == len(histories)
    for row in rows:
        state, skipped = replayed(model.load(), histories[row["partition"]])
        assert row["state"].encode() == state
        assert (row["committed_id"], row["events"], row["skipped"]) == (
            last,
            len(histories[row["partition"]]),
            skipped,
        )


def test_moments(past: tuple[Lake, list[Record]]) -> None:
    lake, records = past
    view = lake.view()
    assert resolve_moment(view, None) == EVENTS
    assert resolve_moment(view, " 12 ") == resolve_moment(view, 12) == 12
    assert resolve_moment(view, np.int64(12)) == 12, "as pandas gives it"  # type: ignore[arg-type]
    for record in (records[0], records[700], records[-1]):
        when = datetime.fromtimestamp(record.status_updated_at / 1000, UTC)
        last = max(r.committed_id for r in records if r.status_updated_at <= record.status_updated_at)
        assert resolve_moment(view, when.isoformat()) == resolve_moment(view, when) == last
        assert resolve_moment(view, when.replace(tzinfo=None)) == last
        assert resolve_moment(view, when.replace(tzinfo=None).isoformat()) == last, (
            "UTC unless it says otherwise"
        )
        assert resolve_moment(view, when.isoformat().replace("+00:00", "Z")) == last
    assert resolve_moment(view, "2999-01-01") == EVENTS
    assert resolve_moment(view, "2023-11-14T23:13:20.100+01:00") == max(
        r.committed_id for r in records if r.status_updated_at <= START_MS + 100
    )
    for wrong, says in (
        (EVENTS + 1, "the lake ends at event 2000, 2001 is requested"),
        (-1, "-1 is requested"),
        ("yesterday", "neither a committed_id nor a time as in"),
        ("2001-01-01", "no event was committed by 2001-01-01T00:00:00"),
    ):
        with pytest.raises(NoSuchMoment, match=says):
            resolve_moment(view, wrong)
    with pytest.raises(NoSuchPartition, match="no event of partition 'nobody' is in the lake"):
        state_at(lake, "nobody", shipped_outline())


def test_an_early_moment_is_found_without_opening_later_files(tmp_path: Path) -> None:
    records = make_outlines(tmp_path / "data", 600, 5)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    export(HERE, sqlite_uri(tmp_path / "data"), lake, events_per_file=100)
    view = lake.view()
    for file in view.log_files[2:]:
        Path(lake.storage.uri(file.table, file.path)).unlink()
    early = records[149].status_updated_at
    last = max(record.committed_id for record in records if record.status_updated_at <= early)
    assert resolve_moment(view, datetime.fromtimestamp(early / 1000, UTC)) == last


@pytest.mark.req("PART-02")
def test_names_as_people_type_them(spark: SparkSession, tmp_path: Path) -> None:
    composed, apart = "caf\u00e9", "cafe\u0301"
    records = [msgspec.structs.replace(r, partitions=(composed,)) for r in Outlines("names", 1).records(20)]
    log = SqliteLog.open(tmp_path / "data")
    log.begin([])
    log.commit(records)
    log.close()
    lake, model = Lake.at(str(tmp_path / "lake")), shipped_outline()
    lake.make(buckets=4)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    assert state_at(lake, apart, model) == state_at(lake, composed, model)
    assert snapshot(spark, lake, model, partitions=[apart, composed]).partitions == 1
    for wrong in ("", "x" * 129):
        with pytest.raises(NoSuchPartition, match="invalid partition name: a partition name "):
            state_at(lake, wrong, model)


def asked(*arguments: str) -> Result:
    return unisono("lake", *arguments)


def test_commands(past: tuple[Lake, list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java."""
    lake, records = past
    place = ["--lake", lake.storage.location, "--model", str(OUTLINE), "--partition", "room-00004"]
    no_java = {"JAVA_HOME": str(tmp_path)}
    shown = run("state", *place, "--at", "1600", **no_java)
    assert shown.returncode == 0, shown.stderr
    history = [record for record in by_partition(records)["room-00004"] if record.committed_id <= 1_600]
    expected = orjson.loads(replayed(shipped_outline().load(), history)[0])
    assert json.loads(shown.stdout) == expected
    assert shown.stdout.startswith('{\n  "tree": {\n    "outline": {')
    assert f"room-00004 at event 1600, model version 1: {len(history)} events, " in shown.stderr
    assert "replayed after the snapshot at " in shown.stderr
    whole = json.loads(asked("state", *place, "--at", "1600", "--json").stdout)
    assert whole["state"] == expected
    assert (whole["partition"], whole["committed_id"], whole["events"]) == ("room-00004", 1_600, len(history))
    diff = run("diff", *place, "--from", "1590", "--to", "1600", **no_java)
    assert diff.returncode == 0, diff.stderr
    assert diff.stderr.startswith("room-00004 from event 1590 to 1600, model version 1: ")
    operations = json.loads(asked("diff", *place, "--from", "100", "--json").stdout)
    assert {operation["op"] for operation in operations} >= {"treePush", "add"}
    for arguments in (
        ["state", *place, "--at", "2999-01-01"],
        ["diff", *place, "--from", "100", "--to", "2999-01-01"],
    ):
        told = asked(*arguments, "--quiet")
        assert told.exit_code == 0
        assert told.stderr.startswith("the lake ends at event 2000, committed at 2023-")
        assert "what came after it is not in this answer" in told.stderr
    when = datetime.fromtimestamp(records[-1].status_updated_at / 1000, UTC).isoformat()
    assert asked("state", *place, "--at", when, "--quiet").stderr == "", "the lake's own last moment"
    monkeypatch.chdir(tmp_path)  # where no server's data lies
    for arguments, says in (
        (["state", *place, "--at", "9999"], "the lake ends at event 2000, 9999 is requested"),
        (["state", *place, "--at", "soon"], "neither a committed_id nor a time"),
        (["state", *place[:2], "--partition", "p"], "no model given: --model DIR"),
        (["diff", *place[:4], "--partition", "nobody", "--from", "1"], "no event of partition 'nobody'"),
    ):
        told = asked(*arguments)
        assert (told.exit_code, told.stdout) == (2, "")
        assert told.stderr.startswith("unisono: ")
        assert says in told.stderr
        assert told.stderr.count("\n") == 1
