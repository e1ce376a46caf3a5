"""The bound on connections within the limit of open files: past that limit nobody could be accepted, or told so."""

from __future__ import annotations

import contextlib
import logging
import resource
from typing import Final

from unisono.front.openings import MIN_OPENINGS

log = logging.getLogger("unisono.front")

MAX_REFUSED: Final = 128
"""Connections above the bound that are told so by their close; further ones get HTTP 503, and no memory."""

OWN_FILES: Final = 64
"""Open files of a front that are no client's: channels, listening sockets, keys, logs."""

FEW: Final = 0.9
"""The log says when less than this part of `max_connections` can be held."""


def raise_limit() -> None:
    """Use all open files that this process may have; shells and services start with few of them.

    Some systems refuse it, macOS for one that says "unlimited": the limit then stays as it is.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_within_limit(max_connections: int, index: int) -> int:
    """`max_connections`, or what the limit of open files leaves room for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return max_connections
    others = OWN_FILES + MIN_OPENINGS + MAX_REFUSED
    room = max(1, min(max_connections, limit - others))
    if room < max_connections * FEW:
        log.warning(
            "front %d: room for %d connections, max_connections is %d: the limit of open files is %d",
            *(index, room, max_connections, limit),
            extra={"front": index, "room": room, "limit": limit},
        )
    return room
