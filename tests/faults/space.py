"""A disk without space: a small tmpfs that fills while clients write, is freed, and fills again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import SERVE, expect_nothing_left
from tests.faults.workload import Tally, load
from tests.waiting import PATIENCE_S

DISK_BYTES = 32 << 20
ROOM_BYTES = 160 << 10
"""What is left when the disk is filled: some groups, so that it is a commit that finds no space."""

CHUNK_BYTES = 4096
CLIENTS = {"writers": 4, "followers": 1, "browsers": 1}
EXIT_FAILED = 1


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of its own, of a few MiB; the test is skipped where none can be mounted."""
    directory.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounting.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounting.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(disk: Path, room: int) -> Path:
    """A file that leaves so many bytes."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(CHUNK_BYTES)):
            pass
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - room)
    return ballast


def fill_the_disk(directory: Path, cycles: int, seed: int) -> Tally:
    """Documented as fail-stop: the server ends with 1 and says why. With space again it starts and goes on."""
    with small_disk(directory / "disk") as data:
        server = Server(data, *SERVE).start()
        try:
            with load([server], seed=seed, **CLIENTS) as work:
                for cycle in range(cycles):
                    work.expect_progress()
                    said = len(server.log.read_text())
                    work.fault("disk full")
                    ballast = fill(data, ROOM_BYTES)
                    assert server.process.wait(timeout=PATIENCE_S) == EXIT_FAILED
                    work.places.close(server)
                    expect_nothing_left(server)
                    expect_said(server, said, "log failed, stopping", "full")
                    server.kill()
                    if cycle % 2:
                        expect_no_start_without_space(server, ballast)
                    ballast.unlink()
                    work.places.open(server.start())
                work.expect_progress()
                tally = work.settle(data, [server])
                assert server.stop() == 0
                return tally
        finally:
            server.kill()


def expect_no_start_without_space(server: Server, ballast: Path) -> None:
    """Without any space left the server does not start, and says so."""
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(CHUNK_BYTES)):
            pass
    said = len(server.log.read_text())
    with pytest.raises(AssertionError, match="no ready line"):
        server.start()
    expect_said(server, said, "full")


def expect_said(server: Server, said: int, *texts: str) -> None:
    log = server.log.read_text()[said:]
    assert all(text in log for text in texts), log
    assert "Traceback" not in log, log
