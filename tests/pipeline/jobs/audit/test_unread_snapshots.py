"""An audit of snapshots that cannot be compared with a replay: the history is not called sound."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.lake.guests import delta, optimize, vacuum
from tests.lake.lakes import HERE, export_to
from tests.pipeline.history import make_store
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.audit.result import AuditReport
from unisono.pipeline.jobs.compact.foreign_files import rewrite_foreign_files
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.open_log import sqlite_uri

EVENTS = 300
OPEN = ShippedModel.open()


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generations of snapshots, each a file with all partitions."""
    folder = tmp_path_factory.mktemp("unread")
    make_store(folder / "data", EVENTS)
    lake = Lake.at(str(folder / "lake"))
    lake.make(buckets=2)
    for head in (EVENTS // 2, EVENTS):
        export_to(lake, folder / "data", head)
        snapshot(HERE, lake, OPEN)
    return folder


@pytest.fixture
def lake(ready: Path, tmp_path: Path) -> Lake:
    shutil.copytree(ready / "lake", tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


def audited(lake: Lake, sample: int | None) -> AuditReport:
    return audit(HERE, lake, options=AuditOptions(sample))


def kinds(report: AuditReport) -> dict[str, int]:
    return {kind.kind: kind.count for kind in report.kinds}


def joined(lake: Lake) -> None:
    optimize(lake, SNAPSHOTS)


def exchanged(lake: Lake) -> None:
    """Every state but one is that of another partition, with its hash, in one file that is in no order."""
    rows = pa.table(delta(lake, SNAPSHOTS).to_pyarrow_table()).sort_by([("state", "descending")])
    state = rows.column("state")[0].as_py()
    rows = rows.set_column(
        rows.schema.get_field_index("state"),
        "state",
        pa.array([state] * rows.num_rows, rows.schema.field("state").type),
    ).set_column(
        rows.schema.get_field_index("hash"),
        "hash",
        pa.array([hashlib.sha256(state).digest()] * rows.num_rows, pa.binary()),
    )
    write_deltalake(lake.storage.table(SNAPSHOTS), rows, mode="overwrite")


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("sample", [None, 40, 0])
@pytest.mark.parametrize("change", [joined, exchanged])
def test_snapshots_in_a_file_of_another_program_that_is_in_no_order(
    lake: Lake, change: object, sample: int | None
) -> None:
    assert callable(change)
    assert audited(lake, sample).sound
    change(lake)
    vacuum(lake, SNAPSHOTS)
    (foreign,) = lake.table(SNAPSHOTS).listed_files()
    report = audited(lake, sample)
    assert not report.sound
    assert kinds(report) == {"foreign": 1, "snapshot": 1}
    (finding,) = (finding for finding in report.findings if finding.kind == "snapshot")
    assert f"{SNAPSHOTS}/{foreign.path} cannot be read in order" in finding.message
    assert "`unisono lake snapshot --rebuild`" in finding.message
    rewrite_foreign_files(HERE, lake)  # as every command that changes the lake does
    snapshot(HERE, lake, OPEN, rebuild=True)
    assert audited(lake, sample).sound


def without_statistics(lake: Lake, table: str) -> int:
    """As another writer with statistics off; how many files it is."""
    changed = 0
    for path in sorted(Path(lake.storage.table(table), "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            changed += action.get("add", {}).pop("stats", None) is not None
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return changed


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("sample", [None, 40, 0])
@pytest.mark.parametrize("table", [SNAPSHOTS, BY_PARTITION])
def test_files_without_statistics(lake: Lake, table: str, sample: int | None) -> None:
    """They end no audit, and their partitions are not compared, instead of compared with too little."""
    changed = without_statistics(lake, table)
    report = audited(lake, sample)
    assert not report.sound
    assert kinds(report)["statistics"] >= changed
    assert set(kinds(report)) == {"statistics", "head"}
    unread = any("could not be read completely" in step.note for step in report.checked)
    assert unread == (table == SNAPSHOTS), "rows of `by_partition` are sorted by their own ids and names"


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("sample", [None, 40])
def test_events_without_statistics_of_which_some_are_lost(lake: Lake, sample: int | None) -> None:
    """Nothing tells which partitions the lost file had events of."""
    without_statistics(lake, BY_PARTITION)
    lost, _ = lake.table(BY_PARTITION).listed_files()
    Path(lake.storage.uri(BY_PARTITION, lost.path)).unlink()
    report = audited(lake, sample)
    assert "snapshot" not in kinds(report), report.text()
    assert {"statistics", "file"} < set(kinds(report))
    assert any("could not be read completely" in step.note for step in report.checked)


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("sample", [None, 40])
def test_events_after_the_lake_that_the_log_cannot_give(
    ready: Path, tmp_path: Path, sample: int | None
) -> None:
    """The log's snapshots go on to them, and no other check reads them."""
    shutil.copytree(ready / "data", tmp_path / "data")
    store, short = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "short"))
    publish(Lake.at(str(ready / "lake")), store, OPEN.version)
    short.make(buckets=2)
    export_to(short, tmp_path / "data", EVENTS // 2)
    snapshot(HERE, short, OPEN)
    assert audit(HERE, short, store, AuditOptions(sample)).sound
    with closing(sqlite3.connect(tmp_path / "data" / "log.db")) as connection:
        connection.execute("DROP TABLE event_partitions")
    report = audit(HERE, short, store, AuditOptions(sample))
    assert set(kinds(report)) == {"snapshot"}
    assert all("events after 150 cannot be read" in finding.message for finding in report.findings)
