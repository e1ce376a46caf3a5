"""What letting events leave the log costs those who commit: latencies beside pruning, and without it, in turns.

Builds a log whose ids are spread as those of real clients are, starts a real server on it, and lets clients commit
single events in closed loops, over the network and through the whole server. Pruning goes through the admin port as
retention does it; it is switched on and off every few seconds until all that may leave has left.

    python -m benchmarks.pruning [--events 220000] [--prune 200000] [--clients 4] [--turn-s 3]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path

from tests.behaviour.server.harness import Server, running, set_event

from unisono.pipeline.maintain.embedded import LogMaintainer, open_maintainer
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

GROUP = 500
PARTITIONS = 500


def build(data: Path, events: int) -> None:
    chance = random.Random(1)
    with closing(SqliteLog.open(data)) as log:
        for start in range(1, events + 1, GROUP):
            records = []
            for n in range(start, min(start + GROUP, events + 1)):
                names = (f"room-{chance.randrange(PARTITIONS)}",)
                text = "y" * chance.randrange(100, 400)
                event = canonical({"payload": {"target": "t", "value": text}, "type": "set"})
                hash = content_hash(event, canonical(list(names)))
                id = str(uuid.UUID(int=chance.getrandbits(128)))
                records.append(Record(n, id, "built", names, event, hash, n))
            log.begin([])
            log.commit(records)
            log.maintain()


class Client(threading.Thread):
    """Commits one event after the other, each to a partition of its own, and notes how long each took."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._number = number
        self.pruning = False
        self.stop = False
        self.latencies: dict[bool, list[float]] = {False: [], True: []}

    def run(self) -> None:
        with self._server.client(f"client-{self._number}") as peer:
            n = 0
            while not self.stop:
                n += 1
                beside = self.pruning
                started = time.perf_counter()
                peer.commit([f"own-{self._number}"], set_event("n", n))
                took = time.perf_counter() - started
                if beside == self.pruning:
                    self.latencies[beside].append(took)


def take_turns(maintainer: LogMaintainer, clients: list[Client], upto: int, turn_s: float) -> float:
    """Prune and rest, a turn each, until all have left; the seconds of pruning."""
    pruned_s = 0.0
    left = True
    while left:
        time.sleep(turn_s)
        for client in clients:
            client.pruning = True
        started = time.perf_counter()
        while time.perf_counter() - started < turn_s and (left := maintainer.prune_step(upto) > 0):
            pass
        pruned_s += time.perf_counter() - started
        for client in clients:
            client.pruning = False
    return pruned_s


def show(name: str, latencies: list[float], seconds: float) -> None:
    ordered = sorted(one * 1000 for one in latencies)
    p99 = ordered[int(len(ordered) * 0.99)]
    rate = len(ordered) / seconds
    median = statistics.median(ordered)
    print(f"  {name:<18}{len(ordered):>8,}{rate:>9.0f}/s{median:>9.2f}{p99:>9.2f}{ordered[-1]:>9.1f}")


def size(data: Path) -> str:
    return f"{(data / 'log.db').stat().st_size / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=220_000)
    parser.add_argument("--prune", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--turn-s", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        build(data, options.events)
        arguments = ("--model", "open", "--access-default", "allow", "--heartbeat-timeout-s", "36000")
        with running(data, *arguments) as server, closing(open_maintainer(str(data))) as maintainer:
            maintainer.set_archive(str(Path(place) / "lake"))
            clients = [Client(server, number) for number in range(options.clients)]
            started = time.perf_counter()
            for client in clients:
                client.start()
            pruned_s = take_turns(maintainer, clients, options.prune, options.turn_s)
            took = time.perf_counter() - started
            for client in clients:
                client.stop = True
            for client in clients:
                client.join()
            print(f"{options.prune:,} events left in {pruned_s:.1f} s of pruning, {options.clients} clients")
            print(f"  {'commits, ms':<18}{'n':>8}{'rate':>11}{'median':>9}{'p99':>9}{'max':>9}")
            for pruning, seconds in ((False, took - pruned_s), (True, pruned_s)):
                told = [one for client in clients for one in client.latencies[pruning]]
                show("beside pruning" if pruning else "without", told, seconds)
            before = size(data)
            started = time.perf_counter()
            maintainer.reclaim()
            print(f"space: {before} → {size(data)} in {time.perf_counter() - started:.1f} s of reclaiming")


if __name__ == "__main__":
    main()
