"""The audit: a sound history has no finding, and every kind of damage is found and named with its event."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE, spreading
from tests.pipeline.corruptions import GROUPS, at_random, lake_snapshots_gone, store_snapshot_past_head
from tests.pipeline.lake_corruptions import BUCKETS, HALF, SPREAD_TO, Found
from tests.pipeline.planting import Planter
from unisono.lake.lake import Lake
from unisono.lake.run_tables import AUDIT, RUNS, read_rows
from unisono.lake.storage import BY_PARTITION, SNAPSHOTS
from unisono.model.load import load_model
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.audit.result import AuditReport
from unisono.pipeline.jobs.compact.job import ROWS_PER_FILE, compact_table
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record

CASES = [(group, name) for group, cases in GROUPS.items() for name in cases.cases]


@pytest.fixture(scope="module")
def sound(
    spark: SparkSession, history: tuple[Path, list[Record]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A lake with everything in it: five files of log, spread and fresh runs, two generations of snapshots."""
    store, lake = sqlite_uri(history[0]), Lake.at(str(tmp_path_factory.mktemp("sound") / "lake"))
    lake.make(BUCKETS)
    export(spark, store, lake, to=HALF, events_per_file=600)
    snapshot(spark, lake, ShippedModel.open())
    export(spark, store, lake, to=SPREAD_TO, events_per_file=600)
    with spreading():
        compact_table(spark, lake, BY_PARTITION, ROWS_PER_FILE)
    export(spark, store, lake, events_per_file=600)
    snapshot(spark, lake, ShippedModel.open())
    return Path(lake.storage.location)


class Damaged:
    """One group of damage, done to a copy of lake and log, and what the audit says of it."""

    def __init__(self, report: AuditReport, expected: dict[str, Found]) -> None:
        self.report = report
        self.expected = expected
        self.found: Found = {(finding.kind, finding.committed_id) for finding in report.findings}


class Damager:
    def __init__(self, spark: SparkSession, sound: Path, data: Path, place: Path) -> None:
        self._context, self._sound, self._data, self._place = spark, sound, data, place
        self._done: dict[str, Damaged] = {}

    def copies(self, name: str) -> tuple[Lake, Path]:
        lake = shutil.copytree(self._sound, self._place / name / "lake")
        return Lake.at(str(lake)), Path(shutil.copytree(self._data, self._place / name / "data"))

    def damaged(self, name: str) -> Damaged:
        if name not in self._done:
            group, (lake, data) = GROUPS[name], self.copies(name)
            if group.pruned_to:
                prune(data, lake, group.pruned_to)
            planter = Planter(lake)
            expected = {case: plant(planter, data) for case, plant in group.cases.items()}
            if name != "files":
                planter.commit()
            store = sqlite_uri(data) if group.with_store else None
            report = audit(self._context, lake, store, AuditOptions(sample=group.sample))
            self._done[name] = Damaged(report, expected)
        return self._done[name]


def prune(data: Path, lake: Lake, upto: int) -> None:
    maintainer = open_maintainer(sqlite_uri(data))
    maintainer.set_archive(lake.storage.location)
    while maintainer.prune_step(upto):
        pass
    maintainer.close()


