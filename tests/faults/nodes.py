"""Nodes on one database under load, round after round: killed, frozen, and a database that restarts or fails over."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg

from tests.behaviour.nodes.cluster import cluster, expect_serving, query
from tests.behaviour.nodes.proxy import proxied
from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import TARGETS, kill, session
from tests.faults.workload import Load, Tally, load
from tests.store.postgres.server import Postgres
from tests.waiting import PATIENCE_S, until
from unisono.store.postgres import schema

LOAD_S = (0.05, 0.3)
"""Between two blows, at random, so that they fall anywhere in the life of a group."""

QUIET = ("--log-level", "warning")

HOLD_S = 2.0
"""How long a node may hold the head; PostgreSQL ends the session of one that holds it longer."""

FROZEN_S = 1.5 * HOLD_S
IN_GROUP_TRIES = 500
STILL_S, RUNNING_S = 0.02, 0.1
"""While it is tried, the node runs for most of the time."""

IDLE_IN_GROUP = """
SELECT pid, xact_start::text FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'unisono' AND state = 'idle in transaction'
"""


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


def freeze_nodes(directory: Path, dsn: str, rounds: int, seed: int) -> Tally:
    """A node stands still in the middle of a group, for longer than it may hold the head, and then goes on.

    Meanwhile the other commits, a client of the frozen node connects there, and the frozen node is expired every
    other time, as it would be after ten minutes. Nothing that the frozen connection sends later may succeed.
    """
    hold = ("--store-group-timeout-s", str(HOLD_S), "--rule-timeout-s", str(HOLD_S / 4))
    with cluster(directory, dsn, "ab", *QUIET, *hold) as nodes, load(nodes, seed=seed) as work:
        for turn in range(rounds):
            work.expect_progress()
            frozen, other = nodes[turn % 2], nodes[1 - turn % 2]
            with _frozen_in_group(frozen, other, dsn, work):
                work.fault(f"SIGSTOP of node {turn % 2} in a group")
                ends = time.monotonic() + FROZEN_S
                if turn % 2:
                    work.fault(f"node {turn % 2} expired")
                    query(dsn, f"DELETE FROM unisono.nodes WHERE name = '{frozen.data.name}'")
                with session(other, f"writer-{turn % 6}") as (peer, _):
                    peer.sync(["part-0"])
                work.expect_progress()
                time.sleep(max(0.0, ends - time.monotonic()))
            expect_serving(frozen)
            work.places.open(frozen)
        work.expect_progress()
        return work.settle(dsn, nodes)


@contextmanager
def _frozen_in_group(server: Server, other: Server, dsn: str, work: Load) -> Iterator[None]:
    """Every process of a node stands still while it holds the head, and somebody writes to the other.

    It is tried until it is so.
    """
    group = server.process.pid
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:

        def in_group() -> set[tuple[object, ...]]:
            return set(connection.execute(IDLE_IN_GROUP).fetchall())

        try:
            for _ in range(IN_GROUP_TRIES):
                os.killpg(group, signal.SIGSTOP)
                work.places.close(server)
                held = in_group()
                time.sleep(STILL_S)
                if held & in_group() and any(each.at is other for each in work.writers):
                    break
                work.places.open(server)
                os.killpg(group, signal.SIGCONT)
                time.sleep(RUNNING_S)
            else:
                raise AssertionError("the node was never stopped in the middle of a group")
            yield
        finally:
            os.killpg(group, signal.SIGCONT)


def fail_over(directory: Path, rounds: int, seed: int) -> Tally:
    """The primary is lost and a standby that confirmed every commit is promoted, behind an address that moves."""
    with ExitStack() as stack:
        primary = Postgres()
        stack.callback(primary.dispose)
        primary.start()
        primary.execute("CREATE DATABASE log TEMPLATE template0")
        schema.initialise(primary.dsn("log"))
        proxy = stack.enter_context(proxied(primary.port))
        nodes = stack.enter_context(cluster(directory, primary.dsn("log", port=proxy.port), "ab", *QUIET))
        work = stack.enter_context(load(nodes, seed=seed))
        for turn in range(rounds):
            standby = primary.standby()
            stack.callback(standby.dispose)
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            until(lambda: _confirmed(primary), "the standby does not confirm commits")  # noqa: B023
            work.expect_progress()
            work.fault(f"failover {turn + 1}")
            primary.stop("immediate")
            standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
            standby.promote()
            standby.execute("SELECT pg_reload_conf()")
            primary, proxy.target = standby, standby.port
            for server in nodes:
                expect_serving(server)
            work.expect_progress()
        return work.settle(primary.dsn("log"), nodes, same_past=True)


def _confirmed(primary: Postgres) -> bool:
    return query(primary.dsn(), "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == [
        (1,)
    ]


def start_again(postgres: Postgres) -> None:
    """After a crash the orphaned processes of the old server have to end before a new one can start."""

    def started() -> bool:
        try:
            postgres.start()
        except RuntimeError:
            return False
        return True

    until(started, "PostgreSQL does not start again")
