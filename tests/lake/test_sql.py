"""Queries over a lake: what they see, and that they reach nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lake.old_lakes import DATA
from unisono.lake import sql
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RUNS, RunRecord, record_runs
from unisono.lake.sql import ROWS_MAX, QueryRefused, query
from unisono.lake.sql_tables import SQL_TABLES


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("lake")
    shutil.unpack_archive(DATA / "layout-1.zip", folder)
    return Lake.at(str(folder))


def values(lake: Lake, text: str) -> list[list[str | None]]:
    return query(lake, text).rows


def test_every_table_has_the_columns_that_are_named(lake: Lake) -> None:
    for table, columns in SQL_TABLES.items():
        found = query(lake, f"SELECT * FROM {table} LIMIT 1")
        named = columns.replace("and the columns of events", SQL_TABLES["events"]).split(", ")
        assert set(found.columns) == set(named), table


def test_events_partitions_and_snapshots_can_be_joined(lake: Lake) -> None:
    assert values(lake, "SELECT count(*), max(committed_id) FROM events") == [["60", "60"]]
    assert values(lake, "SELECT committed_at FROM events WHERE committed_id = 1") == [
        ["2023-11-14 22:13:20.001000"]
    ]
    found = query(lake, "SELECT event->>'$.type' AS kind FROM events ORDER BY committed_id LIMIT 2")
    assert (found.columns, found.types, found.head) == (["kind"], ["VARCHAR"], 60)
    assert found.rows == [["set"], ["treePush"]]
    missing = """
        SELECT count(*) FROM partition_events p WHERE NOT EXISTS
        (SELECT 1 FROM events e WHERE e.committed_id = p.committed_id AND list_contains(e.partitions, p.partition))
    """
    assert values(lake, missing) == [["0"]]
    newest = "SELECT count(*) > 0, min(json_valid(state)) FROM snapshots WHERE committed_id = 60"
    assert values(lake, newest) == [["true", "true"]]


def test_runs_are_there_once_there_are_some(lake: Lake) -> None:
    assert values(lake, "SELECT count(*) FROM runs") == [["0"]]
    record_runs(lake.storage, [RunRecord("r1", "export", 1_700_000_000_000, 1.5, 60, True)])
    assert values(lake, "SELECT job, items, ok FROM runs") == [["export", "60", "true"]]
    assert (Path(lake.storage.table(RUNS)) / "_delta_log").is_dir()


@pytest.mark.parametrize(
    "text",
    [
        "COPY events TO '{here}/stolen.csv'",
        "ATTACH '{here}/other.db'",
        "CREATE TABLE x AS SELECT 1",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "EXPORT DATABASE '{here}/all'",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_only_one_select_is_run(lake: Lake, tmp_path: Path, text: str) -> None:
    with pytest.raises(QueryRefused, match="one SELECT"):
        query(lake, text.format(here=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_parquet('{file}')",
        "glob('{folder}/*')",
        "'{file}'",
        "read_text('http://127.0.0.1:9/x')",
        "lake",  # a variable of this process
        "query('COPY (SELECT 1) TO ''{folder}/x''')",
    ],
)
def test_nothing_else_is_read(lake: Lake, tmp_path: Path, source: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("secret\n")
    with pytest.raises(QueryRefused) as refused:
        query(lake, f"SELECT * FROM {source.format(file=file, folder=tmp_path)}")
    assert "one SELECT" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [file]


def test_rows_and_texts_are_cut(lake: Lake) -> None:
    found = query(lake, "SELECT range AS n FROM range(10000) ORDER BY n")
    assert (len(found.rows), found.rows[-1], found.more) == (ROWS_MAX, [str(ROWS_MAX - 1)], True)
    found = query(
        lake, "SELECT repeat('x', 100000) AS long, 'abc'::BLOB AS bytes, [1, NULL] AS list, NULL AS none"
    )
    assert found.more
    ((long, binary, items, none),) = found.rows
    assert long is not None
    assert len(long) == sql.CELL_CHARS_MAX
    assert (binary, items, none) == ("616263", "[1,null]", None)


def test_a_long_query_is_stopped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "QUERY_S", 0.2)
    with pytest.raises(QueryRefused, match="longer than"):
        query(
            lake, "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.range, b.range) = 1"
        )


def test_memory_is_bounded(lake: Lake) -> None:
    with pytest.raises(QueryRefused, match="256 MiB"):
        query(lake, "SELECT string_agg(x) FROM (SELECT repeat('y', 1000000) AS x FROM range(1000))")


def test_errors_say_what_is_wrong(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(QueryRefused, match="nonsense"):
        query(lake, "SELECT nonsense FROM events")
    with pytest.raises(LakeUnusable, match="there is no lake"):
        query(Lake.at(str(tmp_path)), "SELECT 1")
