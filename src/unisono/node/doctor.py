"""What a machine gives a server: disk, file system, limits, clock, versions; for `unisono doctor`."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import apsw
import msgspec

from unisono import __version__
from unisono.authority.clock import NEVER_SET_MS
from unisono.config import Settings
from unisono.display import megabytes, utc_time
from unisono.front.descriptors import FEW
from unisono.ipc.files import ADMIN_FILE, AdminFile
from unisono.store.port import CLOCK_SKEW_MAX_MS, StorageError, StoreUnusable
from unisono.store.sqlite.files import LOG_FILE, connect_reader, schema_version
from unisono.store.statements import load_migrations, load_queries

Verdict = Literal["good", "warning", "bad"]

NETWORK_FILE_SYSTEMS: Final = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "fuse.sshfs",
    "fuse.s3fs",
    "ceph",
    "glusterfs",
)
"""SQLite's shared memory and locks do not work there, or not reliably."""

VOLATILE_FILE_SYSTEMS: Final = ("tmpfs", "ramfs", "overlay")
"""What is written there is gone with the machine's memory or with the container."""

FREE_BAD_BYTES: Final = 256 << 20
"""The write-ahead log alone may take 192 MiB; a server whose disk is full stops."""

FREE_LOW_BYTES: Final = 2 << 30

SYNCS: Final = 200
SYNC_S_MAX: Final = 3.0
SYNC_BYTES: Final = 4096
SYNC_SLOW_S: Final = 0.02
"""Each group of commits waits for one sync, so that every answer takes at least that long."""

SYNC_IMPLAUSIBLE_S: Final = 0.00002
"""Faster than any disk that keeps what it reports as synced; a cache with a battery takes longer, too."""

TIME_ERROR: Final = 5
"""What Linux answers when nothing keeps its clock right."""

EXTRAS: Final = {
    "postgres": "psycopg",
    "archive": "deltalake",
    "pipeline": "pyspark",
    "terminal": "textual",
}


_SQL = load_queries("sqlite")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `text` says what it is, and what to do where it is not good."""

    subject: str
    verdict: Verdict
    text: str


Check = Callable[[Settings], Iterator[Finding]]


def examine(settings: Settings, checks: Sequence[Check] | None = None) -> Iterator[Finding]:
    """Look at everything that a server with these settings depends on, here. Writes one file in its directory."""
    for check in CHECKS if checks is None else checks:
        yield from check(settings)


def versions(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001
    python = platform.python_version()
    system = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors"
    yield Finding(
        "version", "good", f"unisono {__version__}, Python {python}, SQLite {apsw.sqlite_lib_version()}"
    )
    yield Finding("machine", "good", system)
    there = [extra for extra, module in EXTRAS.items() if find_spec(module) is not None]
    yield Finding("extras", "good", ", ".join(there) or "none")
    with suppress(metadata.PackageNotFoundError):
        if (installed := metadata.version("unisono")) != __version__:
            text = f"the environment says {installed}, the code is {__version__}: install it again"
            yield Finding("package", "warning", text)


def data_directory(settings: Settings) -> Iterator[Finding]:
    """Skipped for a shared log: a node has nothing of value on its own disk."""
    if settings.store is not None:
        return
    data = Path(settings.data)
    place = _existing(data)
    if not os.access(place, os.W_OK):
        yield Finding("directory", "bad", f"{place} cannot be written by this user ({os.getuid()})")
        return
    yield file_system(place)
    yield free_space(place)
    yield _permissions(data)
    yield sync_rate(place)
    if (data / LOG_FILE).exists():
        yield _log(data)


def file_system(place: Path, mounts: str | None = None) -> Finding:
    """`mounts`: what /proc/self/mountinfo has."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        except OSError:
            return Finding("file system", "good", f"{place}: unknown on this system; it must be a local one")
    kind, mounted = _mount_of(place.resolve(), mounts)
    text = f"{kind}, mounted at {mounted}"
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("file system", "bad", f"{text}: a log needs a local disk, or PostgreSQL (--store)")
    if kind in VOLATILE_FILE_SYSTEMS:
        return Finding("file system", "warning", f"{text}: what is written there does not last")
    return Finding("file system", "good", text)


def _mount_of(place: Path, mounts: str) -> tuple[str, str]:
    """Type and mount point of the file system of a path: that of its longest prefix, the last mounted one."""
    found = ("unknown", "/")
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].encode().decode("unicode_escape")
        if place.is_relative_to(point) and len(point) >= len(found[1]):
            found = (rest.split()[0], point)
    return found


def free_space(place: Path) -> Finding:
    total, _, free = shutil.disk_usage(place)
    text = f"{megabytes(free)} of {megabytes(total)} free"
    if free < FREE_BAD_BYTES:
        return Finding("free space", "bad", f"{text}: a server that cannot write stops")
    if free < FREE_LOW_BYTES:
        return Finding("free space", "warning", f"{text}: a backup or a long read needs room as well")
    return Finding("free space", "good", text)


