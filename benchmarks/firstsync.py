"""A client's first sync: the whole history against a start from snapshots; time, bytes, and what the store keeps.

The history lies in ten partitions, one event in ten is in two of them, and the snapshots of all ten stand where 99 %
of the events lie below. `settings` are set again and again, so that the states stay small; an `outline` grows to one
item for each ten events. Clients are processes of their own and take turns. The server runs with its usual bounds,
and for the outline a second time with room for states of that size, as an operator with such partitions would set it.

    python -m benchmarks.firstsync [--events 100000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from tests.behaviour.server.harness import running

from unisono.model.model import open_model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite.log import SqliteLog

PARTITIONS = tuple(f"part-{n}" for n in range(10))
GROUP = 1000
BELOW = 0.99
WAIT_S = 1200.0
ROOMY = ("--max-send-buffer-bytes", str(2**28), "--max-sync-snapshot-bytes", str(2**26))


def settings(number: int, random: Random) -> dict[str, Any]:
    value = {"count": number, "words": "x" * 60}
    return {"type": "set", "payload": {"target": f"settings.c{random.randrange(100)}", "value": value}}


def outline(number: int, random: Random) -> dict[str, Any]:  # noqa: ARG001
    """In each partition: one event in ten adds an item, the others change those of it that there are."""
    if number % 100 < 10:
        value = {"id": f"item-{number}", "title": f"Item number {number}", "done": False}
        options: dict[str, Any] = {"position": "last"}
        return {"type": "treePush", "payload": {"target": "outline", "value": value, "options": options}}
    place = number // 100 * 100 + number % 10
    value = {"title": f"Changed by {number}", "words": "x" * 60}
    return {
        "type": "treeUpdate",
        "payload": {"target": "outline", "value": value, "options": {"id": f"item-{place}"}},
    }


HISTORIES: dict[str, Callable[[int, Random], dict[str, Any]]] = {"settings": settings, "outline": outline}


def records(
    make: Callable[[int, Random], dict[str, Any]], events: int
) -> Iterator[tuple[Record, dict[str, Any]]]:
    random = Random(1)
    for number in range(events):
        names: tuple[str, ...] = (PARTITIONS[number % 10],)
        if random.random() < 0.1:
            names = tuple(sorted({*names, random.choice(PARTITIONS)}))
        event = make(number, random)
        text = canonical(event)
        hash = content_hash(text, canonical(list(names)))
        yield Record(number + 1, f"event-{number}", "writer", names, text, hash, number + 1), event


def fill(directory: Path, kind: str, events: int) -> tuple[int, int]:
    """Write the log and its snapshots; bytes of the events and of the snapshots."""
    model, states = open_model(), {name: PartitionState() for name in PARTITIONS}
    log = SqliteLog.open(directory)
    group: list[Record] = []
    size, upto = 0, int(events * BELOW)
    for record, event in records(HISTORIES[kind], events):
        size += len(record.event)
        group.append(record)
        if record.committed_id <= upto:
            for name in record.partitions:
                model.apply_committed(states[name], event)
        if len(group) == GROUP or record.committed_id == events:
            log.begin([])
            log.commit(group)
            log.maintain()
            group = []
            for state in states.values():
                state.settle()
    snapshots = [Snapshot(name, upto, 0, pack(state.dump()), 1) for name, state in states.items()]
    log.put_snapshots(snapshots)
    log.close()
    return size, sum(len(each.state) for each in snapshots)


def measure(url: str, token: str, store: str, snapshots: str) -> dict[str, Any]:
    """In a process of its own: open, catch up, read every view."""
    from unisono.client import Options, connect
    from unisono.client.net import connection

    received = 0
    module = vars(connection)
    decode = module["decode"]

    def counting(data: bytes) -> Any:
        nonlocal received
        received += len(data)
        return decode(data)

    module["decode"] = counting
    started, started_cpu = time.perf_counter(), time.process_time()
    with connect(
        url, token=token, client_id="reader", store=store, partitions=PARTITIONS, profile="compatibility",
        options=Options(snapshots=snapshots == "snapshots"),
    ) as client:  # fmt: skip
        client.caught_up(WAIT_S)
        ready, ready_cpu = time.perf_counter(), time.process_time()
        views = hashlib.sha256(
            msgspec.json.encode([client.view(name) for name in PARTITIONS], order="sorted")
        )
    return {
        "ready": ready - started,
        "cpu": ready_cpu - started_cpu,
        "received": received,
        "store": Path(store).stat().st_size,
        "views": views.hexdigest(),
    }


def child(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.firstsync", "--child", *arguments]
    told: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return told


def report(data: Path, options: tuple[str, ...], rounds: int) -> None:
    taken: dict[str, list[dict[str, Any]]] = {"whole": [], "snapshots": []}
    with running(data, "--access-default", "allow", *options) as server:
        for number in range(rounds):
            for way, results in taken.items():
                store = data.parent / f"{way}-{number}.db"
                results.append(child(server.url, server.token("reader"), str(store), way))
                for file in data.parent.glob(f"{store.name}*"):
                    file.unlink()
        started = int(server.metric("unisono_sync_snapshots_total")) // rounds
    assert len({each["views"] for results in taken.values() for each in results}) == 1, "the views differ"
    for way, results in taken.items():
        told = {
            key: statistics.median(each[key] for each in results)
            for key in ("ready", "cpu", "received", "store")
        }
        note = (
            f"{started} of {len(PARTITIONS)} partitions from snapshots"
            if way == "snapshots"
            else "all events"
        )
        received, kept = told["received"] / 2**20, told["store"] / 2**20
        print(
            f"  {way:<10}{told['ready']:8.2f} s, CPU {told['cpu']:7.2f} s   received {received:8.2f} MiB"
            f"   store {kept:7.1f} MiB   {note}",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    for kind in HISTORIES:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            data = Path(folder) / "data"
            data.mkdir()
            events, states = fill(data, kind, chosen.events)
            print(
                f"{kind}: {chosen.events} events, {events / 2**20:.1f} MiB, in {len(PARTITIONS)} partitions;"
                f" snapshots {states / 2**20:.2f} MiB; median of {chosen.rounds}"
            )
            print(" usual bounds")
            report(data, (), chosen.rounds)
            if kind == "outline":
                print(f" {' '.join(ROOMY)}")
                report(data, ROOMY, chosen.rounds)


if __name__ == "__main__":
    main()
