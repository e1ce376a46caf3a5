"""Erasing by command, in a log of PostgreSQL and in a lake of an object store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.lake.s3 import object_store
from tests.pipeline.canaries import CANARY, CULPRIT, append, canary, folded, holders, planted
from tests.pipeline.history import require_exact, row_of
from tests.pipeline.jobs.erase.erasing import (
    BY_CULPRIT,
    expected,
    fingerprint,
    run,
    run_on,
    states,
)
from tests.pipeline.jobs.erase.test_check_certificate import KEYS, private_pem, public_pem
from tests.store.postgres.server import database, postgres  # noqa: F401 (fixtures)
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RUNS, read_rows
from unisono.pipeline.clock import now_ms
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.erase.all_files import lake_files
from unisono.pipeline.jobs.erase.certificate import ErasureCertificate
from unisono.pipeline.jobs.erase.check_certificate import check
from unisono.pipeline.jobs.erase.erasure_table import erasures, recorded
from unisono.pipeline.jobs.erase.fragments import Pieces
from unisono.pipeline.jobs.erase.job import erase, plan
from unisono.pipeline.jobs.erase.proof import CleanStates, prove_erased
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes
from unisono.pipeline.jobs.erase.unproved import load_unproved
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.protocol.canonical import canonical
from unisono.store.port import Snapshot
from unisono.store.postgres.log import PostgresLog
from unisono.store.sqlite.log import SqliteLog


def test_command(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    with closing(SqliteLog.open(data)) as log:
        records = append(log, 200)
    place = ["--data", str(data), "--lake", str(tmp_path / "lake"), "--master", "local[2]"]

    def call(*arguments: str) -> Result:
        return unisono("lake", "erase", *place, *arguments)

    for arguments, text in {
        ("--client", CULPRIT, "--yes"): "`unisono lake export` makes one",
        ("--client", CULPRIT): "say --yes, or --dry-run",
        (
            "--client",
            CULPRIT,
            "--partition",
            "x",
            "--yes",
        ): "--client, --user, --id or --partition, one of these",
        ("--partition", "", "--yes"): "--partition is not a valid name",
    }.items():
        told = call(*arguments)
        assert told.exit_code == 2, arguments
        assert text in told.output
    lake.make(buckets=2)
    export(HERE, sqlite_uri(data), lake, to=120)
    before = fingerprint(data, tmp_path / "lake")
    unknown = call("--client", "nobody", "--yes")
    assert (unknown.exit_code, unknown.output) == (
        2,
        "unisono: no events of client 'nobody': nothing was erased\n",
    )
    dry = call("--client", CULPRIT, "--dry-run")
    assert dry.exit_code == 0
    assert dry.output.startswith(
        f"client {CULPRIT!r}: events 40 to 200 of 200, 5 in all, not erased yet: 5\n"
    )
    refused = call("--client", CULPRIT, "--yes", "--reports", str(data))
    assert refused.exit_code == 2
    assert "is not a report of `unisono lake report`" in refused.output
    assert fingerprint(data, tmp_path / "lake") == before
    report = tmp_path / "report"
    (report / "tables").mkdir(parents=True)
    (report / "index.html").write_text(canary(40))
    unwritable = call("--client", CULPRIT, "--yes", "--certificate", str(tmp_path / "no" / "where.json"))
    assert "its directory is missing" in unwritable.output
    paper = tmp_path / "certificate.json"
    key = tmp_path / "key.pem"
    key.write_bytes(public_pem(KEYS[0]))
    wrong = call("--client", CULPRIT, "--yes", "--certificate", str(paper), "--signing-key", str(key))
    assert "not a private key" in wrong.output, "before anything is erased"
    key.write_bytes(private_pem(KEYS[0]))
    done = call(
        "--client", CULPRIT, "--yes", "--reports", str(report), "--certificate", str(paper),
        "--signing-key", str(key), "--signed-off-by", "Ann",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    signature = (tmp_path / "certificate.json.jws").read_bytes()
    assert check(paper.read_bytes(), lake, signature, KEYS[0].public_key()).faults == []
    written = msgspec.json.decode(paper.read_bytes(), type=ErasureCertificate)
    assert (written.is_unchanged(), written.complete, written.events) == (True, True, 5)
    assert CULPRIT not in paper.read_text()
    (run,) = read_rows(lake.storage, RUNS).to_pylist()
    assert (run["job"], run["ok"], run["document"].encode()) == ("erase", True, paper.read_bytes())
    assert done.stdout.startswith("erased 5 events in ")
    assert done.stdout.endswith("files searched, none holds erased content\n")
    assert list(holders(data, tmp_path / "lake", report)) == []
    assert [row.committed_id for row in erasures(lake)] == [
        record.committed_id for record in planted(records)
    ]
    (tmp_path / "lake" / "left behind").write_text(CANARY)
    again = call("--client", CULPRIT, "--yes")
    assert again.exit_code == 0, "nothing is known any more of what was erased"
    assert ": 5 of them were erased before, " in again.stdout
    full = call("--client", CULPRIT, "--yes", "--certificate", "/dev/full")
    assert full.exit_code == 1
    assert "cannot be written to /dev/full (No space left on device): the lake keeps it" in full.output
    assert [run["ok"] for run in read_rows(lake.storage, RUNS).to_pylist()] == [True, True, True]


@pytest.mark.soak
def test_what_was_found_is_looked_for_until_it_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    with closing(SqliteLog.open(data)) as log:
        append(log, 80)
    lake.make(buckets=2)
    export(HERE, sqlite_uri(data), lake)
    left = tmp_path / "lake" / "left behind"
    left.write_text(canary(40))
    place = ["--data", str(data), "--lake", str(tmp_path / "lake")]
    for id in ("planted-40", "planted-40", "planted-80"):
        told = unisono("lake", "erase", *place, "--id", id, "--yes")
        assert told.exit_code == 1, "also when nothing else is left of it, and when something else is erased"
        assert "left behind: " in told.output
        assert "erased content remains: remove what is named above" in told.output
    left.unlink()
    told = unisono("lake", "erase", *place, "--id", "planted-40", "--yes")
    assert told.exit_code == 0, told.output
    assert load_unproved(lake.storage) is None


@pytest.mark.soak
def test_on_postgresql(spark: SparkSession, database: str, tmp_path: Path) -> None:  # noqa: F811
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    with closing(PostgresLog.open(database, "node")) as log:
        records = append(log, 400)
    export(HERE, database, lake, to=300)
    snapshot(HERE, lake, ShippedModel.open())
    with closing(open_maintainer(database)) as maintainer:
        maintainer.put_snapshots(states(lake))
        maintainer.set_archive(lake.storage.location)
        while maintainer.prune_step(100):
            pass
    done = erase(spark, database, lake, plan(spark, database, lake, BY_CULPRIT))
    assert done.proof.holds, done.proof.text()
    assert (done.events, done.intact, done.log_events) == (10, 10, 8)
    wanted = expected(records, lake)
    assert list(holders(tmp_path)) == []
    require_exact(lake, wanted)
    with closing(open_reader(database)) as reader:
        assert list(reader.scan(100, 400, limit=1_000)) == wanted[100:]
        for name in {name for record in planted(records) for name in record.partitions}:
            kept = reader.snapshot(name, 0)
            assert kept is not None
            assert kept.state == folded(wanted, name, kept.committed_id)
    with closing(PostgresLog.open(database, "node")) as log:
        known = log.begin([record.id for record in records]).known
        log.abandon()
    assert {id: told.hash for id, told in known.items()} == {record.id: record.hash for record in records}
    assert run_on(spark, database, lake).intact == 0


def test_old_snapshots_in_postgresql_are_searched(database: str, tmp_path: Path) -> None:  # noqa: F811
    """An erasure drops them; one that is there all the same is found, unless it was folded since."""
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    with closing(PostgresLog.open(database, "node")) as log:
        records = planted(append(log, 120))
    before = now_ms()
    planned = plan(HERE, database, lake, BY_CULPRIT)
    done = erase(HERE, database, lake, planned)
    assert done.proof.holds, done.proof.text()
    pieces = Pieces(planned.selection.pieces, planned.selection.salt)
    times, names = TombstoneTimes.of(recorded(lake)), frozenset(planned.selection.partitions)
    said = records[0].partitions[0]
    with closing(open_maintainer(database)) as maintainer:
        for name, text in ((said, canary(40)), (records[1].partitions[0], "nothing"), ("beside", canary(40))):
            state = canonical({"data": {}, "tree": {"title": text}})
            maintainer.put_snapshots([Snapshot(name, 100, 7, state, before, "")])
    proof = prove_erased(HERE, database, lake, times, pieces, CleanStates(names, before + 1), ())
    assert (proof.holds, proof.log_states, proof.places) == (False, 1, ["the log's snapshots"])
    assert "  the log: 1 snapshots" in proof.text()
    assert prove_erased(HERE, database, lake, times, pieces, CleanStates(names, before), ()).holds


@pytest.mark.soak
def test_a_lake_in_an_object_store(spark: SparkSession, tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        records = append(log, 120)
    with object_store() as options:
        lake = Lake.at("s3://lake/history", options)
        lake.make(buckets=2)
        export(HERE, sqlite_uri(tmp_path / "data"), lake, to=100)
        held = {place.path for place in lake_files(lake.storage) if place.holds_events}
        assert run(spark, tmp_path / "data", lake).proof.holds
        assert [row for batch in lake.scan_arrow() for row in batch.to_pylist()] == [
            row_of(record) for record in expected(records, lake)
        ]
        left = lake_files(lake.storage)
        assert not held & {place.path for place in left}
        for place in left:
            with place.opened() as source:
                told = repr(pq.read_table(source).to_pylist()) if place.is_parquet else source.read().decode()
            assert CANARY not in told, place.path
    assert list(holders(tmp_path / "data")) == []
