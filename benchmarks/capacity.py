"""What a server needs for its connections and for its log: memory of a connection, bytes of an event on disk.

    python -m benchmarks.capacity [--connections 1000] [--seconds 5]

Memory is of all processes of the server, what they share counted once. Events have about 400 bytes as they are
submitted; the log is looked at after the server has ended.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.comparison.measure import holding, measure, order
from benchmarks.generators.order import EVENT_BYTES
from benchmarks.peers.ours import Unisono

SETTLE_S = 2.0
WRITERS = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        system = Unisono()
        system.start(Path(place))
        try:
            time.sleep(SETTLE_S)
            empty = system.memory_bytes()
            names = [f"h{number}" for number in range(given.connections)]
            with holding(system, names, "held"):
                time.sleep(SETTLE_S)
                held = system.memory_bytes()
            clients = [(f"w{number}", [f"p{number}"]) for number in range(WRITERS)]
            measure(system, [order(system, "submit", clients, run="c", seconds=given.seconds, batch=100)])
            loaded = system.memory_bytes()
        finally:
            system.stop()
        log = Path(place) / "data" / "log.db"
        events = _head(log)
        print(f"started: {empty / 1e6:,.0f} MB of memory")
        print(
            f"each of {given.connections:,} idle connections: {(held - empty) / given.connections / 1e3:,.1f} kB"
        )
        print(f"after {events:,} events: {loaded / 1e6:,.0f} MB of memory")
        print(f"an event of {EVENT_BYTES} bytes: {log.stat().st_size / events:,.0f} bytes in the log")


def _head(log: Path) -> int:
    from contextlib import closing

    from unisono.store.sqlite.reader import SqliteReader

    with closing(SqliteReader.open(log.parent)) as reader:
        return reader.extent().head


if __name__ == "__main__":
    main()