def sync_rate(place: Path, syncs: int = SYNCS) -> Finding:
    """Write and sync a block as a commit does, some hundred times."""
    path = place / f".doctor-{os.getpid()}"
    took: list[float] = []
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        try:
            block, began = os.urandom(SYNC_BYTES), time.monotonic()
            for number in range(syncs):
                before = time.perf_counter()
                os.pwrite(descriptor, block, number * SYNC_BYTES)
                os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)
                took.append(time.perf_counter() - before)
                if time.monotonic() - began > SYNC_S_MAX:
                    break
        finally:
            os.close(descriptor)
            path.unlink()
    except OSError as error:
        return Finding("disk sync", "bad", f"{place}: {error.strerror}")
    return judge_syncs(took)


def judge_syncs(took: Sequence[float]) -> Finding:
    middle = statistics.median(took)
    slow = sorted(took)[int(len(took) * 0.99)]
    text = f"{1 / middle:,.0f} a second, half within {middle * 1000:.2f} ms, 99 % within {slow * 1000:.2f} ms"
    if middle > SYNC_SLOW_S:
        return Finding("disk sync", "warning", f"{text}: every commit waits that long")
    if middle < SYNC_IMPLAUSIBLE_S:
        return Finding("disk sync", "warning", f"{text}: too fast for a disk that keeps what it has synced")
    return Finding("disk sync", "good", text)


def _permissions(data: Path) -> Finding:
    if not data.exists():
        return Finding("directory", "good", f"{data} will be made, for its owner only")
    mode = data.stat().st_mode & 0o777
    if mode & 0o007:
        return Finding("directory", "warning", f"{data} is open to everybody ({mode:03o}): chmod 700 {data}")
    return Finding("directory", "good", f"{data} ({mode:03o})")


def _log(data: Path) -> Finding:
    newest = len(load_migrations("sqlite"))
    try:
        with closing(connect_reader(data)) as connection:
            version = schema_version(connection)
            if version > newest:
                return Finding(
                    "log", "bad", f"schema version {version}: written by a newer Unisono, use that one"
                )
            head = int(connection.execute(_SQL["head"]).get)
            last_ms = int(connection.execute(_SQL["last_status_updated_at"]).get)
    except (
        apsw.Error,
        StoreUnusable,
        StorageError,
        TypeError,
    ) as error:  # TypeError: the head row is missing
        return Finding("log", "bad", f"{data / LOG_FILE} cannot be read: {error}")
    text = f"head {head}, schema version {version}" + (f", last event {utc_time(last_ms)}" if last_ms else "")
    if last_ms > time.time() * 1000 + CLOCK_SKEW_MAX_MS:
        return Finding("log", "warning", f"{text}, which is in the future: a clock is or was wrong")
    if version < newest:
        return Finding(
            "log", "good", f"{text}; the next start of a server brings it to {newest}: back it up before"
        )
    return Finding("log", "good", text)


def open_files(settings: Settings) -> Iterator[Finding]:
    """What a server may open; it raises its own soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        yield Finding("open files", "good", "no limit")
    elif hard < settings.max_connections * FEW:
        text = f"{hard}, below max_connections ({settings.max_connections}): raise LimitNOFILE, or ulimit -Hn"
        yield Finding("open files", "warning", text)
    else:
        yield Finding("open files", "good", f"{hard} for each process")


def clock(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001
    now = datetime.now(UTC)
    if now.timestamp() * 1000 < NEVER_SET_MS:
        yield Finding("clock", "bad", f"{now:%Y-%m-%d %H:%M:%S} UTC was not set since the machine started")
        return
    synchronised = _synchronised()
    text = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if synchronised is None:
        yield Finding("clock", "good", f"{text}; whether it is synchronised is unknown on this system")
    elif synchronised:
        yield Finding("clock", "good", f"{text}, synchronised")
    else:
        yield Finding("clock", "warning", f"{text}, not synchronised: run chrony or systemd-timesyncd")


def _synchronised() -> bool | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.ntp_adjtime(ctypes.create_string_buffer(256))  # struct timex, with modes 0: only read
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


def server(settings: Settings) -> Iterator[Finding]:
    """A server that runs on the data directory."""
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode((Path(settings.data) / ADMIN_FILE).read_bytes(), type=AdminFile)
        yield Finding("server", "good", f"runs, admin port {found.url}")


def database(settings: Settings) -> Iterator[Finding]:
    if settings.store is None:
        return
    try:
        from unisono.store.postgres import schema
    except ImportError as error:
        yield Finding("database", "bad", f"the driver is missing ({error})")
        return
    began = time.time()
    try:
        found = schema.status(settings.store)
    except (StoreUnusable, StorageError) as error:
        yield Finding("database", "bad", str(error))
        return
    took_ms = (time.time() - began) * 1000
    text = (
        f"{found.database}, PostgreSQL {found.server_version}, head {found.head}, asked in {took_ms:.0f} ms"
    )
    if found.pending:
        yield Finding("database", "bad", f"{text}, pending: {', '.join(found.pending)} (unisono db migrate)")
    else:
        yield Finding("database", "good", text)
    if not found.standbys:
        yield Finding("standbys", "warning", "none confirms commits: a failover may lose the last of them")


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    for place in (path, *path.absolute().parents):
        if place.is_dir():
            return place
    return Path("/")


CHECKS: Final[Sequence[Check]] = (versions, data_directory, database, open_files, clock, server)
