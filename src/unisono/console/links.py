"""The address of a running server's console, with the token in the part that a browser never sends."""

from __future__ import annotations

from pathlib import Path

from unisono.ipc.files import read_admin_file


def console_link(data: Path) -> str:
    """Raises what `read_admin_file` raises. Whoever has the link has the admin token: it is no link to share."""
    admin = read_admin_file(data)
    return f"{admin.url}/#token={admin.token}"
