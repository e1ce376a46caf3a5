"""What a client remembers of its server beside the events: the model it named, and the log (DUR-08)."""

from __future__ import annotations

from typing import Any

import apsw

from unisono.vocabulary import LogIdentity


class Notes:
    """The table `meta`; whoever writes does so within a transaction of the store."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def model(self) -> tuple[bool, int | None, str | None]:
        """Whether a server was ever heard, and the version and the digest of the model it named."""
        noted = self._noted()
        return "model_version" in noted, noted.get("model_version"), noted.get("model_digest")

    def write_model(self, version: int | None, digest: str | None) -> None:
        self._put("model_version", version)
        self._put("model_digest", digest)

    def log(self) -> LogIdentity | None:
        """The log that the committed events are of; None where the server has never named one."""
        noted = self._noted()
        return LogIdentity(noted["log_id"], noted["log_epoch"]) if "log_id" in noted else None

    def write_log(self, log: LogIdentity) -> None:
        self._put("log_id", log.log_id)
        self._put("log_epoch", log.log_epoch)

    def _noted(self) -> dict[str, Any]:
        return {str(key): value for key, value in self._connection.execute("SELECT key, value FROM meta")}

    def _put(self, key: str, value: int | str | None) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
