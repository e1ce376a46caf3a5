"""Decides about an HTTP request for an upgrade before it is answered: its path, its headers, its `Origin`.

The WebSocket library checks the syntax of the request and, where nothing is refused here, `Upgrade`, `Connection` and
the key. It reads one value of a header; RFC 6455 has lists, in several headers if need be.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

from picows import WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener

from unisono.config import Settings
from unisono.display import shorten_repr
from unisono.ipc.stats import Counters
from unisono.web_origins import normal_origin

log = logging.getLogger("unisono.front")

PATH: Final = b"/sync"
VERSION: Final = "13"

MAX_ORIGINS_LOGGED: Final = 100
"""Refused origins named in the log, each once; whoever invents more of them does not fill the disk."""

MAX_ORIGIN_CHARS_LOGGED: Final = 200


class UpgradeCheck:
    """Which requests for an upgrade are refused, and how."""

    def __init__(self, settings: Settings, counters: Counters) -> None:
        self._allowed = frozenset(map(normal_origin, settings.allowed_origins))
        self._counters = counters
        self._logged: set[str] = set()

    def refusal(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener | None:
        """The answer to a request that is refused; None: the library goes on with it."""
        headers = request.headers
        if request.path.partition(b"?")[0] != PATH:
            return refused(HTTPStatus.NOT_FOUND, "the path is /sync")
        if len(headers.getall("Host", [])) != 1:
            return refused(HTTPStatus.BAD_REQUEST, "one Host header is needed")
        if self._allowed and (origins := headers.getall("Origin", [])) and not self._allows(origins):
            return refused(HTTPStatus.FORBIDDEN, "pages of this origin may not connect here")
        for name, token in (("Connection", "upgrade"), ("Upgrade", "websocket")):
            if token in _tokens(headers.getall(name, [])):
                headers[name] = token
        if headers.get("Upgrade") == "websocket" and headers.getall("Sec-WebSocket-Version", []) != [VERSION]:
            return refused(
                HTTPStatus.UPGRADE_REQUIRED,
                f"the WebSocket version here is {VERSION}",
                {"Upgrade": "websocket", "Sec-WebSocket-Version": VERSION},
            )
        if len(headers.getall("Sec-WebSocket-Key", [])) > 1:
            return refused(HTTPStatus.BAD_REQUEST, "one Sec-WebSocket-Key is needed")
        return None

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


def refused(
    status: HTTPStatus, text: str, headers: dict[str, str] | None = None
) -> WSUpgradeResponseWithListener:
    """An HTTP answer, after which the library closes the socket."""
    body = f"{status.value} {status.phrase}: {text}\n".encode()
    return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, body, headers), None)


def _tokens(values: list[str]) -> set[str]:
    return {token.strip(" \t").lower() for value in values for token in value.split(",")}
