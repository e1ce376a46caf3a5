"""Import of a legacy history with planted faults: rates, and exact counts after being killed.

    python -m benchmarks.importing [--rows 1000000] [--files 4] [--connected] [--kills 3] [--postgres]

Rows of about 300 bytes over 20,000 partitions, one in ten in two of them (of the same ten; with `--connected` of any,
so that all partitions hang together), one in ten of no use (duplicates, conflicts, broken lines, bad ids, refused by
the model). First a run that nobody disturbs, as a process of its own, with its rates; then one into another log that
is killed while it reads, decides or loads, and must come to the same.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.pipeline.legacy import Legacy, Planted
from tests.store.postgres.server import shared_server

from unisono.pipeline.jobs.import_.result import ImportReport
from unisono.pipeline.open_log import open_reader
from unisono.pipeline.spark.warmup import prepare
from unisono.store.check import check_directory

PARTITIONS = 20_000


def build(folder: Path, rows: int, files: int, connected: bool) -> Planted:
    """The history, in files of consecutive rows."""
    folder.mkdir(parents=True)
    legacy = Legacy(rows, rooms=PARTITIONS, connected=connected)
    outputs = [(folder / f"part-{number:02d}.jsonl").open("wb") for number in range(files)]
    for place, line in enumerate(legacy.lines()):
        outputs[place * files // rows].write(line + b"\n")
    for output in outputs:
        output.close()
    return legacy.planted


def command(source: Path, place: Path, store: str) -> list[str]:
    return [
        sys.executable, "-m", "unisono", "lake", "import", str(source), "--store", store,
        "--staging", str(place / "staging"), "--out", str(place), "--quiet",
    ]  # fmt: skip


def require_exact(report: ImportReport, planted: Planted, store: str) -> None:
    totals = report.prepared.totals
    assert (totals.rows, totals.accepted, totals.duplicate, totals.known) == (
        planted.rows,
        planted.accepted,
        planted.duplicate,
        0,
    ), totals
    assert report.prepared.reasons == dict(planted.reasons), report.prepared.reasons
    assert report.loaded is not None
    assert report.loaded.committed + report.loaded.present == planted.accepted
    reader = open_reader(store)
    since, ids = 0, iter(planted.ids)
    while records := reader.scan(since, since + 10_000, limit=10_000):
        assert all(record.id == next(ids) for record in records), "the order is that of the source"
        since = records[-1].committed_id
    reader.close()
    assert since == planted.accepted == report.loaded.head
    if store.startswith("sqlite:"):
        assert check_directory(Path(store.removeprefix("sqlite:"))).ok


def straight(source: Path, place: Path, store: str, planted: Planted) -> None:
    began = time.perf_counter()
    subprocess.run(command(source, place, store), check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    report = msgspec.json.decode((place / "import.json").read_bytes(), type=ImportReport)
    require_exact(report, planted, store)
    judged = report.prepared.seconds
    loading = report.seconds - judged
    print(f"  {planted.rows:,} rows in {seconds:.0f} s with start-up: {planted.rows / seconds:,.0f} rows/s")
    print(f"    read, judged, ordered  {judged:6.1f} s  {planted.rows / judged:9,.0f} rows/s")
    print(f"    loaded                 {loading:6.1f} s  {planted.accepted / loading:9,.0f} events/s")
    print(f"    {report.prepared.judged}, rejected by reason {report.prepared.reasons}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"    largest process {peak:,.0f} MB")


def killed(source: Path, place: Path, store: str, planted: Planted, kills: int) -> None:
    """Killed at random moments of a run that takes as long as the first did, the last ones while loading."""
    chance = random.Random()
    place.mkdir()
    report_file, staging = place / "import.json", place / "staging"
    began, done = time.perf_counter(), 0
    while done < kills:
        process = subprocess.Popen(
            command(source, place, store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        moment = time.monotonic() + chance.uniform(10, 40)
        wanted = chance.randrange(planted.accepted) if done >= kills // 2 else None
        while process.poll() is None and not _due(staging, moment, wanted):
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        done += 1
        print(f"    killed in stage {_stage(staging)!r}, {_loaded(staging):,} loaded")
    if not report_file.exists():
        subprocess.run(command(source, place, store), check=True, stdout=subprocess.DEVNULL)
    report = msgspec.json.decode(report_file.read_bytes(), type=ImportReport)
    require_exact(report, planted, store)
    assert report.loaded is not None
    print(
        f"  killed {done} times: exact, {report.loaded.present:,} of {planted.accepted:,} events were there before "
        f"the last run; {time.perf_counter() - began:.0f} s in all"
    )


def _due(staging: Path, moment: float, wanted: int | None) -> bool:
    return time.monotonic() > moment if wanted is None else _loaded(staging) >= wanted


def _loaded(staging: Path) -> int:
    notes = list(staging.glob("*/loaded.json"))
    return int(notes[0].read_bytes()) if notes else 0


def _stage(staging: Path) -> Any:
    found = list(staging.glob("*/manifest.json"))
    return msgspec.json.decode(found[0].read_bytes())["stage"] or "reading" if found else "starting"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--connected", action="store_true", help="any two partitions may share an event")
    parser.add_argument("--postgres", action="store_true", help="into PostgreSQL as well")
    arguments = parser.parse_args()
    prepare()
    folder = Path(tempfile.mkdtemp(prefix="unisono-importing-"))
    try:
        planted = build(folder / "old", arguments.rows, arguments.files, arguments.connected)
        size = sum(file.stat().st_size for file in (folder / "old").iterdir())
        print(f"{arguments.rows:,} rows, {size / 1e6:.0f} MB, in {arguments.files} files")
        straight(folder / "old", folder, f"sqlite:{folder / 'a'}", planted)
        if arguments.kills:
            killed(folder / "old", folder / "killed", f"sqlite:{folder / 'b'}", planted, arguments.kills)
        if arguments.postgres:
            print("into PostgreSQL")
            straight(folder / "old", folder, shared_server().create(), planted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
