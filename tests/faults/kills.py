"""kill -9 under load: a part of a server dies, the server ends by itself, and is started again under load."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import SERVE, TARGETS, kill
from tests.faults.workload import Tally, load

LOAD_S = (0.02, 0.15)
"""From the first new acknowledgement to the kill, at random: it falls anywhere in the life of a group."""

CLIENTS = {"writers": 4, "followers": 2, "browsers": 1}


def kill_parts(data: Path, kills: int, seed: int, *arguments: str) -> Tally:
    """Kill parts of a server at random; each of them at least once where there are kills enough."""
    dice = random.Random(seed)
    targets = [*TARGETS, *(dice.choice(TARGETS) for _ in range(kills - len(TARGETS)))][:kills]
    dice.shuffle(targets)
    server = Server(data, *SERVE, *arguments).start()
    try:
        with load([server], seed=seed, **CLIENTS) as work:
            for target in targets:
                work.expect_progress()
                time.sleep(dice.uniform(*LOAD_S))
                work.places.close(server)
                work.fault(f"kill -9 of the {target}")
                kill(server, target)
                work.places.open(server.start())
            work.expect_progress()
            tally = work.settle(data, [server])
            assert server.stop() == 0
            return tally
    finally:
        server.kill()
