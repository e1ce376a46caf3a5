"""Web origins as browsers write them in the header `Origin` (RFC 6454)."""

from __future__ import annotations

import re
from typing import Final

_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE | re.ASCII,
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def normal_origin(text: str) -> str | None:
    """`scheme://host` or `scheme://host:port` in lower case and without a default port; None for anything else.

    `null`, the origin of sandboxed frames and local files, is nobody in particular and therefore no origin.
    """
    found = _ORIGIN.fullmatch(text) if text.isascii() else None
    if found is None:
        return None
    scheme, host, port = found["scheme"].lower(), found["host"].lower(), found["port"]
    if port is None or int(port) == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{int(port)}" if int(port) < 65536 else None
