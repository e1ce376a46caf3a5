"""`unisono db`, `unisono copy` and `unisono check` on a shared log, as a person uses them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import Result

from tests.commands import unisono
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, append_many
from unisono.store.postgres.log import PostgresLog
from unisono.store.sqlite.log import SqliteLog

__all__ = ["database", "postgres"]


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[str]:
    dsn = postgres.create(template="template0")
    yield dsn
    postgres.drop(dsn)


def run_db(*arguments: str) -> Result:
    return unisono("db", *arguments)


def test_init_twice_and_status(empty: str) -> None:
    outcome = run_db("status", "--store", empty)
    assert (outcome.exit_code, outcome.stderr.count("unisono db init")) == (2, 1)
    outcome = run_db("init", "--store", empty)
    assert (outcome.exit_code, outcome.output) == (
        0,
        "made a log: 0001_pre_log.sql, 0002_pre_keeping.sql, 0003_post_keeping.sql, 0004_pre_identity.sql,"
        " 0005_pre_authors.sql, 0006_pre_revocations.sql\n",
    )
    outcome = run_db("init", "--store", empty)
    assert (outcome.exit_code, outcome.output) == (0, "there is a log already; nothing was done\n")
    outcome = run_db("migrate", "--store", empty)
    assert (outcome.exit_code, outcome.output) == (0, "nothing to apply\n")
    outcome = run_db("migrate", "--store", empty, "--finish")
    assert (outcome.exit_code, outcome.output) == (0, "nothing to apply\n")
    with closing(PostgresLog.open(empty, "front-a")) as log:
        append(log, [["p"]] * 3)
        outcome = run_db("status", "--store", empty)
    assert outcome.exit_code == 0
    for words in ("head 3", "2023-11-14", "none published", "node       front-a", "6 migrations applied"):
        assert words in outcome.output


def test_pending_migrations_are_an_exit_code(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_db("init", "--store", empty)
    with closing(psycopg.connect(empty, autocommit=True)) as connection:
        connection.execute("DELETE FROM unisono.db_version")
    outcome = run_db("status", "--store", empty)
    assert (outcome.exit_code, "pending: 0001_pre_log.sql" in outcome.output) == (1, True)


def test_the_store_may_stand_in_the_environment(empty: str) -> None:
    outcome = unisono("db", "init", env={"UNISONO_STORE": empty})
    assert outcome.exit_code == 0


def test_errors_say_what_to_do_and_no_password() -> None:
    outcome = run_db("status", "--store", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert outcome.exit_code == 2
    assert "cannot be opened" in outcome.stderr
    assert "hunter2" not in outcome.output
    outcome = run_db("status", "--store", "postgresql://me:hunter2@[bad")
    assert (outcome.exit_code, "is not valid: end of string" in outcome.stderr) == (2, True)
    assert "hunter2" not in outcome.output
    outcome = run_db("init", "--store", "sqlite:/tmp/x")
    assert (outcome.exit_code, "must be postgresql://" in outcome.stderr) == (2, True)


def test_a_log_is_copied_both_ways(database: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    with closing(SqliteLog.open(source)) as log:
        append_many(log, 1_200)
    outcome = unisono("copy", "--from", f"sqlite:{source}", "--to", database)
    assert (outcome.exit_code, outcome.stderr.count("verifying")) == (0, 1), outcome.output
    assert "copied 1200 events and 0 snapshots; verified up to 1200\nsha256" in outcome.stdout
    outcome = unisono("copy", "--from", database, "--to", f"sqlite:{back}", "--quiet")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    outcome = unisono("copy", "--from", database, "--to", f"sqlite:{back}", "--quiet")
    assert "copied 0 events and 0 snapshots (1200 events were there)" in outcome.stdout


def test_a_copy_that_cannot_be_is_refused(database: str, tmp_path: Path) -> None:
    for source, target, code, why in (
        (str(tmp_path), database, 2, "is no store"),
        (f"sqlite:{tmp_path}", database, 2, "holds no log"),
        (database, database, 2, "the same"),
    ):
        outcome = unisono("copy", "--from", source, "--to", target)
        assert (outcome.exit_code, why in outcome.stderr) == (code, True), outcome.output


def test_a_shared_log_is_checked(database: str, tmp_path: Path) -> None:
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["p"]] * 3)
    sound = unisono("check", "--store", database)
    assert (sound.exit_code, sound.stderr.count("checking")) == (0, 1)
    assert "sound (3 events, head 3)" in sound.stdout
    assert unisono("check", "--quiet", env={"UNISONO_STORE": database}).stdout == sound.stdout
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("UPDATE unisono.events SET event = '{}' WHERE committed_id = 2")
    damaged = unisono("check", "--quiet", "--store", database)
    assert (damaged.exit_code, damaged.stderr) == (1, "")
    assert "NOT SOUND, 1 findings (hash 1)" in damaged.stdout
    assert "  hash: event 2: its hash is not that of its content" in damaged.stdout


def test_the_log_to_check_is_named_once(empty: str, tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    assert unisono("check", str(tmp_path), env={"UNISONO_STORE": empty}).exit_code == 0
    for arguments, why in (
        ([], "name one log"),
        ([str(tmp_path), "--store", empty], "name one log"),
        (["--store", f"sqlite:{tmp_path}"], "an embedded log is a directory"),
        (["--store", empty], "unisono db init"),
        (["--store", "postgresql://me:hunter2@127.0.0.1:1/x"], "cannot be opened"),
    ):
        refused = unisono("check", *arguments)
        assert (refused.exit_code, why in refused.stderr) == (2, True), refused.output
        assert "hunter2" not in refused.output


def test_the_driver_is_loaded_only_when_it_is_needed() -> None:
    program = (
        "import sys, unisono.cli.check, unisono.cli.db, unisono.store.copy; "
        "sys.exit(any(name.split('.')[0] == 'psycopg' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
