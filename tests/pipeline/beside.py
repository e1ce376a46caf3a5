"""A server under load with the pipeline at work beside it, both killed with -9 at random.

What must hold at the end: a client that starts from nothing gets, through the socket, exactly what all clients were
ever told of, in order and without a gap, though most of it has left the log; the directory is sound; and the log is
no larger than what is to be kept.
"""

from __future__ import annotations

import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec

from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import Ledger, Lives, Writer, listen
from tests.behaviour.server.killing import kill as kill_server
from tests.pipeline.processes import kill, run, start
from tests.waiting import PATIENCE_S
from unisono.store.check import check_directory
from unisono.store.port import LogExtent
from unisono.store.sqlite.log import SqliteReader

PARTITIONS = 12
"""What the writers and the listener use: four shared, and one of each of eight writers."""


class Beside(msgspec.Struct, frozen=True):
    """What a run went through. `log_bytes`: of the database's file, at times, without the states in its snapshots,
    which are as large as what the clients have made.
    """

    events: int
    service_kills: int
    server_kills: int
    extent: LogExtent
    log_bytes: list[int]


def run_beside(
    folder: Path,
    *,
    lives: int,
    services: int,
    writers: int,
    keep: int,
    load_s: tuple[float, float],
    seed: int,
) -> Beside:
    """`lives` of a server, and in each of them `services` of the pipeline, all but the very last ones killed."""
    data, lake = folder / "data", folder / "lake"
    ledger, dice = Ledger(), random.Random(seed)
    staff = [Writer(number, ledger, seed) for number in range(writers)]
    command = [
        "run", "--data", str(data), "--lake", str(lake), "--every", "0.2s", "--keep-events", str(keep),
        "--keep-newest", "0", "--compact-every", "3s", "--vacuum-hours", "1", "--master", "local[2]",
    ]  # fmt: skip
    service_kills, sizes = 0, []
    with ThreadPoolExecutor(writers + 3) as pool:
        servers = Lives(pool, data)
        try:
            for _ in range(lives):
                working = [pool.submit(writer.work, servers.current) for writer in staff]
                working.append(pool.submit(listen, servers.current, ledger))
                for _ in range(services):
                    service_kills += _kill_at_random(command, data, dice, load_s)
                    sizes.append(_log_bytes(data))
                servers.prepare()
                kill_server(servers.current, dice.choice(["group", "authority", "node"]))
                for future in working:
                    future.result(timeout=PATIENCE_S)
                servers.next()
            for future in [pool.submit(writer.finish, servers.current) for writer in staff]:
                future.result(timeout=PATIENCE_S)
            last = run(*command, "--cycles", "2")
            assert last.returncode == 0, last.stderr
            sizes.append(_log_bytes(data))
            _require_whole_history(servers.current, ledger)
            _require_status(servers.current)
            assert servers.current.stop() == 0
        finally:
            servers.end()
    drafts = sum(writer.drafts for writer in staff)
    assert len(ledger.by_id) == drafts, "a draft is missing, or something nobody wrote is there"
    report = check_directory(data)
    assert report.ok, report.text()
    with closing(SqliteReader.open(data)) as reader:
        extent = reader.extent()
    assert extent.head - extent.pruned_to <= keep
    return Beside(drafts, service_kills, lives, extent, sizes)


def _kill_at_random(command: list[str], data: Path, dice: random.Random, load_s: tuple[float, float]) -> bool:
    service = start(*command)
    at = time.monotonic() + dice.uniform(*load_s)
    while time.monotonic() < at:
        assert service.poll() is None, _ended(service)
        time.sleep(0.05)
    return kill(service)


def _log_bytes(data: Path) -> int:
    with closing(SqliteReader.open(data)) as reader:
        states = reader._connection.execute("SELECT coalesce(sum(length(state)), 0) FROM snapshots").get
    return (data / "log.db").stat().st_size - int(states)


def _ended(service: subprocess.Popen[str]) -> str:
    out, err = service.communicate()
    return f"the service ended with {service.returncode}: {out} {err}"


def _require_whole_history(server: Server, ledger: Ledger) -> None:
    """From nothing, by pages, across archive and log."""
    names = [f"part-{number}" for number in range(4)] + [f"own-{number}" for number in range(PARTITIONS - 4)]
    with server.client("from-nothing") as peer:
        events = peer.history(names)
    assert [event["committed_id"] for event in events] == list(range(1, len(events) + 1))
    assert {event["committed_id"]: event["id"] for event in events} == ledger.by_committed_id


def _require_status(server: Server) -> None:
    """What the pipeline said of itself is shown by the server."""
    status = msgspec.json.decode(server.get("/pipeline"))
    assert not status["running"]
    assert status["lake_head"] == status["log_head"] == server.metric("unisono_pipeline_lake_head")
    assert server.metric("unisono_pipeline_stage_runs_total", stage="retain") >= 1
    assert not any(stage["error"] for stage in status["stages"].values()), status
