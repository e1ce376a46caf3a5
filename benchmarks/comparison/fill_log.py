"""A large log, written past the server."""

from __future__ import annotations

from pathlib import Path

from benchmarks.generators.order import EVENT_BYTES
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

GROUP = 10_000
PARTITIONS = 1000
FIRST_MS = 1_700_000_000_000


def fill_log(data: Path, events: int) -> None:
    """Events of the usual size in a thousand partitions, with ids as random as UUIDs are."""
    data.mkdir(parents=True, exist_ok=True)
    event = canonical(
        {
            "type": "event",
            "payload": {
                "schema": "entry.posted",
                "data": {"account": "a1", "amount": 1, "memo": "x" * (EVENT_BYTES - 200)},
            },
        }
    )
    names = [f"old-{number}" for number in range(PARTITIONS)]
    hashes = [content_hash(event, canonical([name])) for name in names]
    log = SqliteLog.open(data)
    try:
        for start in range(1, events + 1, GROUP):
            log.begin([])
            log.commit(
                [
                    Record(
                        number, f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}", f"client-{number % 500}",
                        (names[number % PARTITIONS],), event, hashes[number % PARTITIONS], FIRST_MS + number,
                    )
                    for number in range(start, min(start + GROUP, events + 1))
                ]
            )  # fmt: skip
            log.maintain()
    finally:
        log.close()
