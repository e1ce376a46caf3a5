from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from unisono.lake.lake import Lake
from unisono.lake.run_tables import (
    AUDIT,
    JOINED_FILES,
    RUNS,
    AuditRecord,
    RunRecord,
    join_small_files,
    new_run_id,
    read_rows,
    record_findings,
    record_runs,
)
from unisono.lake.storage import Storage

BEGAN_MS = 1_700_000_000_123


def rows_of(storage: Storage, table: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = DeltaTable(storage.table(table)).to_pyarrow_table().to_pylist()
    key = lambda row: str(row["began_at"])  # noqa: E731
    assert sorted(read_rows(storage, table).to_pylist(), key=key) == sorted(found, key=key)
    return found


def test_runs_are_rows_with_times(tmp_path: Path) -> None:
    storage = Lake.at(str(tmp_path)).storage
    one = RunRecord(new_run_id(), "export", BEGAN_MS, 1.5, 10, True, "10 events")
    other = RunRecord(new_run_id(), "audit", BEGAN_MS + 1, 0.5, 10, False, error="a gap", document="{}")
    record_runs(storage, [one])
    record_runs(storage, [other])
    first, second = sorted(rows_of(storage, RUNS), key=lambda row: str(row["began_at"]))
    assert first["run_id"] == one.run_id
    assert str(first["began_at"]) == "2023-11-14 22:13:20.123000+00:00"
    assert (first["items"], first["ok"], first["note"]) == (10, True, "10 events")
    assert (second["job"], second["ok"], second["error"]) == ("audit", False, "a gap")


def test_findings_are_rows_by_kind(tmp_path: Path) -> None:
    storage = Lake.at(str(tmp_path)).storage
    record_findings(storage, [])
    assert rows_of(storage, AUDIT) == []
    record_findings(storage, [AuditRecord("run", BEGAN_MS, "gap", "ids that are missing", False, 3, [4, 5])])
    (row,) = rows_of(storage, AUDIT)
    assert (row["kind"], row["count"], row["committed_ids"]) == ("gap", 3, [4, 5])


def test_files_of_many_runs_are_joined(tmp_path: Path) -> None:
    storage = Lake.at(str(tmp_path)).storage
    join_small_files(storage, 0)
    for number in range(JOINED_FILES):
        record_runs(storage, [RunRecord(new_run_id(), "export", BEGAN_MS + number, 0.1, 1, True)])
    join_small_files(storage, 10**20)
    join_small_files(storage, 0)
    assert len(DeltaTable(storage.table(RUNS)).file_uris()) == 1
    assert len(rows_of(storage, RUNS)) == JOINED_FILES
    assert len(list(Path(storage.table(RUNS)).glob("*.parquet"))) == 1, "replaced files are gone"