@pytest.fixture(scope="module")
def damager(
    spark: SparkSession,
    sound: Path,
    history: tuple[Path, list[Record]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Damager:
    return Damager(spark, sound, history[0], tmp_path_factory.mktemp("damaged"))


def test_a_sound_lake_has_no_finding(spark: SparkSession, sound: Path, store: str) -> None:
    told: list[str] = []
    report = audit(spark, Lake.at(str(sound)), store, AuditOptions(sample=None), told.append)
    assert report.sound, report.text()
    assert not report.findings
    counts = {one.what: one.count for one in report.checked}
    assert counts["hashes recomputed"] == counts["the log against the lake"] == report.events == 3_000
    assert counts["snapshots of model version 0 against a replay"] == 118
    assert "sound, events 1 to 3000" in report.text()
    assert told


@pytest.mark.parametrize(("group", "case"), CASES, ids=[f"{group}: {case}" for group, case in CASES])
def test_damage_is_found_and_named(damager: Damager, group: str, case: str) -> None:
    damaged = damager.damaged(group)
    assert damaged.expected[case] <= damaged.found, damaged.report.text()
    assert not damaged.report.sound


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_else_is_found(damager: Damager, group: str) -> None:
    damaged = damager.damaged(group)
    expected = set().union(*damaged.expected.values())
    assert damaged.found - expected == set(), damaged.report.text()
    kinds = {kind.kind: kind.count for kind in damaged.report.kinds}
    assert set(kinds) == {kind for kind, _ in expected}


def test_an_id_that_two_events_share_is_told_with_both(damager: Damager) -> None:
    told = [finding for finding in damager.damaged("events").report.findings if finding.committed_id == 2_533]
    assert [finding.message for finding in told if "is that of event 44 too" in finding.message]


def test_rows_are_told_with_their_partition(damager: Damager) -> None:
    findings = damager.damaged("places").report.findings
    assert all(finding.partition for finding in findings if finding.kind in ("by_partition", "bucket"))


def test_a_pruned_log_is_sound(spark: SparkSession, damager: Damager) -> None:
    lake, data = damager.copies("pruned sound")
    prune(data, lake, 1_000)
    report = audit(spark, lake, sqlite_uri(data), AuditOptions(sample=0))
    assert report.sound, report.text()
    counts = {one.what: one.count for one in report.checked}
    assert counts["what the log remembers of pruned events, against the lake"] == 1_000
    assert counts["the log against the lake"] == 2_000


def test_a_lake_that_lacks_what_has_left_the_log_is_not_sound(
    spark: SparkSession, damager: Damager, tmp_path: Path
) -> None:
    """Another lake than the one that retention had: an empty one, or one that ends too early."""
    lake, data = damager.copies("pruned elsewhere")
    other = Lake.at(str(tmp_path / "other"))
    other.make(buckets=2)
    for head in (0, 600):
        if head:
            export(HERE, sqlite_uri(damager.copies("whole log")[1]), other, to=head)
            prune(data, lake, 1_000)
        else:
            prune(data, lake, 700)
        report = audit(spark, other, sqlite_uri(data), AuditOptions(sample=0))
        assert not report.sound
        (finding,) = report.findings
        assert (finding.kind, finding.committed_id) == ("pruned", head + 1)
        assert finding.message.endswith(f"have left the log, and the lake ends at {head}")


def test_a_log_that_cannot_be_read_is_a_finding(spark: SparkSession, damager: Damager) -> None:
    """Half of its pages are overwritten: what is lost with them is told as ranges, and the lake is sound."""
    lake, data = damager.copies("broken log")
    file = data / "log.db"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle:] = bytes(len(content) - middle)
    file.write_bytes(bytes(content))
    report = audit(spark, lake, sqlite_uri(data), AuditOptions(sample=0))
    assert {finding.kind for finding in report.findings} == {"copy"}
    assert any("cannot be read" in finding.message for finding in report.findings)


@pytest.mark.parametrize("table", [BY_PARTITION, SNAPSHOTS])
@pytest.mark.parametrize("sample", [None, 40])
def test_replays_go_on_where_files_are_damaged(
    spark: SparkSession, damager: Damager, table: str, sample: int | None
) -> None:
    """A column of it is overwritten, and no index tells: the file is a finding, and the others are replayed."""
    lake, _ = damager.copies(f"{table}-{sample}")
    file = lake.table(table).files()[0]
    path = Path(lake.storage.uri(table, file.path))
    content, column = bytearray(path.read_bytes()), "state" if table == SNAPSHOTS else "event"
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunk = next(
        group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == column
    )
    start = chunk.data_page_offset + 60
    content[start : start + 100] = bytes(100)
    path.write_bytes(bytes(content))
    report = audit(spark, lake, options=AuditOptions(sample=sample))
    assert {(finding.kind, finding.committed_id) for finding in report.findings} == {("file", file.first_id)}
    (replayed,) = (one for one in report.checked if "against a replay" in one.what)
    assert "could not be read" in replayed.note


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("sample", [0, 1])
def test_what_is_asked_of_the_snapshots_of_all_partitions(
    spark: SparkSession, damager: Damager, sample: int
) -> None:
    """Not only of those that are replayed."""
    lake, data = damager.copies(f"asked of all {sample}")
    planter = Planter(lake)
    expected = store_snapshot_past_head(planter, data) | lake_snapshots_gone("room-008", 0)(planter, data)
    planter.commit()
    report = audit(spark, lake, sqlite_uri(data), AuditOptions(sample=sample))
    assert {(finding.kind, finding.committed_id) for finding in report.findings} == expected


def test_snapshots_are_replayed_by_the_model_of_their_version(
    spark: SparkSession, damager: Damager, tmp_path: Path
) -> None:
    lake, _ = damager.copies("models")
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "counted.json").write_text('{"type": "array"}')
    (tmp_path / "model.toml").write_text('name = "m"\nmodel_version = 3\n')
    model = ShippedModel.of(load_model(tmp_path))
    snapshot(spark, lake, model)
    without = audit(spark, lake, options=AuditOptions(sample=10))
    assert without.sound, without.text()
    assert "snapshots of model version 3: 10 snapshots (of 10 partitions; not replayed" in without.text()
    given = audit(spark, lake, options=AuditOptions(sample=10, model=model))
    assert given.sound, given.text()
    assert "snapshots of model version 3 against a replay: 10 snapshots" in given.text()
    assert {kind.kind: (kind.count, kind.warning) for kind in given.kinds} == {"model": (750, True)}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_damage_is_found(spark: SparkSession, damager: Damager, seed: int) -> None:
    lake, _ = damager.copies(f"random-{seed}")
    planter = Planter(lake)
    expected = at_random(planter, random.Random(seed), 25)
    planter.commit()
    report = audit(spark, lake, options=AuditOptions(sample=0))
    found = {(finding.kind, finding.committed_id) for finding in report.findings}
    assert expected <= found
    assert report.wrong == len(report.findings)


