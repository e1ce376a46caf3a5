"""Starting from snapshots: who gets them, what comes with them, and that nothing is missed or doubled (SYNC-12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests.authority.models import write_model
from tests.behaviour.server.harness import Peer, Server, item, running, set_event
from tests.behaviour.server.planting import history, plant, record, snapshot_of, state_of
from tests.forking import run
from unisono.model.model import open_model
from unisono.model.pack import unpack
from unisono.model.partition import PartitionState
from unisono.store.port import Record, Snapshot
from unisono.vocabulary import Json

ASK: dict[str, Any] = {"snapshots": True}
RESPONSE = {
    "partitions", "effective_subscriptions", "events", "next_since_committed_id", "sync_to_committed_id",
    "has_more", "log_id", "log_epoch",
}  # fmt: skip
"""Every field of a response to whoever did not ask for snapshots, without a model version."""

WORLDS = 6
EVENTS = 150


def world(number: int) -> tuple[str, ...]:
    return tuple(f"w{number}-{name}" for name in "abcde")


def plant_worlds(directory: Path) -> tuple[list[Record], dict[str, int]]:
    """Histories side by side in one log, with snapshots at random places of some of their partitions."""
    records: list[Record] = []
    for number in range(WORLDS):
        records += history(Random(number), world(number), EVENTS, first=len(records) + 1)
    random, floors = Random(99), dict[str, int]()
    for number in range(WORLDS):
        for name in random.sample(world(number), random.randint(1, 5)):
            floors[name] = random.randint(number * EVENTS, min(len(records), (number + 2) * EVENTS)) or 1
    plant(directory, records, [snapshot_of(records, name, upto) for name, upto in floors.items()])
    return records, floors


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, list[Record], dict[str, int]]]:
    data = tmp_path_factory.mktemp("planted") / "data"
    data.mkdir()
    records, floors = plant_worlds(data)
    with running(data, "--model", "open", "--access-default", "allow", "--sync-limit-min", "5") as server:
        yield server, records, floors


class Follower:
    """A client by hand that starts from snapshots as the protocol says, and remembers what it was sent."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.model = open_model()
        self.states: dict[str, PartitionState] = {}
        self.floors: dict[str, int] = {}
        self.sent: list[int] = []

    def follow(self, partitions: Iterable[str], limit: int, **more: Any) -> None:
        names = list(partitions)
        self.states |= {name: PartitionState() for name in names}
        since, first = 0, True
        while True:
            page = self.peer.sync(names, since, limit=limit, **more if first else {})
            assert ("snapshots" in page) is first
            for snapshot in page.get("snapshots", ()):
                assert 0 < snapshot["committed_id"] <= page["sync_to_committed_id"]
                value = unpack(orjson.dumps(snapshot["state"]))
                self.states[snapshot["partition"]] = PartitionState.load(value)
                self.floors[snapshot["partition"]] = snapshot["committed_id"]
            self.take(page["events"])
            if not page["has_more"]:
                return
            since, first = page["next_since_committed_id"], False

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self.sent.append(event["committed_id"])
            for name in event["partitions"]:
                if name in self.states and event["committed_id"] > self.floors.get(name, 0):
                    self.model.apply_committed(self.states[name], event["event"])

    def dumps(self) -> dict[str, Json]:
        return {name: state.dump() for name, state in self.states.items()}


def needed(records: Iterable[Record], asked: Iterable[str], floors: dict[str, int]) -> list[int]:
    names = set(asked)
    return [
        each.committed_id
        for each in records
        if any(name in names and each.committed_id > floors.get(name, 0) for name in each.partitions)
    ]


