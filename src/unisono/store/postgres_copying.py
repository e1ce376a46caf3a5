"""The shared log as source and target of a copy (see `copying`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import psycopg

from unisono.store.copying import Extent
from unisono.store.port import Snapshot
from unisono.store.postgres import PostgresLog, PostgresReader, Timeouts
from unisono.store.postgres_connecting import SQL, connect, raise_unusable

NODE: Final = "copy"
"""What the copy is called among the nodes while it runs."""

COUNTING: Final = Timeouts(statement_s=3600.0, answer_s=3700.0)
"""Counting looks at every row."""


class PostgresSource:
    """A shared log, read beside its nodes."""

    def __init__(self, dsn: str) -> None:
        self._reader = PostgresReader.open(dsn)
        self.scan = self._reader.scan

    def extent(self) -> Extent:
        return Extent(*self._reader.ask("extent"))

    def count_snapshots(self) -> int:
        return int(self._reader.ask("count_snapshots")[0])

    def snapshots(self) -> Iterator[Snapshot]:
        return self._reader.snapshots()

    def close(self) -> None:
        self._reader.close()


class PostgresTarget:
    """A shared log that `unisono db init` has made; no node may write to it meanwhile."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.log = PostgresLog.open(dsn, NODE)

    def extent(self) -> Extent:
        return Extent(*self.log.ask("extent"))

    def start_pruned(self, pruned_to: int, time: int) -> None:
        """As the owner: no node may move where the log begins."""
        self.log.close()
        try:
            with closing(connect(self._dsn, Timeouts(), owner=True)) as connection:
                connection.execute(SQL["start_pruned"], {"pruned_to": pruned_to, "time": time})
        except psycopg.Error as error:
            raise_unusable(self._dsn, error)
        self.log = PostgresLog.open(self._dsn, NODE)

    def count_places(self, since: int) -> int:
        with closing(PostgresReader.open(self._dsn, timeouts=COUNTING)) as reader:
            return int(reader.ask("count_places", {"since": since})[0])

    def close(self) -> None:
        self.log.close()
