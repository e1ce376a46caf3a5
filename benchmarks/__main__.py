"""Run the measurements one after the other: all of them, or those named.

python -m benchmarks [canonical tree submit client firstsync loading pruning postgres nodes pipeline snapshots audit
                      archive importing hostile presence]
"""

from __future__ import annotations

import subprocess
import sys

DEFAULT = (
    "canonical", "tree", "submit", "client", "firstsync", "loading", "pruning", "postgres", "nodes",
    "pipeline", "snapshots", "audit", "archive", "importing", "hostile", "presence",
)  # fmt: skip


def main(names: list[str]) -> int:
    failed = 0
    for name in names or DEFAULT:
        print(f"\n== {name} ==", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