# -- what comes ----------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-12", "SYNC-01", "SYNC-04")
@pytest.mark.parametrize("number", range(WORLDS))
def test_a_start_from_snapshots_ends_where_the_whole_history_ends(
    planted: tuple[Server, list[Record], dict[str, int]], number: int
) -> None:
    server, records, floors = planted
    names = world(number)
    due = {name: state_of(records, name).dump() for name in names}
    for limit in (5, 33, 1000):
        with server.client(f"fast-{number}", **ASK) as peer:
            fast = Follower(peer)
            fast.follow(names, limit)
            assert fast.floors == {name: floors[name] for name in names if name in floors}
            assert fast.sent == needed(records, names, floors), "what is needed, once, in order, and no more"
            assert fast.dumps() == due
    with server.client(f"whole-{number}") as peer:
        whole = peer.history(names)
        assert [event["committed_id"] for event in whole] == needed(records, names, {})


@pytest.mark.req("SYNC-12")
def test_an_event_counts_for_the_partitions_below_it_only(tmp_path: Path) -> None:
    records = [
        record(n, ["one", "two"], {"type": "set", "payload": {"target": f"k{n}", "value": n}})
        for n in range(1, 121)
    ]
    plant(tmp_path, records, [snapshot_of(records, "one", 100), snapshot_of(records, "two", 50)])
    with (
        running(tmp_path, "--access-default", "allow") as server,
        server.client("c", profile="compatibility", **ASK) as peer,
    ):
        page = peer.sync(["one", "two", "three"], limit=1000)
        assert [each["committed_id"] for each in page["events"]] == list(range(51, 121))
        assert {each["partition"]: each["committed_id"] for each in page["snapshots"]} == {
            "one": 100, "two": 50
        }  # fmt: skip
        assert {each["model_version"] for each in page["snapshots"]} == {None}
        assert [each["committed_id"] for each in peer.sync(["one"])["events"]] == list(range(101, 121))
        assert [each["committed_id"] for each in peer.sync(["one"], 60)["events"]] == list(range(61, 121))


@pytest.mark.req("SYNC-12", "SYNC-05", "SYNC-06", "SYNC-09")
def test_the_seam_to_live_events_is_where_it_was(
    planted: tuple[Server, list[Record], dict[str, int]], part: str
) -> None:
    """Events committed while the pages are fetched come by broadcast, those of added partitions by pages."""
    server, _, _ = planted
    with server.client("writer") as writer, server.client("reader", **ASK) as peer:
        for start in range(0, 200, 100):
            writer.submit(*(item([part], set_event(f"k{n}", n)) for n in range(start, start + 100)))
        at = order_snapshot(server, part)
        late = [writer.commit([part], set_event(f"late{n}", n)) for n in range(12)]
        page = peer.sync([part], limit=5, subscription_partitions=[part])
        assert page["snapshots"][0]["committed_id"] == at
        assert (page["sync_to_committed_id"], page["has_more"]) == (late[-1], True)
        live = [writer.commit([part], set_event(f"live{n}", n)) for n in range(3)]
        assert [peer.expect("event_broadcast")["committed_id"] for _ in live] == live
        seen = [event["committed_id"] for event in page["events"]]
        while page["has_more"]:
            page = peer.sync([part], page["next_since_committed_id"], limit=5)
            assert page["sync_to_committed_id"] == late[-1]
            assert "snapshots" not in page
            seen += [event["committed_id"] for event in page["events"]]
        assert seen == late
        other = writer.commit([f"{part}-other"], set_event("a", 1))
        added = peer.sync([f"{part}-other"], subscription_partitions=[part, f"{part}-other"])
        assert added["snapshots"] == []
        assert [event["committed_id"] for event in added["events"]] == [other]
        assert added["effective_subscriptions"] == sorted([part, f"{part}-other"])


def order_snapshot(server: Server, partition: str) -> int:
    """`unisono snapshot`, and the id it stands at."""
    told = run("snapshot", "--data", server.data, "--partition", partition)
    return int(told.stdout.split("state at ")[1].split(",")[0])


