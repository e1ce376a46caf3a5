"""Measurements.

python -m benchmarks peers      Unisono beside other systems, and the raw limits; `make bench`
python -m benchmarks compare    this tree beside another revision of it
python -m benchmarks same       whether the pipeline's results are those of another revision
python -m benchmarks jobs       the pipeline's commands beside those of another revision
python -m benchmarks report     tables and pictures once more, from kept results
python -m benchmarks parts      the measurements of single parts, one after the other
python -m benchmarks NAME …     those named: canonical tree client firstsync loading pruning postgres nodes pipeline
                                snapshots audit archive importing erasing reporting hostile presence front browser
                                console capacity
python -m benchmarks.scale      how the pipeline grows: explains itself with --help

The first five explain themselves with --help.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from collections.abc import Callable

COMMANDS = {
    "peers": ("benchmarks.comparison.peers", "main"),
    "report": ("benchmarks.comparison.peers", "report"),
    "compare": ("benchmarks.comparison.compare", "main"),
    "same": ("benchmarks.comparison.same_results", "main"),
    "jobs": ("benchmarks.comparison.jobs", "main"),
}
PARTS = (
    "canonical", "tree", "client", "firstsync", "loading", "pruning", "postgres", "nodes",
    "pipeline", "snapshots", "audit", "archive", "importing", "erasing", "reporting", "hostile", "presence",
    "front", "browser", "console", "capacity",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    # Servers and generators are ended on the way out, also when something ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments and arguments[0] in COMMANDS:
        module, function = COMMANDS[arguments[0]]
        command: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
        return command(arguments[1:])
    names = PARTS if arguments == ["parts"] else tuple(arguments)
    if not names or any(name not in PARTS for name in names):
        print(__doc__)
        return 2
    failed = 0
    for name in names:
        print(f"\n== {name} ==", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
