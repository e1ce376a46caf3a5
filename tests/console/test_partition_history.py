"""The past of a partition: every moment is the fold up to it, and the named events are those that changed a value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.records import make_record
from unisono.console import partition_history
from unisono.console.metric_history import quantile
from unisono.console.partition_history import CHANGES_SHOWN, HistoryTooLarge, PartitionHistory
from unisono.model.model import Model, open_model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite.log import SqliteLog

MODEL = open_model()

actions = st.lists(
    st.tuples(st.sampled_from(["a.x", "a.y", "b"]), st.integers(0, 2) | st.none()), min_size=1, max_size=25
)


def event(target: str, value: int | None) -> dict[str, Any]:
    if value is None:
        return {"type": "unset", "payload": {"target": target}}
    return {"type": "set", "payload": {"target": target, "value": value, "options": {"replace": True}}}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    opened = SqliteLog.open(tmp_path)
    yield opened
    opened.close()


def fold(model: Model, events: list[dict[str, Any]]) -> Any:
    state = PartitionState()
    for each in events:
        model.apply_committed(state, each)
    return state.dump()


def commit(log: SqliteLog, group: list[Record]) -> None:
    log.begin([])
    log.commit(group)


def records(events: list[dict[str, Any]], partition: str, first: int) -> list[Record]:
    return [
        make_record(first + number, (partition,), event=json.dumps(each).encode())
        for number, each in enumerate(events)
    ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(actions, st.data())
def test_every_moment_is_the_fold_up_to_it(log: SqliteLog, chosen: list[Any], data: st.DataObject) -> None:
    events = [event(*each) for each in chosen]
    first = log.head() + 1
    partition = f"p{first}"
    commit(log, records(events, partition, first))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_history, "CHECKPOINT_EVENTS", 3)
        history = PartitionHistory(partition, MODEL, None)
        history.read(log)
        history._copy_s = -1.0
        history.state(log.head())
    for count in data.draw(st.permutations(range(len(events) + 1))):
        state, _ = history.state(first + count - 1)
        assert state == fold(MODEL, events[:count]), count


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(actions, st.sampled_from([("tree", "a", "x"), ("tree", "a"), ("tree", "b"), ("tree",)]))
def test_the_changes_of_a_value_are_the_events_that_changed_it(
    log: SqliteLog, chosen: list[Any], path: tuple[str, ...]
) -> None:
    events = [event(*each) for each in chosen]
    first = log.head() + 1
    partition = f"p{first}"
    commit(log, records(events, partition, first))
    history = PartitionHistory(partition, MODEL, None)
    history.read(log)

    def value(count: int) -> Any:
        found: Any = fold(MODEL, events[:count])
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return found

    expected = [first + at for at in range(len(events)) if value(at) != value(at + 1)]
    found = history.changes(log.head(), path)
    assert found.value == value(len(events))
    shown = [each.event["committed_id"] for each in found.changes]
    assert shown == [id for id in expected[::-1] if id > found.looked_after]
    assert len(shown) >= min(len(expected), CHANGES_SHOWN)


def test_a_history_that_starts_at_a_snapshot_says_so(log: SqliteLog) -> None:
    events = [event("a.x", number) for number in range(10)]
    commit(log, records(events, "p", 1))
    snapshot = Snapshot("p", 4, 0, pack(fold(MODEL, events[:4])), 0)
    history = PartitionHistory("p", MODEL, snapshot)
    history.read(log)
    assert history.start == 4
    assert [record.committed_id for record in history.records] == [5, 6, 7, 8, 9, 10]
    assert history.state(7)[0] == fold(MODEL, events[:7])
    commit(log, records([event("a.y", 1)], "p", 11))
    history.read(log)
    assert history.state(11)[0] == fold(MODEL, [*events, event("a.y", 1)])


def test_a_long_history_is_refused_and_checkpoints_are_bounded(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [event("a.x", number) for number in range(40)]
    commit(log, records(events, "p", 1))
    monkeypatch.setattr(partition_history, "CHECKPOINT_BYTES_MAX", 200)
    monkeypatch.setattr(partition_history, "CHECKPOINT_EVENTS", 2)
    monkeypatch.setattr(partition_history, "monotonic", lambda: 0.0)
    history = PartitionHistory("p", MODEL, None)
    history.read(log)
    assert history.state(40)[0] == fold(MODEL, events)
    assert sum(map(len, history._checkpoints.values())) <= 200
    assert history.state(17)[0] == fold(MODEL, events[:17])
    monkeypatch.setattr(partition_history, "EVENTS_MAX", 39)
    with pytest.raises(HistoryTooLarge):
        PartitionHistory("p", MODEL, None).read(log)


def test_changes_of_a_value_are_searched_from_the_newest_within_a_time(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [event("a.x", 0), *(event("a.y", number) for number in range(600))]
    commit(log, records(events, "p", 1))
    history = PartitionHistory("p", MODEL, None)
    history.read(log)
    found = history.changes(log.head(), ("tree", "a", "x"))
    assert [each.event["committed_id"] for each in found.changes] == [1]
    assert found.looked_after == 0
    busy = history.changes(log.head(), ("tree", "a", "y"))
    assert [each.event["committed_id"] for each in busy.changes] == list(range(601, 601 - CHANGES_SHOWN, -1))
    assert busy.looked_after == 601 - CHANGES_SHOWN
    monkeypatch.setattr(partition_history, "CHANGES_S", -1.0)
    late = history.changes(log.head(), ("tree", "a", "x"))
    assert (late.value, late.changes, late.looked_after) == (0, [], 601)


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    assert quantile([0, 10, 0], [0.001, 0.003], 0.5) == 2.0
    assert quantile([0, 0, 5], [0.001, 0.003], 0.5) == 3.0
    assert quantile([0, 0, 0], [0.001, 0.003], 0.5) is None
    assert quantile([10, 10, 0], [0.001, 0.003], 0.99) == pytest.approx(2.96)