@pytest.mark.req("SYNC-12", "SYNC-06")
def test_a_partition_subscribed_in_the_middle_of_a_cycle(
    planted: tuple[Server, list[Record], dict[str, int]], part: str
) -> None:
    """It starts a new cycle, which has no floors: what a client has beyond its cursor comes again, and is left."""
    server, _, _ = planted
    with server.client("writer-2") as writer, server.client("reader-2", **ASK) as peer:
        ids = [
            result["committed_id"]
            for _ in range(2)
            for result in writer.submit(*(item([part], set_event("k", n)) for n in range(30)))
        ]
        at = order_snapshot(server, part)
        ids += [writer.commit([part], set_event("k", n)) for n in range(20)]
        page = peer.sync([part], limit=5, subscription_partitions=[part])
        assert (page["snapshots"][0]["committed_id"], page["has_more"]) == (at, True)
        since = page["next_since_committed_id"]
        both = [part, f"{part}-more"]
        again = peer.sync([part], since, limit=1000, subscription_partitions=both)
        assert "snapshots" not in again
        assert [each["committed_id"] for each in again["events"]] == [id for id in ids if id > since]


# -- who gets them -------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-12", "ENV-03")
def test_whoever_does_not_ask_gets_what_everybody_got_before(
    planted: tuple[Server, list[Record], dict[str, int]],
) -> None:
    server, records, _ = planted
    name = world(0)
    for more in ({}, {"snapshots": None}, {"snapshots": False}):
        with server.peer() as peer:
            told = peer.connect("plain", server.token("plain"), supported_profiles=["compatibility"], **more)
            assert "snapshots" not in told["capabilities"]
            for ask in ({}, {"snapshots": True}, {"snapshots": False}, {"snapshots": None}):
                page = peer.sync(name, limit=1000, **ask)
                assert set(page) == RESPONSE
                assert [each["committed_id"] for each in page["events"]] == needed(records, name, {})
    with server.peer() as peer:
        told = peer.connect("asks", server.token("asks"), supported_profiles=["compatibility"], **ASK)
        assert told["capabilities"]["snapshots"] is True
        assert set(peer.sync(name)) == RESPONSE | {"snapshots"}
        assert set(peer.sync(name, snapshots=None)) == RESPONSE | {"snapshots"}
        whole = peer.sync(name, limit=1000, snapshots=False)
        assert set(whole) == RESPONSE
        assert [each["committed_id"] for each in whole["events"]] == needed(records, name, {})


@pytest.mark.req("SYNC-12", "ENV-02")
@pytest.mark.parametrize("value", ["true", 1, [], {}, 0.5])
def test_another_type_is_a_bad_request_as_with_every_field(server: Server, who: str, value: Any) -> None:
    with server.peer() as peer:
        peer.send("connect", {"token": server.token(who), "client_id": who, "snapshots": value})
        assert "snapshots" in peer.expect_error("bad_request")["message"]
        peer.connect(who, server.token(who), supported_profiles=["compatibility"], **ASK)
        peer.send("sync", {"partitions": ["p"], "since_committed_id": 0, "snapshots": value})
        peer.expect_error("bad_request")
        assert peer.sync([f"{who}-empty"])["snapshots"] == []


@pytest.mark.req("SYNC-12", "AUTHZ-04")
def test_snapshots_are_for_those_who_may_sync(tmp_path: Path) -> None:
    records = history(Random(3), ["mine", "theirs"], 30)
    plant(tmp_path, records, [snapshot_of(records, name, 20) for name in ("mine", "theirs")])
    with running(tmp_path) as server, server.peer() as peer:
        token = server.token("c", partitions=["mine"])
        peer.connect("c", token, supported_profiles=["compatibility"], **ASK)
        peer.send("sync", {"partitions": ["mine", "theirs"], "since_committed_id": 0})
        refusal = peer.expect_error("forbidden")
        assert "snapshots" not in refusal
        assert [each["partition"] for each in peer.sync(["mine"])["snapshots"]] == ["mine"]


