"""Ids of events: UUIDv7, so that ids made later sort later (RFC 9562); sorted ids are kinder to indexes."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Callable

_SEQUENCE_LIMIT = 1 << 12


class IdMaker:
    """Makes ids that rise strictly, also within one millisecond and when the clock is set back."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._last_ms = -1
        self._sequence = 0

    def __call__(self) -> str:
        with self._lock:
            now = self._now_ms()
            if now > self._last_ms:
                self._last_ms = now
                self._sequence = secrets.randbelow(_SEQUENCE_LIMIT // 2)
            else:
                self._sequence += 1
                if self._sequence == _SEQUENCE_LIMIT:
                    self._last_ms += 1
                    self._sequence = 0
            stamp, sequence = self._last_ms, self._sequence
        number = stamp << 80 | 0x7 << 76 | sequence << 64 | 0b10 << 62 | secrets.randbits(62)
        return str(uuid.UUID(int=number))


new_id = IdMaker()
