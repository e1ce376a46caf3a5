"""A task's connection: how it is opened, and which failures a new one may end."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from unisono.pipeline.errors import PipelineError

ANSWER_S: Final = 30.0
"""A connection without any message for so long counts as lost."""

FRAMES_MAX: Final = 1024
"""Messages the socket reads ahead while rows come slowly: heartbeats for hours."""

_TEMPORARY: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class ExchangeRefused(PipelineError):
    """The server refuses this client; a retry would fail too."""


class ConnectionLost(Exception):
    """The connection is lost; a new one may succeed."""


def open_connection(url: str, *, known: bool) -> ClientConnection:
    """`known`: a server was there before. Otherwise a refused upgrade is a wrong address."""
    try:
        return connect(
            url,
            open_timeout=ANSWER_S,
            close_timeout=1.0,
            max_size=None,
            max_queue=FRAMES_MAX,
            compression=None,
            proxy=None,
            ping_interval=None,
        )
    except InvalidURI as error:
        raise ExchangeRefused(str(error)) from error
    except InvalidStatus as error:
        status = error.response.status_code
        if not known and 400 <= status < 500 and status not in _TEMPORARY:
            raise ExchangeRefused(
                f"{url} answers with HTTP {status}: there is no Unisono server at this path; its own is /sync"
            ) from error
        raise ConnectionLost(str(error)) from error
    except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
        raise ConnectionLost(str(error)) from error
