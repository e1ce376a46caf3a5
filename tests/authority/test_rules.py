"""An operator's rules at work in a running authority: they may fail or be slow, and nothing stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authority.models import counting_model
from tests.authority.seat import Seat, candidate, note, push, reading, seated
from unisono.model.load import load_model
from unisono.model.model import CANONICAL
from unisono.model.pack import unpack
from unisono.store.sqlite.log import SqliteLog

SCHEMA = "event.payload.schema"


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat[SqliteLog]]:
    with seated(tmp_path / "data", counting_model(tmp_path / "model", 1)) as seat:
        yield seat


def data_of(seat: Seat[SqliteLog], tmp_path: Path, partition: str) -> Any:
    assert seat.command("snapshot", partition)[0]
    with reading(tmp_path / "data") as log:
        snapshot = log.snapshot(partition, 1, load_model(tmp_path / "model").digest)
    assert snapshot is not None
    return unpack(snapshot.state)["data"]


@pytest.mark.req("VAL-01", "VAL-03", "ERR-03")
@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        ("check.raises", "broken_check"),
        ("check.exits", "leaving_check"),
        ("reduce.raises", "broken_reducer"),
    ],
)
def test_a_rule_that_raises_refuses_its_event_and_nothing_else(
    seat: Seat[SqliteLog], tmp_path: Path, schema: str, rule: str
) -> None:
    caller = seat.front.connect()
    results = caller.submit(
        candidate(["p"], note("counted")),
        candidate(["p"], note(schema)),
        candidate(["p"], note("counted")),
        profile=CANONICAL,
    )
    assert [result.status for result in results] == ["committed", "rejected", "committed"]
    assert results[1].reason == "validation_failed"
    assert results[1].errors is not None
    assert [error.field for error in results[1].errors] == [SCHEMA]
    assert rule in results[1].errors[0].message
    assert "half done" not in results[1].errors[0].message, "ERR-02: nothing from inside"
    assert data_of(seat, tmp_path, "p") == {"count": 2}
    assert seat.stats().counters[f"rules_failed|{schema}/{rule}"] == 1
    assert seat.front.head() == 2


@pytest.mark.req("TREE-09", "VAL-03")
def test_a_reducer_that_raises_in_one_partition_changes_none(seat: Seat[SqliteLog], tmp_path: Path) -> None:
    caller = seat.front.connect()
    later = note("reduce.raises.later")
    caller.submit(candidate(["q"], note("counted")), profile=CANONICAL)
    results = caller.submit(
        candidate(["p", "q"], later),
        candidate(["p", "q", "r"], later),
        candidate(["r"], later),
        profile=CANONICAL,
    )
    assert [result.status for result in results] == ["rejected", "rejected", "committed"]
    states = {name: data_of(seat, tmp_path, name) for name in "pqr"}
    assert states == {"p": {}, "q": {"count": 1}, "r": {"touched": True}}


def test_a_slow_rule_is_counted(seat: Seat[SqliteLog]) -> None:
    caller = seat.front.connect()
    slow = [candidate(["p"], note("slow")) for _ in range(3)]
    assert {result.status for result in caller.submit(*slow, profile=CANONICAL)} == {"committed"}
    caller.submit(candidate(["p"], note("counted")), profile=CANONICAL)
    figures = seat.stats().counters
    assert figures["rules_slow|slow/slow_check"] == 3
    assert "rules_slow|counted/counted" not in figures


@pytest.mark.req("VAL-03", "SUBMIT-02")
def test_a_check_sees_the_items_before_its_own(seat: Seat[SqliteLog]) -> None:
    caller = seat.front.connect()
    items = [candidate(["p"], note("counted", limit=2)) for _ in range(4)]
    results = caller.submit(*items, profile=CANONICAL)
    assert [result.status for result in results] == ["committed", "committed", "rejected", "rejected"]
    assert results[2].errors is not None
    assert results[2].errors[0].field == "event.payload.data.limit"


def test_both_profiles_share_a_partition_and_do_not_see_each_other(
    seat: Seat[SqliteLog], tmp_path: Path
) -> None:
    caller = seat.front.connect()
    assert caller.submit(candidate(["p"], push("a")))[0].status == "committed"
    assert caller.submit(candidate(["p"], note("counted")), profile=CANONICAL)[0].status == "committed"
    wrong = caller.submit(candidate(["p"], push("b")), profile=CANONICAL)[0]
    assert wrong.errors is not None
    assert [error.field for error in wrong.errors] == ["event.type"]
    assert data_of(seat, tmp_path, "p") == {"count": 1}
