"""What a client stores about its server beside the events: its model and its log (DUR-08)."""

from __future__ import annotations

from typing import Any

import apsw

from unisono.client.store.statements import SQL
from unisono.vocabulary import LogIdentity


class ServerNotes:
    """The table `meta`; writes happen within a transaction of the store."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def model(self) -> tuple[bool, int | None, str | None]:
        """Whether a server was ever connected, and the version and the digest of its model."""
        notes = self._read()
        return "model_version" in notes, notes.get("model_version"), notes.get("model_digest")

    def write_model(self, version: int | None, digest: str | None) -> None:
        self._put("model_version", version)
        self._put("model_digest", digest)

    def log(self) -> LogIdentity | None:
        """The log the committed events belong to; None where the server has never named one."""
        notes = self._read()
        return LogIdentity(notes["log_id"], notes["log_epoch"]) if "log_id" in notes else None

    def write_log(self, log: LogIdentity) -> None:
        self._put("log_id", log.log_id)
        self._put("log_epoch", log.log_epoch)

    def author(self) -> str | None:
        """The user_id and the claims that the server stores with this client's events, as JSON; empty for none.

        None where the server has never said it.
        """
        author = self._read().get("author")
        return None if author is None else str(author)

    def write_author(self, author: str) -> None:
        self._put("author", author)

    def _read(self) -> dict[str, Any]:
        return {str(key): value for key, value in self._connection.execute(SQL["notes"])}

    def _put(self, key: str, value: int | str | None) -> None:
        self._connection.execute(SQL["put_note"], (key, value))
