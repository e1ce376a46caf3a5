"""Which ids the shared log knows, for bulk loads (see `store/bulk_load.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.store.port import RememberedId, StorageError
from unisono.store.postgres.open_pipeline import open_pipeline
from unisono.store.postgres.reader import READ_ERRORS
from unisono.store.postgres.rows import Texts, escape, unescape
from unisono.store.postgres.timeouts import Timeouts


class PostgresIds:
    """Ids of a shared log, on a connection of its own."""

    def __init__(self, dsn: str) -> None:
        timeouts = Timeouts()
        self._pipeline = open_pipeline(dsn, timeouts)

    def known(self, ids: Sequence[str]) -> dict[str, RememberedId]:
        if not ids:
            return {}
        try:
            rows = self._pipeline.ask("find_ids", {"ids": Texts(map(escape, ids))})
        except READ_ERRORS as error:
            raise StorageError(f"looking up ids failed: {error}") from error
        return {
            unescape(id): RememberedId(committed_id, hash, unescape(client_id), status_updated_at)
            for id, committed_id, hash, client_id, status_updated_at in rows
        }

    def close(self) -> None:
        self._pipeline.close()
