"""What the page of the pipeline shows: its status, its newest report and audit, and queries over the lake."""

from __future__ import annotations

import asyncio
import importlib.util
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from unisono.config import Settings
from unisono.console import parameters
from unisono.console.errors import ConsoleRefused
from unisono.console.parameters import BadParameter
from unisono.console.process_client import ProcessClient
from unisono.console.process_requests import AskSql
from unisono.extras import install_command
from unisono.ipc.files import STATUS_FILE, PipelineStatus, is_running, read_pipeline_status
from unisono.lake.sql_tables import SQL_TABLES
from unisono.vocabulary import Json, JsonObject

REPORTS: Final = ("report", "audit")
"""Folders that `unisono lake run --out` writes pages into."""

REPORT_BYTES_MAX: Final = 16 << 20
SQL_CHARS_MAX: Final = 10_000
NEEDED: Final = ("duckdb", "pyarrow", "deltalake")

REPORT_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Frame-Options": "SAMEORIGIN",
    "Cache-Control": "no-store",
}
"""A page that was written by another program is shown without scripts, and belongs to no origin."""


class SqlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query over the lake."""

    sql: str


class PipelineApi:
    """Reads the files that the pipeline leaves in the server's data directory, and its lake."""

    def __init__(self, settings: Settings, queries: ProcessClient) -> None:
        self._settings = settings
        self._queries = queries

    async def page(self, request: web.Request) -> Json:  # noqa: ARG002
        status = await self._status()
        return {
            "status": described(status),
            "data": self._settings.data,
            "reports": [] if status is None else await asyncio.to_thread(_reports, Path(status.out)),
            "sql": self._sql_state(status),
        }

    async def status(self) -> JsonObject | None:
        return described(await self._status())

    async def query(self, request: web.Request) -> Json:
        asked = await parameters.body(request, SqlRequest)
        if not 0 < len(asked.sql.strip()) <= SQL_CHARS_MAX:
            raise BadParameter(f"sql: one SELECT of at most {SQL_CHARS_MAX:,} characters")
        status = await self._status()
        lake = self._lake(status)
        missing = _missing()
        if missing or lake is None:
            raise ConsoleRefused(missing or "this server has no lake")
        return await self._queries.ask(AskSql(lake, asked.sql, dict(self._settings.archive_options or {})))

    async def report(self, name: str) -> bytes:
        """The page of a report; ConsoleRefused when there is none."""
        status = await self._status()
        if name not in REPORTS or status is None or not status.out:
            raise ConsoleRefused("there is no such report")
        try:
            return await asyncio.to_thread(_read, Path(status.out) / name / "index.html")
        except OSError as error:
            raise ConsoleRefused(f"the report cannot be read: {error.strerror or error}") from None

    async def _status(self) -> PipelineStatus | None:
        return await asyncio.to_thread(read_pipeline_status, Path(self._settings.data) / STATUS_FILE)

    def _lake(self, status: PipelineStatus | None) -> str | None:
        return self._settings.archive or (None if status is None else status.lake) or None

    def _sql_state(self, status: PipelineStatus | None) -> JsonObject:
        tables: JsonObject = dict(SQL_TABLES)
        return {"lake": self._lake(status), "missing": _missing(), "tables": tables}


def described(status: PipelineStatus | None) -> JsonObject | None:
    if status is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    found: JsonObject = msgspec.to_builtins(status)
    return {**found, "running": is_running(status), "age_ms": now_ms - status.updated_ms}


def _missing() -> str:
    """How to install what queries need; empty when it is there."""
    if all(importlib.util.find_spec(name) is not None for name in NEEDED):
        return ""
    return f"queries need further packages: {install_command('sql')}"


def _reports(out: Path) -> list[Json]:
    """The pages that are there, with the time of each."""
    found: list[Json] = []
    for name in REPORTS if out != Path() else ():
        try:
            info = (out / name / "index.html").stat()
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            found.append({"name": name, "written_ms": info.st_mtime_ns // 1_000_000})
    return found


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(REPORT_BYTES_MAX + 1)
    if len(text) > REPORT_BYTES_MAX:
        raise OSError(f"it has more than {REPORT_BYTES_MAX >> 20} MB")
    return text