# -- bounds, damage, models ----------------------------------------------------------------------------------


@pytest.mark.req("SYNC-12", "LIM-05")
def test_the_bound_of_a_response(tmp_path: Path) -> None:
    def grown(partition: str, size: int, first: int) -> Record:
        event = {"type": "set", "payload": {"target": "text", "value": "x" * size}}
        return record(first, [partition], event)

    records = [
        grown("large", 100_000, 1),
        grown("small", 1000, 2),
        grown("large", 10, 3),
        grown("small", 10, 4),
    ]
    plant(tmp_path, records, [snapshot_of(records, "large", 1), snapshot_of(records, "small", 2)])

    def started(*options: str) -> tuple[list[str], list[int]] | None:
        with (
            running(tmp_path, "--access-default", "allow", *options) as server,
            server.client("c", **ASK) as peer,
        ):
            page = peer.sync(["large", "small"])
            if "snapshots" not in page:
                return None
            names = [each["partition"] for each in page["snapshots"]]
            return names, [each["committed_id"] for each in page["events"]]

    assert started() == (["large", "small"], [3, 4])
    assert started("--max-sync-snapshot-bytes", "50000") == (["small"], [1, 3, 4])
    narrow = (
        "--max-send-buffer-bytes", "150000", "--max-message-bytes", "1024", "--max-subscriptions", "8",
    )  # fmt: skip
    assert started(*narrow) == (["small"], [1]), "half of it, events and all"
    assert started("--max-sync-snapshot-bytes", "0") is None


@pytest.mark.req("SYNC-12", "ERR-03")
def test_a_damaged_snapshot_is_not_sent(tmp_path: Path) -> None:
    records = history(Random(5), ["a", "b"], 40)
    damaged = Snapshot("a", 30, 0, snapshot_of(records, "a", 30).state[:-5], 1)
    plant(tmp_path, records, [damaged, snapshot_of(records, "b", 20)])
    with running(tmp_path, "--access-default", "allow") as server, server.client("c", **ASK) as peer:
        follower = Follower(peer)
        follower.follow(["a", "b"], 1000)
        assert follower.floors == {"b": 20}
        assert follower.dumps() == {name: state_of(records, name).dump() for name in ("a", "b")}
        assert "snapshot of 'a' at 30 is damaged" in server.log.read_text()
        assert server.metric("unisono_sync_snapshots_total") == 1
        assert server.metric("unisono_sync_snapshot_bytes_total") > 0


@pytest.mark.req("SYNC-12", "DUR-07", "MODEL-03")
def test_only_snapshots_of_the_model_in_force(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", 3)
    with (
        running(tmp_path / "data", "--access-default", "allow", "--model", str(model)) as server,
        server.client("w", profile="canonical") as writer,
        server.client("r", profile="canonical", **ASK) as reader,
    ):
        added = {"type": "event", "payload": {"schema": "counted", "data": {}}}
        writer.submit(*(item(["p"], added) for _ in range(10)))
        at = order_snapshot(server, "p")
        after = writer.commit(["p"], added)
        page = reader.sync(["p"])
        (snapshot,) = page["snapshots"]
        assert (snapshot["committed_id"], snapshot["model_version"]) == (at, 3)
        assert snapshot["state"] == {"tree": {}, "data": {"count": 30}}
        assert [event["committed_id"] for event in page["events"]] == [after]
        write_model(tmp_path / "model", 4)
        run("model", "reload", "--data", server.data).check_returncode()
        assert reader.expect("version_changed")["new_model_version"] == 4
        page = reader.sync(["p"])
        assert page["snapshots"] == [], "none of the old version"
        assert len(page["events"]) == 11
        order_snapshot(server, "p")
        (snapshot,) = reader.sync(["p"])["snapshots"]
        assert (snapshot["committed_id"], snapshot["model_version"]) == (after, 4)
        assert snapshot["state"] == {"tree": {}, "data": {"count": 44}}
