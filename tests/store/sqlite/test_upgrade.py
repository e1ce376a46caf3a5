"""Data directories of every earlier version are opened by this one, with all that is in them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.behaviour.server.harness import running, set_event
from tests.commands import unisono
from tests.store.records import known
from tests.store.sqlite.old_logs import make_version_1
from unisono.store.check import check_directory
from unisono.store.sqlite.event_ids import register_functions
from unisono.store.sqlite.log import SqliteLog
from unisono.store.statements import load_migrations

NEWEST = len(load_migrations("sqlite"))
SERVE = ("--access-default", "allow")


def make_version(directory: Path, version: int) -> None:
    """A log with data as that version left it: its own migrations, and no later one."""
    make_version_1(directory)
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        register_functions(connection)
        for migration in load_migrations("sqlite")[1:version]:
            connection.execute(migration.script)
            connection.pragma("user_version", migration.number)


@pytest.mark.req("DUR-01", "DUR-03")
@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_a_data_directory_of_an_earlier_version_is_served(tmp_path: Path, version: int) -> None:
    data = tmp_path / "data"
    make_version(data, version)
    if version < NEWEST:
        refused = unisono("check", "--quiet", str(data))
        assert refused.exit_code == 2
        assert "start the server on it once" in refused.output
        refused = unisono("backup", str(tmp_path / "target"), "--data", str(data), "--quiet")
        assert refused.exit_code == 2
        assert "start the server on it once" in refused.output
    with running(data, *SERVE) as server, server.client("somebody") as peer:
        assert [event["committed_id"] for event in peer.history(["p"])] == list(range(1, 301))
        assert len(peer.history(["q"])) == 150
        assert peer.commit(["p"], set_event("new", 1)) == 301
    checked = unisono("check", "--quiet", str(data))
    assert checked.exit_code == 0, checked.output
    assert "301 events" in checked.output


def test_a_log_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.pragma("user_version", NEWEST + 1)
    before = (tmp_path / "log.db").read_bytes()
    refused = unisono("check", "--quiet", str(tmp_path))
    assert refused.exit_code == 2
    assert "newer Unisono" in refused.output
    assert (tmp_path / "log.db").read_bytes() == before


IDS_IN_ORDER = next(m.number for m in load_migrations("sqlite") if m.name.endswith("_pruned_in_order.sql"))
PRUNED_BEFORE = """
INSERT INTO pruned SELECT id, committed_id, client_id, status_updated_at, hash FROM events
    WHERE committed_id <= 120 ORDER BY id;
DELETE FROM event_partitions WHERE committed_id <= 120;
UPDATE partitions SET pruned_to = CASE name WHEN 'p' THEN 120 ELSE 119 END;
DELETE FROM event_ids WHERE committed_id <= 120;
DELETE FROM events WHERE committed_id <= 120;
UPDATE head SET pruned_to = 120;
UPDATE keeping SET archive = 'file:///lake';
"""


@pytest.mark.req("ORD-05")
def test_events_pruned_by_an_earlier_version_are_remembered(tmp_path: Path) -> None:
    make_version(tmp_path, IDS_IN_ORDER - 1)
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute(PRUNED_BEFORE)
    with closing(SqliteLog.open(tmp_path)) as log:
        assert known(log, *(f"id-{n}" for n in range(0, 302))) == {f"id-{n}": n for n in range(1, 301)}
        assert not log.reclaim().sweeping, "nothing that has left is in the index"
        log.prune_batch(200)
        assert known(log, "id-1", "id-200", "id-201") == {"id-1": 1, "id-200": 200, "id-201": 201}
    report = check_directory(tmp_path)
    assert report.text() == f"{tmp_path}: sound (100 events, head 300, pruned to 200)"
