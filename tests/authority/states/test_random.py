"""Long random histories through a real authority: its states, the log's replay and the oracle agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.authority.history import History, Verdict, replay
from tests.authority.seat import Seat, reading, seated
from unisono.model.pack import unpack
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.sqlite.log import SqliteLog

PARTITIONS = "abcdefgh"


def run(seat: Seat[SqliteLog], history: History, count: int, batch: int) -> None:
    """Submit what comes next in the history; the next batch is made while the authority judges the last."""
    caller = seat.front.connect()
    waiting: list[Verdict] = []

    def compare() -> None:
        for verdict, result in zip(waiting, caller.results() if waiting else (), strict=True):
            verdict.check(result)

    while count:
        verdicts = history.next(min(batch, count))
        compare()
        caller.send(*(verdict.item for verdict in verdicts))
        waiting, count = verdicts, count - len(verdicts)
    compare()
    assert seat.front.head() == history.accepted


def dumps(seat: Seat[SqliteLog], data: Path, partitions: Sequence[str]) -> dict[str, Any]:
    """The authority's states, by order of a snapshot of each."""
    for name in partitions:
        ok, answer = seat.command("snapshot", name)
        assert ok, answer
    with reading(data) as log:
        found = {name: log.snapshot(name, NO_MODEL_VERSION) for name in partitions}
    return {name: unpack(one.state) for name, one in found.items() if one is not None}


def check(seat: Seat[SqliteLog], data: Path, history: History) -> None:
    states = dumps(seat, data, PARTITIONS)
    history.check_states(states)
    with reading(data) as log:
        assert states == replay(log, PARTITIONS)


@pytest.mark.timeout(300)
@pytest.mark.req("VAL-01", "VAL-04", "VAL-05", "TREE-09", "TREE-10", "TREE-11", "SUBMIT-02")
def test_a_hundred_thousand_actions(tmp_path: Path) -> None:
    data, history = tmp_path / "data", History(1, PARTITIONS)
    with seated(data) as seat:
        run(seat, history, 100_000, batch=200)
        check(seat, data, history)
    assert 30_000 < history.accepted < 70_000
    with seated(data) as seat:  # every state is loaded from the log alone, those of the orders aside
        run(seat, history, 1_000, batch=50)
        check(seat, data, history)


@pytest.mark.req("TREE-11", "DUR-02", "DUR-07")
@pytest.mark.parametrize("snapshot_every", [0, 100])
def test_twenty_thousand_actions_over_restarts(tmp_path: Path, snapshot_every: int) -> None:
    data, history = tmp_path / "data", History(2, PARTITIONS)
    for _ in range(8):
        with seated(data, snapshot_every=snapshot_every) as seat:
            run(seat, history, 2_500, batch=100)
    with seated(data) as seat:
        check(seat, data, history)


@pytest.mark.req("TREE-11", "DUR-07", "LIM-05")
@pytest.mark.parametrize(("snapshot_every", "count"), [(0, 4_000), (50, 20_000)])
def test_thousands_of_actions_with_nothing_kept_in_memory(
    tmp_path: Path, snapshot_every: int, count: int
) -> None:
    data, history = tmp_path / "data", History(3, PARTITIONS)
    with seated(data, states_bytes=1, snapshot_every=snapshot_every) as seat:
        run(seat, history, count, batch=40)
        figures = seat.stats()
        assert figures.gauges["states_resident"] == 1
        assert figures.counters["states_evicted"] > count / 40
        check(seat, data, history)
