"""Nodes killed one after the other under load, and a database restarted under it, round after round."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.behaviour.nodes.cluster import cluster, expect_serving
from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import TARGETS, kill
from tests.faults.workload import Tally, load
from tests.store.postgres.server import Postgres
from tests.waiting import PATIENCE_S, until

LOAD_S = (0.05, 0.3)
"""Between two blows, at random, so that they fall anywhere in the life of a group."""

QUIET = ("--log-level", "warning")


def kill_nodes(directory: Path, dsn: str, rounds: int, seed: int) -> Tally:
    """Of three nodes one is killed each round, as a whole or in a part, and started again."""
    dice = random.Random(seed)
    with (
        cluster(directory, dsn, "abc", *QUIET) as nodes,
        ThreadPoolExecutor(len(nodes)) as starters,
        load(nodes, seed=seed) as work,
    ):
        starting: dict[int, Future[Server]] = {}
        for turn in range(rounds):
            time.sleep(dice.uniform(*LOAD_S))
            number = turn % len(nodes)
            if number in starting:
                work.places.open(starting.pop(number).result(timeout=PATIENCE_S))
            work.places.close(nodes[number])
            work.fault(f"kill -9 of the {TARGETS[turn % len(TARGETS)]} of node {number}")
            kill(nodes[number], TARGETS[turn % len(TARGETS)])
            starting[number] = starters.submit(nodes[number].start)
            for other in [other for other, future in starting.items() if future.done()]:
                work.places.open(starting.pop(other).result())
            if not work.places:
                number, future = starting.popitem()
                work.places.open(future.result(timeout=PATIENCE_S))
            work.expect_progress()
        for future in starting.values():
            work.places.open(future.result(timeout=PATIENCE_S))
        return work.settle(dsn, nodes)


def restart_database(directory: Path, postgres: Postgres, dsn: str, rounds: int, seed: int) -> Tally:
    """The database goes down in order or as in a crash; the nodes stay, and clients come back to them."""
    dice = random.Random(seed)
    with cluster(directory, dsn, "ab", *QUIET) as nodes, load(nodes, seed=seed) as work:
        for turn in range(rounds):
            work.expect_progress()
            time.sleep(dice.uniform(*LOAD_S))
            if turn % 4 == 3:
                work.fault("kill -9 of the database")
                postgres.kill()
                start_again(postgres)
            else:
                mode = "immediate" if turn % 3 == 2 else "fast"
                work.fault(f"{mode} restart of the database")
                postgres.restart(mode)
        work.expect_progress()
        for server in nodes:
            expect_serving(server)
        return work.settle(dsn, nodes)


def start_again(postgres: Postgres) -> None:
    """After a crash the orphaned processes of the old server have to end before a new one can start."""

    def started() -> bool:
        try:
            postgres.start()
        except RuntimeError:
            return False
        return True

    until(started, "PostgreSQL does not start again")
