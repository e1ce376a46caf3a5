"""Durable commits per second of one front and one authority, beside the disk's own fdatasync rate.

Each connection submits one event of about 400 bytes, waits for its result, and submits the next (a closed
loop). The two measurements alternate in one run; medians are shown with their ratio.

    python -m benchmarks.submit [--connections 50] [--seconds 4] [--rounds 5] [--batch 1]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.behaviour.server.harness import running

from benchmarks.load import Round, group_size, load, raw_fdatasync


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--profile", default="canonical", choices=["canonical", "compatibility"])
    chosen = parser.parse_args()
    rounds: list[Round] = []
    syncs: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        directory = Path(folder)
        with running(directory / "data", "--model", "open", "--access-default", "allow") as server:
            for _ in range(chosen.rounds):
                syncs.append(raw_fdatasync(directory, 1.0))
                rounds.append(
                    load([server], chosen.connections, chosen.seconds, chosen.profile, chosen.batch)
                )
            size = group_size([server])
    rate, sync = statistics.median(one.rate for one in rounds), statistics.median(syncs)
    p50, p99 = statistics.median(one.p50 for one in rounds), statistics.median(one.p99 for one in rounds)
    print(
        f"{chosen.connections} connections, batches of {chosen.batch}, {chosen.profile}, {chosen.rounds} rounds"
    )
    print(f"  durable commits/s   {rate:10.0f}   (rounds: {' '.join(f'{one.rate:.0f}' for one in rounds)})")
    print(f"  raw fdatasync/s     {sync:10.0f}   (rounds: {' '.join(f'{one:.0f}' for one in syncs)})")
    print(f"  ratio               {rate / sync:10.2f}")
    print(f"  submit to result    {p50:7.1f} ms median, {p99:.1f} ms p99")
    print(f"  events per group    {size:10.1f}")


if __name__ == "__main__":
    main()
