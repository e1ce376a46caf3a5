"""Nodes of one cluster."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from tests.waiting import PATIENCE_S
from unisono.store.cluster import News
from unisono.store.postgres.log import PostgresLog

OpenNode = Callable[[str], PostgresLog]


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def woken(log: PostgresLog, timeout_s: float = PATIENCE_S) -> bool:
    return bool(select.select([log.wake_fd()], [], [], timeout_s)[0])


def news(log: PostgresLog) -> News:
    """The first news that says anything."""
    deadline = time.monotonic() + PATIENCE_S
    while not ((heard := log.catch_up()).records or heard.replaced):
        assert time.monotonic() < deadline, "no news"
        time.sleep(0.01)
    return heard
