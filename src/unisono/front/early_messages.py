"""Messages that a client sends behind its connect, before the answer (CONN-02)."""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_UNVERIFIED_BYTES = 64 * 1024
"""Bytes of one message before `connected`, and of all messages that wait behind a connect: the client is not verified
yet, so it gets little memory (LIM-07)."""

UNVERIFIED_READ_BYTES: Final = 4 * 1024
"""Read at once from a client before `connected`, more than a connect has as a rule; and after it from one that has
sent something that is no message."""

REFUSED_READ_BYTES: Final = 512
"""The same from a client that does so before `connected`. Of the smallest ones 64 KiB take a tenth of a second to
answer, and with a crowd of such clients everybody else would wait for all of them (LIM-07)."""

MAX_UNVERIFIED_UNSENT_BYTES: Final = 256 * 1024
"""Unsent bytes of a connection before `connected`: an error is forty times as long as the frame that causes it."""

MAX_EARLY_MESSAGES = 64
"""Messages a client may send behind its connect before the answer; one more is overload (CONN-02)."""


class EarlyMessages:
    """The messages that wait, in order."""

    __slots__ = ("_bytes_max", "_waiting")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[bytes] = deque()

    def add(self, data: bytes) -> bool:
        """False when there are too many."""
        size = sum(map(len, self._waiting)) + len(data)
        if len(self._waiting) >= MAX_EARLY_MESSAGES or size > self._bytes_max:
            return False
        self._waiting.append(data)
        return True

    def take(self) -> bytes | None:
        """The oldest; None when there is none."""
        return self._waiting.popleft() if self._waiting else None
