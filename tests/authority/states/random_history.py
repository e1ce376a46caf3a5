"""Long random histories through a real authority: its states, the log's replay and the oracle agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def one_life(data: Path, count: int) -> None:
    """`count` actions in one life of the authority, then some in a second one."""
    history = History(1, PARTITIONS)
    with seated(data) as seat:
        run(seat, history, count, batch=200)
        check(seat, data, history)
    assert 0.3 * count < history.accepted < 0.7 * count
    with seated(data) as seat:  # every state is loaded from the log alone, those of the orders aside
        run(seat, history, 1_000, batch=50)
        check(seat, data, history)


def eight_lives(data: Path, count: int, snapshot_every: int) -> None:
    """`count` actions over eight lives of the authority."""
    history = History(2, PARTITIONS)
    for _ in range(8):
        with seated(data, snapshot_every=snapshot_every) as seat:
            run(seat, history, count // 8, batch=100)
    with seated(data) as seat:
        check(seat, data, history)


def nothing_in_memory(data: Path, count: int, snapshot_every: int) -> None:
    """`count` actions with room for one state: the others are loaded again and again."""
    history = History(3, PARTITIONS)
    with seated(data, states_bytes=1, snapshot_every=snapshot_every) as seat:
        run(seat, history, count, batch=40)
        figures = seat.stats()
        assert figures.gauges["states_resident"] == 1
        assert figures.counters["states_evicted"] > count / 40
        check(seat, data, history)
