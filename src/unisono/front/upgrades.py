"""Answers an HTTP request for an upgrade, with regard to its `Origin`."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

from unisono.config import Settings
from unisono.display import shorten_repr
from unisono.front.http_upgrade import RefusedUpgrade, accepting_answer, is_key, read_upgrade
from unisono.ipc.stats import Counters
from unisono.web_origins import normal_origin

log = logging.getLogger("unisono.front")

MAX_ORIGINS_LOGGED: Final = 100
"""Refused origins named in the log, each once; whoever invents more of them does not fill the disk."""

MAX_ORIGIN_CHARS_LOGGED: Final = 200

MAX_KNOWN: Final = 64
MAX_KNOWN_BYTES: Final = 2048
"""Requests that are remembered, and the longest of them."""

KEY_HEADER: Final = b"\r\nSec-WebSocket-Key: "
KEY_BYTES: Final = 24


class UpgradeCheck:
    """Which requests for an upgrade are refused, and how.

    The requests of one kind of client differ in their keys alone. What surrounds the key of an accepted request is
    remembered: with any other key of the same form, the same request is accepted again.
    """

    def __init__(self, settings: Settings, counters: Counters) -> None:
        self._allowed = frozenset(map(normal_origin, settings.allowed_origins))
        self._counters = counters
        self._logged: set[str] = set()
        self._known: dict[tuple[bytes, bytes], None] = {}

    def answer(self, head: bytes, *, full: bool = False) -> bytes:
        """The answer that accepts the request with these lines; RefusedUpgrade where it is not accepted.

        `full`: there is no room for one that would be accepted.
        """
        before, _, rest = head.partition(KEY_HEADER)
        key, after = rest[:KEY_BYTES], rest[KEY_BYTES:]
        if (before, after) not in self._known or not is_key(key):
            checked = self._checked(head)
            if checked == key and len(head) <= MAX_KNOWN_BYTES:
                if len(self._known) >= MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[before, after] = None
            key = checked
        if full:
            raise RefusedUpgrade(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
        return accepting_answer(key)

    def _checked(self, head: bytes) -> bytes:
        """The key of the request."""
        request = read_upgrade(head)
        if self._allowed and request.origins and not self._allows([_text(each) for each in request.origins]):
            raise RefusedUpgrade(HTTPStatus.FORBIDDEN, "pages of this origin may not connect here")
        return request.key

    def _allows(self, origins: list[str]) -> bool:
        if (
            len(origins) == 1
            and (origin := normal_origin(origins[0])) is not None
            and origin in self._allowed
        ):
            return True
        self._counters.add("origins_refused")
        shown = shorten_repr(", ".join(origins), MAX_ORIGIN_CHARS_LOGGED)
        if shown not in self._logged and len(self._logged) < MAX_ORIGINS_LOGGED:
            self._logged.add(shown)
            last = "; further origins are not named" if len(self._logged) == MAX_ORIGINS_LOGGED else ""
            log.warning(
                "upgrade refused: origin %s is not in allowed_origins%s",
                *(shown, last),
                extra={"origin": shown},
            )
        return False


def _text(value: bytes) -> str:
    return value.decode("ascii", "surrogateescape")
