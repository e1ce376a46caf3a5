"""What a core needs of its connection to the server."""

from __future__ import annotations

from typing import Protocol


class CoreConnection(Protocol):
    """What a core needs of its connection."""

    def connect(self, last_committed_id: int, *, snapshots: bool) -> None: ...

    def send(self, kind: str, payload: bytes) -> None: ...

    def drop_connection(self) -> None: ...

    def retry(self, new_token: bool) -> None: ...

    def stop(self, reason: str) -> None: ...

    def wake_at(self, at: float) -> None: ...
