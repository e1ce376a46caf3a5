"""Durable commits per second: one embedded server, one node on PostgreSQL, two nodes on one PostgreSQL.

Each connection submits one event of about 400 bytes, waits for its result, and submits the next (a closed loop).
With two nodes the connections are shared between them. All three are measured in turn, round after round in one
run; medians are shown, and each beside the embedded one of the same round.

    python -m benchmarks.nodes [--connections 50] [--seconds 4] [--rounds 5] [--batch 1]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.behaviour.nodes.cluster import SERVE, cluster
from tests.behaviour.server.harness import Server, running
from tests.store.postgres.server import shared_server

from benchmarks.comparison.measure import Sample, combined, results_of, started
from benchmarks.comparison.raw import fdatasyncs
from benchmarks.comparison.works import new_run
from benchmarks.generators.order import Client, Order
from benchmarks.peers.system import GENERATOR

OPTIONS = ("--model", "open", "--log-level", "warning")


@contextlib.contextmanager
def contenders(directory: Path) -> Iterator[dict[str, Sequence[Server]]]:
    """All of them up at once, each on a log of its own; those not measured are idle."""
    postgres = shared_server()
    alone, shared = postgres.create(), postgres.create()
    with (
        running(directory / "embedded", *SERVE, *OPTIONS) as embedded,
        cluster(directory / "alone", alone, "a", *OPTIONS) as one,
        cluster(directory / "shared", shared, "ab", *OPTIONS) as two,
    ):
        yield {"embedded": [embedded], "PostgreSQL, one node": one, "PostgreSQL, two nodes": two}


def load(servers: Sequence[Server], connections: int, seconds: float, batch: int) -> Sample:
    """The connections in turn to the servers, each as a client of its own; a generator for each server."""
    run, orders = new_run(), []
    for place, server in enumerate(servers):
        names = [f"writer-{number}" for number in range(place, connections, len(servers))]
        clients = [Client(name, [f"part-{name}"], server.token(name)) for name in names]
        address = urlsplit(server.url)
        assert address.hostname is not None
        assert address.port is not None
        orders.append(
            Order("submit", "unisono", address.hostname, address.port, clients, run, seconds, batch=batch)
        )
    with started([GENERATOR] * len(orders), orders) as processes:
        return combined(results_of(processes))


def group_size(servers: Sequence[Server]) -> float:
    """Events that were made durable together, on average."""
    events = sum(server.metric("unisono_group_events_sum") for server in servers)
    return events / max(1.0, sum(server.metric("unisono_group_events_count") for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    chosen = parser.parse_args()
    found: dict[str, list[Sample]] = {}
    syncs: list[float] = []
    # Beside the data of PostgreSQL, so that all of them write to one disk.
    with tempfile.TemporaryDirectory() as folder, contenders(Path(folder)) as all_of_them:
        for _ in range(chosen.rounds):
            syncs.append(fdatasyncs(Path(folder), 0.5).rate)
            for name, servers in all_of_them.items():
                measured = load(servers, chosen.connections, chosen.seconds, chosen.batch)
                found.setdefault(name, []).append(measured)
        sizes = {name: group_size(servers) for name, servers in all_of_them.items()}
    print(f"{chosen.connections} connections, batches of {chosen.batch}, {chosen.rounds} rounds")
    print(f"raw fdatasync/s {statistics.median(syncs):.0f}\n")
    print(f"{'':24}{'commits/s':>10}{'of embedded':>13}{'p50 ms':>9}{'p99 ms':>9}{'per group':>11}   rounds")
    for name, rounds in found.items():
        ratios = [one.rate / other.rate for one, other in zip(rounds, found["embedded"], strict=True)]
        print(
            f"{name:24}{statistics.median(one.rate for one in rounds):10.0f}{statistics.median(ratios):13.2f}"
            f"{statistics.median(one.p50_ms for one in rounds):9.1f}"
            f"{statistics.median(one.p99_ms for one in rounds):9.1f}"
            f"{sizes[name]:11.1f}   {' '.join(f'{one.rate:.0f}' for one in rounds)}"
        )


if __name__ == "__main__":
    main()