def test_the_command(spark: SparkSession, damager: Damager, sound: Path, tmp_path: Path) -> None:
    """In this process, so that it uses the Spark that runs; test_cli starts commands of their own."""
    done = unisono("lake", "audit", "--lake", str(sound), "--json", "--quiet")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sound"]
    lake, data = damager.copies("command")
    planter = Planter(lake)
    planter.change(76, type="set")
    planter.commit()
    page, plain = tmp_path / "out" / "index.html", tmp_path / "out" / "audit.json"
    files = ["--out", str(tmp_path / "out"), "--record"]
    done = unisono("lake", "audit", "--lake", lake.storage.location, "--data", str(data), *files)
    assert done.exit_code == 1, done.output
    (run,), (row,) = (read_rows(lake.storage, name).to_pylist() for name in (RUNS, AUDIT))
    assert (run["job"], run["ok"], run["run_id"]) == ("audit", False, row["run_id"])
    assert (row["kind"], row["count"], row["committed_ids"]) == ("kind", 1, [76])
    assert "event 76: its columns say type 'set'" in done.stdout
    assert "NOT SOUND, 1 finding" in done.stdout.splitlines()[-1]
    told = json.loads(plain.read_text())
    assert [(finding["kind"], finding["committed_id"]) for finding in told["findings"]] == [("kind", 76)]
    assert "<svg" in page.read_text("utf-8")
    done = unisono("lake", "audit", "--lake", str(tmp_path / "none"))
    assert done.exit_code == 2
    assert "there is no lake" in done.stderr
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "taken" / "index.html").mkdir(parents=True)
    taken = tmp_path / "taken"
    done = unisono("lake", "audit", "--lake", str(sound), "--sample", "0", "--out", str(taken))
    assert done.exit_code == 2
    assert f"{taken} cannot be written: Is a directory" in done.stderr
    assert "sound, events 1 to 3000" in done.stdout, "what was found is told all the same"
    for wrong in (["--full", "--sample", "3"], ["--out", str(tmp_path / "file")]):
        done = unisono("lake", "audit", "--lake", str(sound), *wrong)
        assert done.exit_code == 2
