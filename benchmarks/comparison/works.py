"""What is measured: each function loads one system once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks.comparison.measure import Sample, holding, measure, order
from benchmarks.peers.system import System

WRITERS_OF_FAN_OUT = 32
"""So many that a subscriber does not wait for a disk."""
LISTENERS_EACH = 250
"""Subscribers of one generator process."""
OPENING_CLIENTS = 400
IDLE_BEFORE = 50
"""Connections that are there before memory is first looked at: what a server does once is done then."""
MIXED_LISTENERS = 100
MIXED_WRITERS = 40
SPREAD_TOPICS = [f"spread-{number}" for number in range(100)]
DENSE_TOPIC = "dense"
FILL_TIMEOUT_S = 6.0

_runs = count(1)


def new_run() -> str:
    """Part of ids, of client names where they must not meet, and of topics that must be new."""
    return f"r{next(_runs)}"


def submit(system: System, connections: int, batch: int, seconds: float) -> Sample:
    """Each connection writes to a topic of its own, and waits for each result."""
    clients = [(f"writer-{number}", [f"topic-{number}"]) for number in range(connections)]
    return measure(system, [order(system, "submit", clients, run=new_run(), seconds=seconds, batch=batch)])


def fill(system: System, topics: Sequence[str], events: int, timeout_s: float = FILL_TIMEOUT_S) -> None:
    """Events in batches of 100, one after the other in all the topics; as many as there is time for."""
    run = new_run()
    clients = [(f"filler-{number}", topics) for number in range(4)]
    measure(
        system,
        [order(system, "submit", clients, run=run, seconds=timeout_s, batch=100, warm_s=0, items_max=events)],
    )


def read(system: System, topics: Sequence[str], connections: int, seconds: float) -> Sample:
    """Each connection reads the topics from the beginning, page by page, and begins again at the end."""
    clients = [(f"reader-{number}", topics) for number in range(connections)]
    return measure(system, [order(system, "read", clients, run=new_run(), seconds=seconds)])


def fan_out(system: System, subscribers: int, seconds: float) -> Sample:
    """Writers in a closed loop, all to one topic; what its subscribers receive is counted."""
    run = new_run()
    names = [f"listener-{number}" for number in range(subscribers)]
    orders = [
        order(system, "listen", [(name, [run]) for name in names[start : start + LISTENERS_EACH]],
              run=run, seconds=seconds)
        for start in range(0, subscribers, LISTENERS_EACH)
    ]  # fmt: skip
    writers = [(f"writer-{number}", [run]) for number in range(WRITERS_OF_FAN_OUT)]
    # The writers go on until the last subscriber has stopped counting.
    orders.append(order(system, "submit", writers, run=run, seconds=seconds + 0.3))
    return measure(system, orders, lambda one: one.work == "listen")


def opening(system: System, seconds: float) -> Sample:
    """Connections until `connected`, then closed; tokens are made beforehand."""
    run = new_run()
    clients = [(f"opening-{number}", ["opening"]) for number in range(OPENING_CLIENTS)]
    source = f"127.7.{int(run[1:]) // 250 % 250 + 1}.{int(run[1:]) % 250 + 1}"
    asked = order(system, "connect", clients, run=run, seconds=seconds, source_address=source)
    return measure(system, [asked])


def idle_bytes(system: System, folder: Path, connections: int) -> Sample:
    """Memory of one connection that does nothing, in a server that is started for it."""
    system.start(folder)
    try:
        with holding(system, [f"first-{number}" for number in range(IDLE_BEFORE)], "idle"):
            before = system.memory_bytes()
            with holding(system, [f"idle-{number}" for number in range(connections)], "idle"):
                return Sample((system.memory_bytes() - before) / connections)
    finally:
        system.stop()


def mixed(system: System, seconds: float) -> Sample:
    """Writers, with subscribers, readers from the beginning, and clients that come and go beside them."""
    run = new_run()
    topics = [f"{run}-{number}" for number in range(10)]
    writers = [(f"writer-{number}", [topics[number % 10]]) for number in range(MIXED_WRITERS)]
    listeners = [(f"listener-{number}", [topics[number % 10]]) for number in range(MIXED_LISTENERS)]
    readers = [(f"reader-{number}", [DENSE_TOPIC]) for number in range(2)]
    orders = [
        order(system, "submit", writers, run=run, seconds=seconds),
        order(system, "listen", listeners, run=run, seconds=seconds),
        order(system, "read", readers, run=run, seconds=seconds),
    ]
    return measure(system, orders, lambda one: one.work == "submit")
