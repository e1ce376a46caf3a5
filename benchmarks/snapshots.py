"""Folding the lake into snapshots on Spark, beside plain Python in one process that folds the same history.

    python -m benchmarks.snapshots [--events 1000000] [--rounds 1] [--partitions 10000] [--skewed] [--cache DIR]

The log is made once and kept in the cache: tree actions and canonical events of the sample model, one in twenty in
two partitions; `--skewed` puts half of all into a single one. Spark is up and has done a small job before anything
is timed. "plain" reads the lake in committed_id order, keeps all states in one dict, and writes one sorted file of
snapshots with the lake's own writer; it runs in a process of its own. Seconds are of the wall; behind them the
processor's, of all workers together, which others on the machine disturb less. Memory is the highest resident
size of a worker while it folds, its memory after the export that came before included.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import orjson
from tests.pipeline.outline import HOT, OUTLINE, Outlines, append_outlines, shipped_outline
from tests.pipeline.processes import python_workers

from unisono.lake.lake import Lake
from unisono.lake.snapshots import SnapshotWriter, StateRow
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.pipeline.job_model import choose
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.open_log import gc_paused, sqlite_uri
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.warmup import prepare
from unisono.store.sqlite.log import SqliteLog

MORE = 0.01
"""What is added before the incremental run."""

PORTION = 20_000
"""Events made at a time."""


class Plain(msgspec.Struct):
    """What the plain process tells."""

    seconds: float
    cpu: float
    peak_mb: float
    states: str


def build(directory: Path, events: int, partitions: int, skewed: bool) -> None:
    """Make the log whole, through the real writer; a log that is there is taken as it is."""
    log = SqliteLog.open(directory)
    if log.head() == 0:
        outlines = Outlines("benchmark", partitions, skewed=skewed)
        for made in range(0, events, PORTION):
            append_outlines(log, outlines, min(PORTION, events - made))
    head = log.head()
    log.close()
    if head != events:
        sys.exit(f"{directory} was left unfinished: remove it")


def plain(location: str, upto: int, folder: Path) -> Plain:
    """What anybody would write: all states in memory, events in order."""
    began, lake = time.perf_counter(), Lake.at(location)
    shipped = choose(str(OUTLINE), None)
    model = shipped.load()
    states: dict[str, PartitionState] = {}
    counts: dict[str, int] = {}
    with gc_paused():
        for batch in lake.scan_arrow(upto=upto, columns=("partitions", "event")):
            touched: dict[str, PartitionState] = {}
            rows = zip(batch.column("partitions").to_pylist(), batch.column("event").to_pylist(), strict=True)
            for names, text in rows:
                event = orjson.loads(text)
                for name in names:
                    state = states.get(name)
                    if state is None:
                        state = states[name] = PartitionState()
                    model.apply_committed(state, event)
                    touched[name] = state
                    counts[name] = counts.get(name, 0) + 1
            for state in touched.values():
                state.settle()
        storage = Lake.at(str(folder / "plain")).storage
        writer = SnapshotWriter(storage, 0, shipped.version, shipped.digest)
        whole = hashlib.sha256()
        for name in sorted(states, key=str.encode):
            packed = pack(states[name].dump())
            sealed = hashlib.sha256(packed).digest()
            whole.update(sealed)
            writer.add(
                StateRow(name, upto, packed, counts[name], states[name].skipped, shipped.digest, 0, sealed)
            )
        writer.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.perf_counter() - began
    return Plain(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, whole.hexdigest())


def plain_apart(location: str, upto: int, folder: Path) -> Plain:
    command = [sys.executable, "-m", "benchmarks.snapshots", "--plain", location, str(upto), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return msgspec.json.decode(done.stdout, type=Plain)


class Workers:
    """The Python workers of a local Spark, as the system sees them."""

    def __init__(self, java: int) -> None:
        self._java = java

    def peak_mb(self) -> float:
        return self._most_mb("VmHWM:")

    def resident_mb(self) -> float:
        return self._most_mb("VmRSS:")

    def forget_peaks(self) -> None:
        """Of what workers needed for something else, only what they still hold counts."""
        for pid in python_workers(self._java):
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def cpu(self) -> float:
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(sum(map(int, _stat(pid)[11:15])) for pid in python_workers(self._java)) / ticks

    def _most_mb(self, key: str) -> float:
        return max((self._status(pid, key) for pid in python_workers(self._java)), default=0) / 1024

    def _status(self, pid: int, key: str) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def timed(workers: Workers, work: Callable[[], object]) -> tuple[float, float]:
    cpu, began = workers.cpu(), time.perf_counter()
    work()
    return time.perf_counter() - began, workers.cpu() - cpu


def digest_of(lake: Lake, version: int) -> str:
    whole = hashlib.sha256()
    for row in sorted(latest(lake, version), key=lambda row: row.partition.encode()):
        whole.update(row.hash)
    return whole.hexdigest()


def measure(data: Path, events: int, more: int, rounds: int, folder: Path, skewed: bool) -> None:
    spark = session("local[2]", "benchmark", quick=True)
    workers = Workers(java_process(spark).pid)
    store, model = sqlite_uri(data), shipped_outline()
    warm = Lake.at(str(folder / "warm"))
    warm.make()
    export(spark, store, warm, to=2_000)
    snapshot(spark, warm, model)
    taken: dict[str, list[tuple[int, float, float]]] = {}
    for number in range(rounds):
        place = folder / f"round-{number}"
        lake = Lake.at(str(place / "lake"))
        lake.make()
        export(spark, store, lake, to=events)
        alone = plain_apart(lake.storage.location, events, place)
        taken.setdefault("plain Python, full", []).append((events, alone.seconds, alone.cpu))
        before = workers.resident_mb()
        workers.forget_peaks()
        full = timed(workers, lambda lake=lake: snapshot(spark, lake, model))  # type: ignore[misc]
        taken.setdefault("Spark, full", []).append((events, *full))
        peak = workers.peak_mb()
        assert digest_of(lake, model.version) == alone.states, "both came to the same states"
        export(spark, store, lake, to=events + more)
        after = timed(workers, lambda lake=lake: snapshot(spark, lake, model))  # type: ignore[misc]
        taken.setdefault(f"Spark, {more} more events", []).append((more, *after))
        shutil.copytree(data, place / "data")
        done = publish(lake, sqlite_uri(place / "data"), model.version)
        taken.setdefault("publish (snapshots)", []).append((done.snapshots, done.seconds, 0))
        one = HOT if skewed else "room-00007"
        began = time.perf_counter()
        found = state_at(lake, one, model, events - 10)
        taken.setdefault("one state of the past", []).append((found.replayed, time.perf_counter() - began, 0))
        size = sum(file.bytes for file in lake.table("snapshots").files())
        print(
            f"  peak memory: a Spark worker {peak:.0f} MB ({before:.0f} before), plain {alone.peak_mb:.0f} MB; "
            f"snapshots {size / 1e6:.0f} MB, published {done.bytes / 1e6:.0f} MB"
        )
        shutil.rmtree(place)
    spark.stop()
    for name, all_rounds in taken.items():
        count, seconds, cpu = (statistics.median(values) for values in zip(*all_rounds, strict=True))
        print(f"  {name:<27} {count / seconds:>10,.0f} /s  {seconds:>8.1f} s  ({cpu:.1f} s of processor)")


def main() -> None:
    if sys.argv[1:2] == ["--plain"]:
        done = plain(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        print(msgspec.json.encode(done).decode())
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--skewed", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-benchmark")
    chosen = parser.parse_args()
    more = int(chosen.events * MORE)
    kind = "skewed" if chosen.skewed else "uniform"
    directory = chosen.cache / f"outlines-{kind}-{chosen.partitions}-{chosen.events}"
    began = time.perf_counter()
    build(directory, chosen.events + more, chosen.partitions, chosen.skewed)
    told = f"made or found in {time.perf_counter() - began:.0f} s"
    print(f"{chosen.events:,} events over {chosen.partitions:,} partitions, {kind} ({told})")
    print(f"  {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    prepare()
    with tempfile.TemporaryDirectory(dir=chosen.cache) as folder:
        measure(directory, chosen.events, more, chosen.rounds, Path(folder), chosen.skewed)
    print(f"  load afterwards {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
