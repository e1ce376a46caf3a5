"""History after snapshots: every event that is needed, once, in order, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.behaviour.server.planting import history, plant, record, snapshot_of
from unisono.ipc.page_messages import AskPage, SnapshotStart
from unisono.model.pack import pack, unpack
from unisono.reader.read_page import read_page
from unisono.reader.snapshot_start import is_sound, starting_snapshots
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite.log import SqliteReader
from unisono.vocabulary import Json, JsonObject

PARTITIONS = ("a", "b", "c", "d", "e")
EVENTS = 120
RECORDS = history(Random(7), PARTITIONS, EVENTS)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteReader]:
    directory = tmp_path_factory.mktemp("log")
    plant(directory, RECORDS)
    opened = SqliteReader.open(directory)
    yield opened
    opened.close()


def needed(asked: tuple[str, ...], snapshot_starts: dict[str, int], since: int, upto: int) -> list[Record]:
    """SYNC-12 in one line."""
    return [
        each
        for each in RECORDS
        if since < each.committed_id <= upto
        and any(
            name in asked and each.committed_id > snapshot_starts.get(name, 0) for name in each.partitions
        )
    ]


ids = st.integers(0, EVENTS + 3)


@pytest.mark.req("SYNC-12", "SYNC-01", "SYNC-03")
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    asked=st.sets(st.sampled_from((*PARTITIONS, "unknown")), min_size=1).map(
        lambda names: tuple(sorted(names))
    ),
    snapshot_starts=st.dictionaries(st.sampled_from(PARTITIONS), ids),
    since=ids,
    upto=st.integers(0, EVENTS),
    limit=st.integers(1, 30),
    bytes_max=st.integers(1, 3000),
)
def test_pages_hold_what_is_after_the_snapshots(
    reader: SqliteReader,
    asked: tuple[str, ...],
    snapshot_starts: dict[str, int],
    since: int,
    upto: int,
    limit: int,
    bytes_max: int,
) -> None:
    due = needed(asked, snapshot_starts, since, upto)
    got: list[Record] = []
    more = True
    while more:
        page = reader.page(
            asked, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
        )
        assert len(page.records) <= limit
        assert len(page.records) <= 1 or sum(len(each.event) for each in page.records) <= bytes_max
        got += page.records
        more = page.has_more
        assert page.records or not more, "a page with more to come moves on"
        since = page.records[-1].committed_id if page.records else since
        assert more == (len(got) < len(due))
    assert got == due


# -- which snapshots -----------------------------------------------------------------------------------------


def chosen(directory: Path, upto: int = EVENTS, bytes_max: int = 10**6, version: int = 0) -> dict[str, int]:
    opened = SqliteReader.open(directory)
    try:
        found = starting_snapshots(opened, PARTITIONS, version, upto, bytes_max)
    finally:
        opened.close()
    return {each.partition: each.committed_id for each in found}


@pytest.mark.req("SYNC-12", "DUR-07")
def test_snapshots_of_the_model_up_to_the_watermark(tmp_path: Path) -> None:
    snapshots = [
        snapshot_of(RECORDS, "a", 50),
        snapshot_of(RECORDS, "b", 90),
        snapshot_of(RECORDS, "c", 60, version=3),
        snapshot_of(RECORDS, "d", 0),
    ]
    plant(tmp_path, RECORDS, snapshots)
    assert chosen(tmp_path) == {"a": 50, "b": 90}
    assert chosen(tmp_path, upto=90) == {"a": 50, "b": 90}
    assert chosen(tmp_path, upto=89) == {"a": 50}, "one above the watermark is of another time"
    assert chosen(tmp_path, version=3) == {"c": 60}
    assert chosen(tmp_path, version=4) == {}


def of_size(partition: str, size: int) -> Snapshot:
    empty = len(pack({"tree": {"x": ""}, "data": {}}))
    state = pack({"tree": {"x": "y" * (size - empty)}, "data": {}})
    assert len(state) == size
    return Snapshot(partition, 10, 0, state, 1)


@pytest.mark.req("SYNC-12", "LIM-05")
def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    plant(tmp_path, RECORDS, [of_size("a", 400), of_size("b", 700), of_size("c", 500), of_size("d", 101)])
    assert set(chosen(tmp_path, bytes_max=1000)) == {"a", "c"}
    assert set(chosen(tmp_path, bytes_max=1001)) == {"a", "c", "d"}
    assert set(chosen(tmp_path, bytes_max=399)) == {"d"}
    assert set(chosen(tmp_path, bytes_max=0)) == set()
    plant(tmp_path, [], [of_size(name, 900) for name in PARTITIONS[:4]] + [of_size("e", 100)])
    assert set(chosen(tmp_path, bytes_max=500)) == {"e"}, "what does not fit is not in the way of what does"


@pytest.mark.parametrize(
    ("state", "good"),
    [
        (pack({"tree": {}, "data": {}}), True),
        ("{\"tree\":{\"ü\":\"\\u2028\"},\"data\":{}}".encode(), True),
        (b"", False), (b"null", False), (b"7", False), (b'"text"', False),
        (b'{"tree":', False), (b'{"tree":{}}}', False), (b'{"tree":{}} {}', False), (b"{'tree':{}}", False),
        (b'{"tree":nul}', False), (b'{"tree":"\xff"}', False), (b"\x00\x01", False),
        (b"{}]" + b"[" * 64 + b"{}", False),
    ],
)  # fmt: skip
def test_only_json_is_put_into_a_message(state: bytes, good: bool) -> None:
    assert is_sound(state) is good


@pytest.mark.req("SYNC-12", "TREE-12")
def test_states_of_any_depth() -> None:
    for levels in (10, 300, 900, 1000, 1100, 20_000):
        deep: Json = {}
        for _ in range(levels):
            deep = {"a": deep}
        state: JsonObject = {"tree": {"deep": deep}, "data": {}}
        packed = pack(state)
        if is_sound(packed):
            message = b'{"payload":{"snapshots":[{"state":' + packed + b"}]}}"
            assert is_sound(message)
            assert pack(unpack(packed)) == packed
        else:
            assert 850 < levels < 1100, "only those that an encoder just manages"


@pytest.mark.req("SYNC-12")
def test_snapshots_and_events_share_the_room_of_a_response(tmp_path: Path) -> None:
    records = [
        record(n, ["a"], {"type": "set", "payload": {"target": "k", "value": "x" * 200}})
        for n in range(1, 41)
    ]
    plant(tmp_path, records, [Snapshot("a", 10, 0, of_size("a", 3000).state, 1)])
    opened = SqliteReader.open(tmp_path)
    ask = AskPage(1, ("a", "b"), 0, 40, 100, 100_000, {}, SnapshotStart(None, 5000, 5000))
    page = read_page(opened, ask)
    (snapshot,) = page.snapshots
    assert snapshot.startswith(b'{"partition":"a","committed_id":10,"model_version":null,"state":{"tree"')
    assert page.snapshot_starts == {"a": 10}
    size = sum(len(each.event) for each in records[10 : 10 + page.count])
    assert 0 < size <= 5000 - len(snapshot)
    assert page.has_more
    assert page.last == 10 + page.count
    rest = read_page(opened, AskPage(2, ("a", "b"), page.last, 40, 100, 100_000, page.snapshot_starts))
    assert (rest.count, rest.has_more, rest.snapshots) == (30 - page.count, False, ())
    opened.close()


@pytest.mark.req("SYNC-12")
def test_a_page_after_large_snapshots_still_moves_on(tmp_path: Path) -> None:
    plant(tmp_path, RECORDS, [Snapshot("a", 1, 0, of_size("a", 3000).state, 1)])
    opened = SqliteReader.open(tmp_path)
    page = read_page(
        opened, AskPage(1, PARTITIONS, 0, EVENTS, 100, 100_000, {}, SnapshotStart(None, 3000, 3000))
    )
    opened.close()
    assert len(page.snapshots) == 1
    assert (page.count, page.has_more) == (1, True)
