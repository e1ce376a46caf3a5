"""Install the peers: `python -m benchmarks.peers.install`. What cannot be installed is named, and left out.

Their packages stay apart from those of Unisono: `.venv-peers` for pip, `benchmarks/peers/node_modules` for npm.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.system import HERE, PEERS_PYTHON

TIMEOUT_S = 900
"""The SQLite of the JavaScript reference may have to be compiled."""


def install() -> list[str]:
    """Whatever is missing; what went wrong with it."""
    return [problem for problem in (_pip(), _npm()) if problem is not None]


def _pip() -> str | None:
    requirements = HERE / "requirements.txt"
    environment = PEERS_PYTHON.parent.parent
    done = environment / ".installed"
    if _fresh(done, requirements):
        return None
    return _steps(
        "peers from requirements.txt",
        [
            [sys.executable, "-m", "venv", str(environment)],
            [str(PEERS_PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet", "install",
             "--requirement", str(requirements)],
        ],
        done,
        requirements,
    )  # fmt: skip


def _npm() -> str | None:
    done, lock = HERE / "node_modules" / ".installed", HERE / "package-lock.json"
    if _fresh(done, lock):
        return None
    if shutil.which("npm") is None:
        return "npm is not installed: the JavaScript reference, Hocuspocus and Durable Streams are left out"
    return _steps("peers from package.json", [["npm", "ci", "--no-progress"]], done, lock)


def _steps(what: str, commands: Sequence[Sequence[str]], done: Path, source: Path) -> str | None:
    print(f"installing {what}", file=sys.stderr, flush=True)
    for command in commands:
        try:
            ended = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{what}: {error}"
        if ended.returncode != 0:
            last = (ended.stderr.strip() or ended.stdout.strip() or "no output").splitlines()[-1]
            return f"{what}: {' '.join(command[:3])} ended with {ended.returncode}: {last}"
    done.write_bytes(source.read_bytes())
    return None


def _fresh(done: Path, source: Path) -> bool:
    """Whether what is installed was installed from this file."""
    return done.exists() and done.read_bytes() == source.read_bytes()


if __name__ == "__main__":
    problems = install()
    for line in problems:
        print(line, file=sys.stderr)
    sys.exit(1 if problems else 0)
