"""The two files in a server's data directory by which other programs find it and are found by it.

| file | written by | read by |
| --- | --- | --- |
| `admin.json` | the node, while it runs | `unisono model`, `unisono snapshot`, the pipeline |
| `pipeline.json` | `unisono lake run` | the node (`GET /pipeline`, `/metrics`), the next `unisono lake run` |
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

ADMIN_FILE: Final = "admin.json"
STATUS_FILE: Final = "pipeline.json"

COMMAND_TIMEOUT_S: Final = 600.0
"""For a command on the admin port: a snapshot may have to fold a long history first."""

STATUS_BYTES_MAX: Final = 1 << 20
"""A status has some kilobytes; a larger file is not one."""

SILENT_MS: Final = 90_000
"""The service writes its status every 20 seconds; an older one belongs to a service that was killed."""


class AdminFile(msgspec.Struct, frozen=True):
    """`admin.json`: the address of the admin port and the token for commands. Readable by its owner only."""

    url: str
    token: str


class StageStatus(msgspec.Struct):
    """One stage of the pipeline. Times are milliseconds since 1970; `note` is the result of the last good run.

    `error` is empty unless the last run failed or found something wrong; `failed_in_a_row` counts the failed runs
    since the last good one.
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

    @property
    def failing(self) -> bool:
        return bool(self.error)


class PipelineStatus(msgspec.Struct):
    """`pipeline.json`: one JSON object, replaced as a whole. `running` is false after a regular end."""

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
    out: str = ""
    """Where it writes reports and audits, on its host; empty for nowhere."""


def write_admin_file(data: Path, admin: AdminFile) -> None:
    path = data / ADMIN_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(admin))


def read_admin_file(data: Path) -> AdminFile:
    """Raises FileNotFoundError when no server runs on `data`, OSError or msgspec.DecodeError for a broken file."""
    return msgspec.json.decode((data / ADMIN_FILE).read_bytes(), type=AdminFile)


def write_pipeline_status(path: Path, status: PipelineStatus) -> None:
    """Replace the file, so that a reader never sees half of it."""
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


def read_status_text(path: Path) -> bytes | None:
    """The file as it is; None when there is none, or one that is too large."""
    try:
        with path.open("rb") as file:
            text = file.read(STATUS_BYTES_MAX + 1)
    except OSError:
        return None
    return text if len(text) <= STATUS_BYTES_MAX else None


def read_pipeline_status(path: Path) -> PipelineStatus | None:
    """The status as it was written; None when there is none that can be read."""
    text = read_status_text(path)
    try:
        return None if text is None else msgspec.json.decode(text, type=PipelineStatus)
    except msgspec.DecodeError:
        return None


def is_running(status: PipelineStatus) -> bool:
    """Whether the service that wrote the status still runs, as far as the file tells.

    A status from the future is no newer than others: the clock was set back since.
    """
    return status.running and abs(time.time() * 1_000 - status.updated_ms) <= SILENT_MS
