"""Replays of a real log: the model in force, snapshots where a history is long, and large events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake.lakes import export_to
from tests.store.records import make_record
from unisono.config import Settings
from unisono.console import partition_history, replay_process
from unisono.console.log_views import EventFilter, _after, _before
from unisono.console.partition_history import HistoryTooLarge
from unisono.console.process_requests import (
    AskChanges,
    AskDifference,
    AskEvent,
    AskModel,
    AskPartitionHistory,
    AskState,
)
from unisono.console.replay_process import EVENT_BYTES_SHOWN, Replays
from unisono.lake.lake import Lake
from unisono.model.pack import pack
from unisono.store.port import Snapshot
from unisono.store.sqlite.log import SqliteLog


def set_to(committed_id: int, value: Any) -> bytes:
    payload = {"target": "a", "value": value, "options": {"replace": True}}
    return json.dumps({"type": "set", "payload": payload}).encode()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    opened = SqliteLog.open(tmp_path)
    opened.begin([])
    opened.commit([make_record(id, ("p",), event=set_to(id, {"n": id})) for id in range(1, 11)])
    yield opened
    opened.close()


@pytest.fixture
def replays(log: SqliteLog, tmp_path: Path) -> Replays:
    return Replays(Settings(data=str(tmp_path), model="open"))


def short(monkeypatch: pytest.MonkeyPatch, events: int) -> None:
    monkeypatch.setattr(partition_history, "EVENTS_MAX", events)
    monkeypatch.setattr(replay_process, "EVENTS_MAX", events)


def test_a_long_history_starts_at_its_snapshot(
    log: SqliteLog, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch, 5)
    with pytest.raises(HistoryTooLarge, match="unisono snapshot"):
        replays.answer(AskPartitionHistory("p"))
    log.put_snapshots([Snapshot("p", 6, 0, pack({"tree": {"a": {"n": 6}}, "data": {}}), 0)])
    history: Any = replays.answer(AskPartitionHistory("p"))
    assert (history["start"], history["ids"]) == (6, [7, 8, 9, 10])
    state: Any = replays.answer(AskState("p", 6))
    assert state["value"]["tree"] == {"a": {"n": 6}}
    why: Any = replays.answer(AskChanges("p", 6, ("tree", "a", "n")))
    assert (why["value"], why["changes"], why["start"], why["looked_after"]) == (6, [], 6, 6)


def test_a_history_grows_with_the_log_until_it_is_too_long(
    log: SqliteLog, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: Any = replays.answer(AskState("p", 10))
    assert before["value"]["tree"] == {"a": {"n": 10}}
    log.begin([])
    log.commit([make_record(11, ("p",), event=set_to(11, {"n": 11}))])
    found: Any = replays.answer(AskDifference("p", 10, 11))
    assert [(each["before"], each["after"]) for each in found["differences"]] == [("10", "11")]
    short(monkeypatch, 11)
    log.begin([])
    log.commit([make_record(12, ("p",), event=set_to(12, {"n": 12}))])
    with pytest.raises(HistoryTooLarge):
        replays.answer(AskPartitionHistory("p"))


def test_a_large_event_is_shown_in_part(log: SqliteLog, replays: Replays) -> None:
    large = set_to(11, "é" * EVENT_BYTES_SHOWN)
    log.begin([])
    log.commit([make_record(11, ("p",), event=large)])
    event: Any = replays.answer(AskEvent(11))
    assert len(event["event"].encode()) <= EVENT_BYTES_SHOWN + 3
    assert event["left_out_bytes"] == len(large) - EVENT_BYTES_SHOWN
    assert replays.answer(AskEvent(12)) is None
    state: Any = replays.answer(AskState("p", 11))
    assert [each["what"] for each in state["left_out"]] == ["characters"]


def test_an_unknown_partition_is_empty_and_an_open_model_has_no_files(replays: Replays) -> None:
    history: Any = replays.answer(AskPartitionHistory("unknown"))
    assert (history["ids"], history["start"]) == ([], 0)
    model: Any = replays.answer(AskModel())
    assert (model["name"], model["files"]) == ("open", [])


def test_events_that_have_left_the_log_are_read_from_the_lake(log: SqliteLog, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, tmp_path)
    log.set_archive(str(tmp_path / "lake"))
    while log.prune_batch(7):
        pass
    replays = Replays(Settings(data=str(tmp_path), model="open"))
    history: Any = replays.answer(AskPartitionHistory("p"))
    assert history["ids"] == list(range(1, 11))
    state: Any = replays.answer(AskState("p", 4))
    assert state["value"]["tree"] == {"a": {"n": 4}}
    event: Any = replays.answer(AskEvent(2))
    assert json.loads(event["event"]) == json.loads(set_to(2, {"n": 2}))
    newest: Any = _before(replays._log, None, EventFilter("p"), 100)
    assert [each["committed_id"] for each in newest["events"]] == [10, 9, 8]
    assert newest["pruned_to"] == 7
    onward: Any = _after(replays._log, 0, EventFilter(), 100)
    assert [each["committed_id"] for each in onward["events"]] == [8, 9, 10]


def test_a_reader_that_is_far_behind_goes_on_at_the_newest(replays: Replays) -> None:
    near: Any = _after(replays._log, 6, EventFilter(), 2, behind_max=4)
    assert [each["committed_id"] for each in near["events"]] == [7, 8]
    assert "skipped" not in near
    far: Any = _after(replays._log, 5, EventFilter(), 2, behind_max=4)
    assert [each["committed_id"] for each in far["events"]] == [10, 9]
    assert (far["skipped"], far["looked_to"], far["head"]) == (True, 9, 10)
