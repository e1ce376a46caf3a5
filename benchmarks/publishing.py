"""Publishing the snapshots of many small partitions, and planning retention with them: time, and the driver's memory.

    python -m benchmarks.publishing [--partitions 100000,1000000] [--beside-server] [--cache DIR]

Every partition has one event and one small snapshot in the lake, which are made once and kept in the cache. Each
measurement is a process of its own. "publish" stores all snapshots in an embedded log without a server; "again" finds
that the store has them all; "retain" plans what may leave the log, which looks up every partition's snapshot, on a
local Spark whose workers are not counted. `--beside-server` publishes to a running server as well, while a client
commits single events in a closed loop.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.behaviour.server.harness import Server, running
from tests.lake.lakes import HERE
from tests.pipeline.outline import OUTLINE, shipped_outline

from unisono.lake.columns import bucket_of
from unisono.lake.lake import Lake
from unisono.lake.snapshots import SnapshotWriter, StateRow
from unisono.lake.storage import SNAPSHOTS
from unisono.lake.table import Table
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.retain.job import RetentionPolicy, plan
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.session import session
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.cluster import ModelBundle
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog
from unisono.vocabulary import JsonObject

GROUP = 5_000
STATE_BYTES = 200


def make(folder: Path, partitions: int) -> None:
    """A log and a lake with its snapshots, none of which is published."""
    if (folder / "made").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    model = shipped_outline()
    with closing(SqliteLog.open(folder / "data")) as log:
        log.record_model(ModelBundle(model.version, model.digest, dict(model.load().files)))
        for start in range(1, partitions + 1, GROUP):
            log.begin([])
            log.commit([_record(number) for number in range(start, min(start + GROUP, partitions + 1))])
            log.maintain()
    lake = Lake.at(str(folder / "lake"))
    lake.make()
    export(HERE, sqlite_uri(folder / "data"), lake)
    buckets = lake.table("by_partition").description().buckets
    names: list[list[str]] = [[] for _ in range(buckets)]
    for number in range(1, partitions + 1):
        names[bucket_of(_name(number), buckets)].append(_name(number))
    files = []
    for bucket, own in enumerate(names):
        writer = SnapshotWriter(lake.storage, bucket, model.version, model.digest)
        for name in sorted(own, key=str.encode):
            writer.add(_state(name, partitions, model.digest))
        files += writer.close()
    Table.make(lake.storage, SNAPSHOTS, buckets).put_snapshots(files, {model.version: partitions}, {})
    (folder / "made").touch()


def _name(number: int) -> str:
    return f"room-{number:08d}"


def _record(number: int) -> Record:
    event = canonical(
        {"payload": {"data": {"id": "a", "text": "x"}, "schema": "note.added"}, "type": "event"}
    )
    names = (_name(number),)
    hash = content_hash(event, canonical(list(names)))
    return Record(
        number,
        hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest(),
        "c",
        names,
        event,
        hash,
        number,
    )


def _push(number: int) -> JsonObject:
    value: JsonObject = {"id": f"n{number}", "title": "x", "done": False}
    return {"type": "treePush", "payload": {"target": "outline", "value": value}}


def _state(name: str, committed_id: int, digest: str) -> StateRow:
    state = hashlib.shake_128(name.encode()).digest(STATE_BYTES)
    return StateRow(name, committed_id, state, 1, 0, digest, 1, hashlib.sha256(state).digest())


def measure(folder: Path, step: str) -> None:
    lake, model = Lake.at(str(folder / "lake")), shipped_outline()
    store = sqlite_uri(folder / "published")
    if step == "publish":
        shutil.rmtree(folder / "published", ignore_errors=True)
        shutil.copytree(folder / "data", folder / "published")
    if step == "beside a server":
        shutil.rmtree(folder / "published", ignore_errors=True)
        shutil.copytree(folder / "data", folder / "published")
        arguments = ("--model", str(OUTLINE), "--access-default", "allow", "--heartbeat-timeout-s", "36000")
        with running(folder / "published", *arguments) as server, Committing(server) as alone:
            time.sleep(3)
            alone.finish()
            with Committing(server) as beside:
                tell(step, lambda: publish(lake, store, model.version).snapshots)
                beside.finish()
        print(f"    commits: without {alone.text()}; beside {beside.text()}", flush=True)
    elif step == "retain":
        spark = session("local[*]", "publishing", quick=True)
        with closing(open_maintainer(store)) as maintainer:
            keep = RetentionPolicy(events=1_000)
            tell(step, lambda: plan(spark, store, maintainer, lake, keep).events)
        spark.stop()
    else:
        tell(step, lambda: publish(lake, store, model.version).snapshots)


class Committing(threading.Thread):
    """Commits one event after the other, as a context."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._ended = False
        self._took: list[float] = []

    def __enter__(self) -> Committing:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        self._ended = True
        self.join()

    def run(self) -> None:
        with self._server.client(f"client-{id(self)}") as peer:
            while not self._ended:
                started = time.perf_counter()
                peer.commit([f"own-{id(self)}"], _push(len(self._took)))
                self._took.append((time.perf_counter() - started) * 1000)

    def text(self) -> str:
        ordered = sorted(self._took)
        median, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        return f"{len(ordered):,}, median {median:.1f} ms, p99 {p99:.1f}, longest {ordered[-1]:.1f}"


def tell(step: str, work: Callable[[], int]) -> None:
    """Memory is what the process has of its own: pages of the log's file, which the system can drop, do not count."""
    ended, sizes = threading.Event(), [_own_mb()]
    sampling = threading.Thread(target=lambda: _sample(sizes, ended))
    cpu, began = time.process_time(), time.perf_counter()
    sampling.start()
    count = work()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    ended.set()
    sampling.join()
    print(
        f"  {step:<16}{count:>10,} in {took:>6.1f} s, {count / took:>9,.0f}/s, cpu {cpu:>6.1f} s,"
        f" driver {sizes[0]:,.0f} MB → {max(sizes):,.0f} MB at most",
        flush=True,
    )


def _sample(sizes: list[float], ended: threading.Event) -> None:
    while not ended.wait(0.02):
        sizes.append(_own_mb())


def _own_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", default="100000,1000000")
    parser.add_argument("--beside-server", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-publishing")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        partitions, step = options.one
        folder = options.cache / partitions
        make(folder, int(partitions)) if step == "make" else measure(folder, step)
        return
    for partitions in options.partitions.split(","):
        print(f"{int(partitions):,} partitions", flush=True)
        for step in ("make", "publish", "again", "retain", *(["beside a server"] * options.beside_server)):
            words = [sys.executable, "-m", "benchmarks.publishing", "--cache", str(options.cache)]
            subprocess.run([*words, "--one", partitions, step], check=True)


if __name__ == "__main__":
    main()
