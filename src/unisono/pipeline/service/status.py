"""How a running pipeline stands, in a file for people and for the server's admin port.

The file is one JSON object, replaced whole, so that a reader never sees half of it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from unisono.pipeline.errors import PipelineError

STATUS_FILE: Final = "pipeline.json"
"""Its name in a server's data directory, where the admin port looks for it."""


class StageStatus(msgspec.Struct):
    """One stage of the cycle. Times are milliseconds; `note` is what its last good run came to.

    `error` is what is wrong with it, empty when nothing is; `failed_in_a_row` are its runs since it last was done.
    """

    runs: int = 0
    failures: int = 0
    failed_in_a_row: int = 0
    last_began_ms: int = 0
    last_done_ms: int = 0
    last_seconds: float = 0.0
    items: int = 0
    note: str = ""
    error: str = ""


class ServiceStatus(msgspec.Struct):
    """The whole of it. `running` is False after a proper end."""

    lake: str
    store: str
    host: str
    pid: int
    started_ms: int
    updated_ms: int = 0
    running: bool = True
    cycles: int = 0
    at_work: str = ""
    log_head: int = 0
    log_pruned_to: int = 0
    lake_head: int = 0
    stages: dict[str, StageStatus] = {}


def require_writable(path: Path) -> None:
    """Refuse a place where no status can be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
    except OSError as error:
        raise PipelineError(
            f"the status cannot be kept in {path} ({error}): name another file with --status"
        ) from error


def write(path: Path, status: ServiceStatus) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> ServiceStatus | None:
    """What the file says; None when there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServiceStatus)
    except (OSError, msgspec.DecodeError):
        return None
