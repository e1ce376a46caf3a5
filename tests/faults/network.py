"""Bad lines between clients and a server: delayed, split, trickling, deaf, refused, cut at any byte."""

from __future__ import annotations

import asyncio
import copy
import random
import time
from contextlib import closing
from pathlib import Path

import msgspec

from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import SERVE
from tests.client.convergence import run
from tests.client.proxy import Proxy
from tests.faults.workload import Load, Tally, load
from tests.history.recorder import Recorder
from tests.waiting import PATIENCE_S
from unisono.store.sqlite.reader import SqliteReader

BETWEEN_S = (0.01, 0.15)
"""From one mishap to the next, at random."""

RECORDED_BYTES_MAX = 2 << 30
MISHAPS = (
    "delay",
    "split",
    "trickle",
    "deaf",
    "refuse",
    "cut",
    "cut after a request",
    "cut within an answer",
)


def bad_lines(data: Path, mishaps: int, seed: int) -> Tally:
    """The common load over one bad line and one good one, until everybody has everything."""
    dice = random.Random(seed)
    server = Server(data, *SERVE).start()
    try:
        with Proxy(server.url, seed) as line:
            over_the_line = copy.copy(server)
            over_the_line.url = line.url
            ends = [over_the_line, over_the_line, server]
            with load(ends, writers=5, followers=2, browsers=1, seed=seed) as work:
                for number in range(mishaps):
                    if number % 10 == 0:
                        work.expect_progress()
                    _mishap(line, work, MISHAPS[number % len(MISHAPS)], dice)
                heal(line)
                work.expect_progress()
                tally = work.settle(data, ends)
        assert server.stop() == 0
        return tally
    finally:
        server.kill()


def _mishap(line: Proxy, work: Load, what: str, dice: random.Random) -> None:
    """One mishap, and then the line is as before; connections that were cut stay cut."""
    work.fault(what)
    match what:
        case "delay":
            line.delay_s = 0.05
        case "split":
            line.chop = True
        case "trickle":
            line.trickle_s = 0.001
        case "deaf":
            line.deaf = True
        case "refuse":
            line.refusing = True
            line.cut()
        case "cut":
            line.cut()
        case "cut after a request":
            line.cut_after_next_up = True
        case "cut within an answer":
            line.cut_down_after = dice.randint(0, 20_000)
    time.sleep(dice.uniform(*BETWEEN_S))
    if what == "deaf" and dice.random() < 0.5:
        line.cut()
    heal(line)


def heal(line: Proxy) -> None:
    line.delay_s = line.trickle_s = 0.0
    line.chop = line.deaf = line.refusing = line.cut_after_next_up = False
    line.cut_down_after = None


class Outcome(msgspec.Struct, frozen=True):
    """What clients of the library went through."""

    events: int
    cuts: int
    kills: int
    checked: dict[str, int]


def clients_over_bad_lines(directory: Path, runs: int, seed: int) -> Outcome:
    """Clients of the library, whose frames are recorded on their way, and what their stores hold at the end."""
    server = Server(directory / "data", "--model", "open", *SERVE)
    server.recorder = Recorder(complete=True, bytes_max=RECORDED_BYTES_MAX)
    server.start()
    try:
        done = [
            asyncio.run(asyncio.wait_for(run(seed + number, server, directory), 3 * PATIENCE_S))
            for number in range(runs)
        ]
        assert server.stop() == 0
        with closing(SqliteReader.open(server.data)) as reader:
            verdict = server.recorder.judge(reader)
    finally:
        server.kill()
    return Outcome(
        sum(each.events for each in done),
        sum(each.cuts for each in done),
        sum(each.kills for each in done),
        {check.invariant: check.checked for check in verdict.checks},
    )
