"""Node and the packages of the JavaScript client; a clear failure where they are missing."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

CLIENTS: Final = Path(__file__).parents[2] / "clients/js"
TIMEOUT_S: Final = 280


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.fail("there is no `node`: run `make setup-js`")
    return found


@functools.cache
def build() -> None:
    """Build the packages and check their types, once for each process of the tests, one after the other."""
    compiler = CLIENTS / "node_modules/typescript/bin/tsc"
    if not compiler.exists():
        pytest.fail("clients/js/node_modules is not installed: run `make setup-js`")
    with (CLIENTS / "node_modules/.build-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [node(), str(CLIENTS / "build.mjs")],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr


def run(*arguments: str, cwd: Path = CLIENTS, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Node; what it printed is shown when it fails."""
    done = subprocess.run(
        [node(), *arguments],
        cwd=cwd,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environment},
    )
    text = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert done.returncode == 0, text.stdout[-8000:] + text.stderr[-4000:]
    return text
