"""Snapshots: when they are written, that they are used, and that they never change a judgement."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.authority.history import replay
from tests.authority.logs import CountingLog, grow
from tests.authority.seat import candidate, note, push, put, reading, seated, seated_on
from tests.model.oracle import same
from unisono.authority.states.resident import SNAPSHOT_WEIGHT_MAX
from unisono.ipc.messages import AdminCommand, BatchOutcome, CommandResult
from unisono.model.load import load_model
from unisono.model.model import CANONICAL, Model
from unisono.model.pack import unpack
from unisono.samples import sample_model
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import Snapshot

SAMPLE = load_model(sample_model())


def stored(data: Path, partition: str, version: int = NO_MODEL_VERSION) -> Snapshot | None:
    with reading(data) as log:
        return log.snapshot(partition, version, SAMPLE.digest if version == SAMPLE.version else "")


def state_of(data: Path, partition: str, version: int = NO_MODEL_VERSION) -> Any:
    snapshot = stored(data, partition, version)
    return None if snapshot is None else unpack(snapshot.state)


@pytest.mark.req("DUR-07")
def test_one_is_written_after_so_many_events_of_a_partition(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with seated(data, snapshot_every=10, now_ms=lambda: 4711) as seat:
        caller = seat.front.connect()
        seen = []
        for number in range(25):
            caller.submit(candidate(["p"], push(f"n{number}")), candidate(["other"], push(f"n{number}")))
            caller.submit(candidate(["p"], push(f"n{number}")))  # refused: does not count
            snapshot = stored(data, "p")
            seen.append(snapshot.committed_id if snapshot else 0)
        assert seen == [0] * 9 + [20] * 10 + [40] * 6
    assert snapshot is not None
    assert (snapshot.partition, snapshot.model_version, snapshot.created_at) == ("p", NO_MODEL_VERSION, 4711)
    with reading(data) as log:
        assert log.head() == 50
    items = state_of(data, "p")["tree"]["explorer"]["items"]
    assert sorted(items) == sorted(f"n{number}" for number in range(20))


def test_events_before_a_restart_count_too(tmp_path: Path) -> None:
    for round_ in range(4):
        with seated(tmp_path / "data", snapshot_every=10) as seat:
            caller = seat.front.connect()
            for number in range(3):
                caller.submit(candidate(["p"], push(f"{round_}-{number}")))
    snapshot = stored(tmp_path / "data", "p")
    assert snapshot is not None
    assert snapshot.committed_id == 10


@pytest.mark.req("DUR-07", "TREE-11")
def test_a_load_starts_from_it_and_reads_only_what_came_after(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with seated(data, SAMPLE, snapshot_every=10) as seat:
        caller = seat.front.connect()
        for number in range(25):
            caller.submit(candidate(["p"], push(f"n{number}")))
            caller.submit(candidate(["p"], note("note.added", id=f"n{number}", text="")), profile=CANONICAL)
    pruned = Path(shutil.copytree(data, tmp_path / "pruned"))
    connection = apsw.Connection(str(pruned / "log.db"))
    for table in ("events", "event_partitions"):
        connection.execute(f"DELETE FROM {table} WHERE committed_id <= 50")
    connection.close()
    for place in (data, pruned):  # in the second, what the snapshot holds is nowhere else
        with seated_on(CountingLog.open(place), SAMPLE) as seat:
            caller = seat.front.connect()
            known = [candidate(["p"], push(id)) for id in ("n0", "n24")]
            assert [r.status for r in caller.submit(*known)] == ["rejected", "rejected"]
            known = [candidate(["p"], note("note.added", id=id, text="")) for id in ("n0", "n24")]
            assert [r.status for r in caller.submit(*known, profile=CANONICAL)] == ["rejected", "rejected"]
            assert seat.store.records_read == 0
            assert caller.submit(candidate(["p"], push("new", parent="n0")))[0].status == "committed"
    with seated_on(CountingLog.open(pruned), SAMPLE) as seat:
        assert seat.command("snapshot", "p")[0]
        assert seat.store.records_read == 1
    with seated(data, SAMPLE) as seat:
        seat.command("snapshot", "p")
    with reading(data) as log:
        assert state_of(pruned, "p", 1) == state_of(data, "p", 1) == replay(log, ["p"], SAMPLE)["p"]


def versioned(tmp_path: Path, version: int) -> Model:
    """The sample model under another version."""
    place = tmp_path / f"model{version}"
    shutil.copytree(sample_model(), place, dirs_exist_ok=True)
    manifest = place / "model.toml"
    manifest.write_text(manifest.read_text().replace("model_version = 1", f"model_version = {version}"))
    return load_model(place)


@pytest.mark.req("DUR-07", "MODEL-03")
def test_one_of_another_model_version_is_not_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with seated(data, SAMPLE) as seat:
        seat.front.connect().submit(candidate(["p"], push("a")))
        lie = b'{"tree":{"explorer":{"items":{"z":{}},"tree":[{"id":"z","children":[]}]}},"data":{}}'
        lies = [Snapshot("p", 1, version, lie, 0, SAMPLE.digest if version else "") for version in (0, 1, 3)]
    log = CountingLog.open(data)
    log.put_snapshots(lies)
    with seated_on(log, versioned(tmp_path, 2)) as seat:
        caller = seat.front.connect()
        items = [candidate(["p"], push(id)) for id in "az"]
        assert [result.status for result in caller.submit(*items)] == ["rejected", "committed"]
        ok, answer = seat.command("snapshot", "p")
        assert (ok, answer["committed_id"], answer["model_version"]) == (True, 2, 2)
        assert seat.store.records_read == 1
    assert state_of(data, "p", 1) == unpack(lie), "it stays where it is"
    with seated(data, SAMPLE) as seat:  # under which it is believed
        items = [candidate(["p"], push(id)) for id in "zb"]
        assert [r.status for r in seat.front.connect().submit(*items)] == ["rejected", "committed"]


@pytest.mark.req("TREE-12", "DUR-07")
@pytest.mark.parametrize("depth", [100, 490, 3_000])
def test_a_deep_tree_is_written_and_read_again(tmp_path: Path, depth: int) -> None:
    data = tmp_path / "data"
    parents = ["_root", *(f"n{number}" for number in range(depth - 1))]
    with seated(data, snapshot_every=depth // 2) as seat:
        caller = seat.front.connect()
        for start in range(0, depth, 500):
            chain = enumerate(parents[start : start + 500], start)
            made = [candidate(["p"], push(f"n{n}", parent=parent)) for n, parent in chain]
            assert {result.status for result in caller.submit(*made)} == {"committed"}
        caller.submit(candidate(["p"], put("explorer.items.n0.far", {"à": [1e20, 0.1, None, True]})))
        ok, answer = seat.command("snapshot", "p")
        assert (ok, answer["committed_id"]) == (True, depth + 1)
    with seated_on(CountingLog.open(data)) as seat:
        caller = seat.front.connect()
        below = candidate(["p"], push("last", parent=f"n{depth - 1}"))
        assert caller.submit(below, below)[0].status == "committed"
        cycle = {"id": "n0", "parent": "last"}
        moved = candidate(["p"], {"type": "treeMove", "payload": {"target": "explorer", "options": cycle}})
        assert caller.submit(moved)[0].status == "rejected"
        assert seat.store.records_read == 0
        assert seat.command("snapshot", "p")[0]
    with reading(data) as log:
        assert same(state_of(data, "p"), replay(log, ["p"])["p"])


def test_a_heavy_state_is_written_by_order_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with seated(data, snapshot_every=1) as seat:
        caller = seat.front.connect()
        caller.submit(candidate(["p"], put("x", "small")))
        assert stored(data, "p") is not None
        caller.submit(candidate(["p"], put("x", "x" * SNAPSHOT_WEIGHT_MAX)))
        kept = stored(data, "p")
        assert kept is not None
        assert kept.committed_id == 1, "nobody is kept waiting for it"
        ok, answer = seat.command("snapshot", "p")
        assert ok
        assert answer["bytes"] > SNAPSHOT_WEIGHT_MAX
        assert state_of(data, "p")["tree"] == {"x": "x" * SNAPSHOT_WEIGHT_MAX}


def test_an_order_loads_a_long_partition_while_others_commit(tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = CountingLog.open(data)
    grow(log, "long", 8_000)
    with seated_on(log) as seat:
        busy = seat.front.connect()
        seat.node.send(AdminCommand(1, "snapshot", "long"))
        commits = 0
        while not any(isinstance(message, CommandResult) for message in seat.node.received):
            busy.submit(candidate(["busy"], put("x", commits)))
            commits += 1
            seat.stats()  # reads what was sent to the node
        assert commits >= 10
        assert len([m for m in seat.front.received if isinstance(m, BatchOutcome)]) == commits
    with reading(data) as reader:
        assert state_of(data, "long") == replay(reader, ["long"])["long"]


@pytest.mark.req("DUR-07")
def test_one_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    with seated(data) as seat:
        caller = seat.front.connect()
        caller.submit(candidate(["p"], push("a")))
        assert seat.command("snapshot", "p")[0]
        caller.submit(candidate(["p"], push("b")))
    connection = apsw.Connection(str(data / "log.db"))
    for damage in (
        b"not JSON",
        b"[1,2]",
        b'{"tree":{},"data":[]}',
        b'{"tree":{"t":{"items":{},"tree":[1]}},"data":{}}',
    ):
        connection.execute("UPDATE snapshots SET state = ?", (damage,))
        with seated(data) as seat:
            caller = seat.front.connect()
            known = [candidate(["p"], push(id)) for id in ("a", "b")]
            assert [r.status for r in caller.submit(*known)] == ["rejected", "rejected"]
        assert "cannot be decoded" in caplog.text
        caplog.clear()
    connection.close()


@pytest.mark.req("TREE-12")
def test_a_large_one_is_written_and_read_while_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.authority.states.load.SNAPSHOT_BYTES_AT_ONCE", 10)
    data = tmp_path / "data"
    with seated(data) as seat:
        caller = seat.front.connect()
        parents = ["_root", *(f"n{number}" for number in range(299))]
        for number, parent in enumerate(parents):  # far deeper than an encoder of JSON follows
            assert caller.submit(candidate(["p"], push(f"n{number}", parent=parent)))[0].status == "committed"
        assert seat.command("snapshot", "p")[0]
        assert caller.submit(candidate(["p"], push("more")))[0].status == "committed"
    with seated_on(CountingLog.open(data)) as seat:
        caller = seat.front.connect()
        assert caller.submit(candidate(["q"], push("other")))[0].status == "committed"
        assert caller.submit(candidate(["p"], push("n299")))[0].status == "rejected"
        assert seat.store.records_read == 1
