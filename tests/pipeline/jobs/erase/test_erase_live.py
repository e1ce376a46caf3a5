"""Erasing beside a server that runs, and erasing that is killed: as good as erasing in peace."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.behaviour.server.harness import Server, item, running, tree_event
from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.canaries import CULPRIT, canary, holders, planted
from tests.pipeline.history import require_exact
from tests.pipeline.jobs.erase.erasing import expected, require_states, run
from tests.pipeline.jobs.erase.killing import require_whole
from tests.pipeline.jobs.erase.prepared import Prepared
from tests.pipeline.processes import kill, start
from tests.waiting import PATIENCE_S
from unisono.client import connect
from unisono.lake.lake import Lake
from unisono.pipeline.jobs.erase.erasure_table import erasures
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.erase.unproved import load_unproved
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.check import check_directory
from unisono.store.sqlite.log import SqliteReader

EVENTS = 30


def fill(server: Server) -> list[int]:
    """Items of two clients in one partition, the culprit's among them; the ids of the culprit's events."""
    with server.client("alice") as alice, server.client(CULPRIT) as culprit:
        ids = []
        for number in range(EVENTS):
            alice.commit(["room"], tree_event(f"a{number}", text="as good as ever"))
            ids.append(
                culprit.commit(["room"], tree_event(f"c{number}", text=canary(number)), f"planted-{number}")
            )
        return ids


def test_beside_a_server(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    arguments = ("--model", "open", "--access-default", "allow", "--snapshot-every-events", "7")
    with running(data, *arguments) as server:
        ids = fill(server)
        lake.make(buckets=2)
        export(HERE, sqlite_uri(data), lake, to=40)
        done = run(spark, data, lake, Selector("client", (CULPRIT,)))
        assert done.proof.holds, done.proof.text()
        assert done.log_events == EVENTS
        assert list(holders(data, tmp_path / "lake")) == [], "while the server runs"
        with server.client("bob") as bob:
            history = bob.history(["room"])
            assert [event["committed_id"] for event in history] == list(range(1, 2 * EVENTS + 1))
            erased = [event for event in history if event["event"]["type"] == "erased"]
            assert [event["committed_id"] for event in erased] == ids
            assert {event["client_id"] for event in erased} == {CULPRIT}
            assert len({event["event"]["payload"]["erased_at"] for event in erased}) == 1
            (again,) = bob.submit(item(["room"], tree_event("a3")))
            assert again["status"] == "rejected", "alice's items are there"
            bob.commit(["room"], tree_event("c3", text="somebody else's"))
        with server.client(CULPRIT) as culprit:
            (retried,) = culprit.submit(item(["room"], tree_event("c5", text=canary(5)), "planted-5"))
            assert (retried["status"], retried["committed_id"]) == ("committed", ids[5]), (
                "it is known by its hash"
            )
            (other,) = culprit.submit(item(["room"], tree_event("c5", text="another"), "planted-5"))
            assert other["status"] == "rejected"
        with connect(
            server.url,
            token=server.token("carol"),
            client_id="carol",
            partitions=["room"],
            profile="compatibility",
        ) as carol:
            carol.caught_up(PATIENCE_S)
            shown = repr(carol.view("room"))
        assert "'a29'" in shown
        assert "'c3'" in shown
        assert "'c4'" not in shown
        assert "CANARY" not in shown
        assert server.stop() == 0
    assert check_directory(data).ok, check_directory(data).text()
    assert list(holders(data, tmp_path / "lake")) == [], "nor did the retry bring anything back"


STEPS = (
    "events recorded as to be erased: ",
    "rows erased in the lake: ",
    "events erased in the log: ",
    "files deleted that had erased events: ",
)


@pytest.mark.timeout(240)
@pytest.mark.soak
@pytest.mark.parametrize("step", STEPS)
def test_the_next_erasure_finishes_one_that_was_killed(
    spark: SparkSession, prepared: Prepared, tmp_path: Path, step: str
) -> None:
    """Whatever it is to erase itself. Kills at other moments: soak/test_erase.py."""
    data, lake = prepared.copy(tmp_path)
    records = prepared.records
    place = ["--data", str(data), "--lake", lake.storage.location]
    process = start("erase", *place, "--client", CULPRIT, "--yes", "--master", "local[2]")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(step):
            break
    assert kill(process), "it was at work"
    require_whole(data, lake)
    other = next(record for record in records if record.client_id != CULPRIT)
    told = unisono("lake", "erase", *place, "--id", other.id, "--yes")
    assert told.exit_code == 0, told.output
    assert "an earlier erasure of 25 events is not finished: this one finishes it" in told.output
    assert "erased 1 events in " in told.output
    wanted = {record.committed_id for record in planted(records)} | {other.committed_id}
    assert {row.committed_id for row in erasures(lake)} == wanted
    assert list(holders(data, Path(lake.storage.location))) == []
    tombstones = expected(records, lake)
    require_exact(lake, tombstones[: lake.head()])
    with closing(SqliteReader.open(data)) as reader:
        assert list(reader.scan(300, reader.head(), limit=10_000)) == tombstones[300:]
    assert check_directory(data).ok, check_directory(data).text()
    require_states(data, lake, records)
    assert load_unproved(lake.storage) is None
    if step == STEPS[0]:
        again = unisono("lake", "erase", *place, "--id", other.id, "--yes")
        assert again.exit_code == 0
        assert "is not finished" not in again.output
