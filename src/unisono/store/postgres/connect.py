"""Connections to the shared log: their settings, the checks of the server, and what errors mean."""

from __future__ import annotations

import re
from typing import Final, NoReturn

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from unisono.store.cluster import StoreLost
from unisono.store.port import StorageError, StoreUnusable
from unisono.store.postgres.rows import Row, register_dumpers
from unisono.store.postgres.timeouts import Timeouts
from unisono.store.statements import load_queries

SERVER_VERSION_MIN: Final = 140_000
"""PostgreSQL 14 is the first version that notices a client that disconnects during a wait."""

TRANSACTION_TIMEOUT_VERSION: Final = 170_000

DURABLE_SETTINGS: Final = ("on", "remote_apply")
"""Values of synchronous_commit under which COMMIT answers after the data is on disk (DUR-02)."""

LOST_STATES: Final = frozenset(
    {
        "25006",  # read-only transaction: this was the primary and is a standby now
        "25P03",  # idle in transaction timeout: judging was too slow, or this process was suspended
        "25P04",  # transaction timeout
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # lock timeout: another node has locked the head
        "57014",  # statement timeout
        "57P01",  # shutting down
        "57P02",  # crashed
        "57P03",  # starting up
        "57P05",  # idle session timeout
    }
)
"""SQL states of temporary failures: the database is unavailable, a retry may succeed. So is all of class 08."""

SQL: Final = {name: text.encode() for name, text in load_queries("postgres").items()}
"""The named queries as bytes, which psycopg accepts from outside the program text."""


_QUOTED: Final = re.compile('".*"')


def connect(dsn: str, timeouts: Timeouts, *, owner: bool = False) -> Connection[Row]:
    """A connection in autocommit mode, configured and checked; StoreUnusable says what is wrong with the server.

    psycopg.Error when it cannot connect. `owner`: for migrations, which have no statement timeout.
    """
    connection = Connection[Row].connect(_conninfo(dsn, timeouts, owner), autocommit=True)
    try:
        register_dumpers(connection)
        connection.prepare_threshold = 0
        _check(connection, dsn)
        if not owner and connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION:
            whole = timeouts.lock_wait_s + timeouts.lock_hold_s + timeouts.statement_s
            _set(connection, "transaction_timeout", _ms(whole))
    except BaseException:
        connection.close()
        raise
    return connection


def describe_dsn(dsn: str) -> str:
    """The database of a DSN for messages, without secrets."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "the given DSN"
    place = f"{parts.get('host') or 'localhost'}:{parts.get('port') or 5432}"
    return f"PostgreSQL database {parts.get('dbname') or parts.get('user') or '(default)'} at {place}"


def is_lost(error: BaseException) -> bool:
    """Whether a retry may succeed."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, OSError)
    if error.sqlstate is None:  # no answer from the server: the connection broke, or never was
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in LOST_STATES or error.sqlstate.startswith("08")


def storage_error(doing: str, error: Exception) -> StorageError:
    """StoreLost for a temporary failure, StorageError for any other."""
    if is_lost(error):
        return StoreLost(f"database unavailable: {doing} failed: {one_line(error)}")
    return StorageError(f"{doing} failed: {one_line(error)}")


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def raise_unusable(dsn: str, error: Exception) -> NoReturn:
    """Raise StoreUnusable with a text for the person who starts a node."""
    state = getattr(error, "sqlstate", None)
    place = describe_dsn(dsn)
    if state in ("42P01", "3F000"):
        raise StoreUnusable(f"{place} holds no log: make one with `unisono db init`") from error
    if state == "42501":
        raise StoreUnusable(
            f"{place}: {one_line(error)}: grant the role what a node needs, "
            "`unisono db migrate --runtime-role ROLE` as the owner does it"
        ) from error
    if isinstance(error, psycopg.ProgrammingError) and state is None:
        # libpq quotes what it could not parse, which may be the password.
        what = _QUOTED.sub("…", one_line(error))
        raise StoreUnusable(f"the DSN of the store is not valid: {what}") from None
    raise StoreUnusable(f"{place} cannot be opened: {one_line(error)}") from error


def _conninfo(dsn: str, timeouts: Timeouts, owner: bool) -> str:
    """The DSN with our defaults; parameters that the DSN sets itself stay."""
    given = conninfo_to_dict(dsn)
    defaults: dict[str, str | int] = {
        "connect_timeout": timeouts.connect_s,
        "keepalives": 1,
        "keepalives_idle": max(1, timeouts.peer_s // 2),
        "keepalives_interval": max(1, timeouts.peer_s // 6),
        "keepalives_count": 3,
        "tcp_user_timeout": timeouts.peer_s * 1000,
        "application_name": "unisono",
    }
    if "," in str(given.get("host") or given.get("hostaddr") or ""):
        defaults["target_session_attrs"] = "primary"
    chosen = {name: value for name, value in defaults.items() if name not in given}
    return make_conninfo(dsn, **chosen, options=_options(str(given.get("options") or ""), timeouts, owner))


def _options(given: str, timeouts: Timeouts, owner: bool) -> str:
    server = {
        "client_encoding": "UTF8",
        "tcp_keepalives_idle": max(1, timeouts.peer_s // 2),
        "tcp_keepalives_interval": max(1, timeouts.peer_s // 6),
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": timeouts.peer_s * 1000,
        "client_connection_check_interval": 1000,
        "idle_session_timeout": 0,
        "lock_timeout": _ms(timeouts.lock_wait_s),
    }
    if not owner:
        server |= {
            "default_transaction_isolation": "read\\ committed",
            "idle_in_transaction_session_timeout": _ms(timeouts.lock_hold_s),
            "statement_timeout": _ms(timeouts.statement_s),
            # Every statement walks along an index, whatever the statistics say: one plan, made once.
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "enable_bitmapscan": "off",
            "jit": "off",
        }
    return " ".join([given, *(f"-c {name}={value}" for name, value in server.items())]).strip()


def _check(connection: Connection[Row], dsn: str) -> None:
    row = connection.execute(SQL["server_settings"]).fetchone()
    assert row is not None
    in_recovery, read_only, fsync, synchronous_commit, encoding, version = row
    place = describe_dsn(dsn)
    if version < SERVER_VERSION_MIN:
        raise StoreUnusable(f"{place} is version {version // 10_000}: a log needs PostgreSQL 14 or newer")
    if in_recovery or read_only == "on":
        what = "is a standby" if in_recovery else "is read-only"
        raise StoreUnusable(
            f"{place} {what}: a node reads and writes the primary only. Name every host in the DSN "
            "(host=a,b): the primary among them is chosen"
        )
    if encoding != "UTF8":
        raise StoreUnusable(f"{place} has encoding {encoding}: make the database with ENCODING 'UTF8'")
    if fsync != "on":
        raise StoreUnusable(f"{place} runs with fsync={fsync}: what it calls committed may be lost")
    if synchronous_commit not in DURABLE_SETTINGS:
        _set(connection, "synchronous_commit", "on")


def _set(connection: Connection[Row], name: str, value: str) -> None:
    """Set for the session, and verify."""
    connection.execute(SQL["change_setting"], {"name": name, "value": value})
    row = connection.execute(SQL["read_setting"], {"name": name}).fetchone()
    if row is None or row[0] not in (value, f"{value}ms"):
        raise StoreUnusable(f"PostgreSQL did not accept {name}={value}, it has {row and row[0]}")


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
