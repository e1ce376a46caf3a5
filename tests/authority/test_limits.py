"""What one event may cost: its rules are stopped, long requests go on in another group, and others go on."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authority.endless import write_endless_model
from tests.authority.seat import Seat, candidate, note, reading, seated
from unisono.model.load import load_model
from unisono.model.model import CANONICAL
from unisono.model.pack import unpack
from unisono.store.sqlite.log import SqliteLog

TIMEOUT_S = 0.2


@pytest.fixture(autouse=True)
def no_callbacks_of_the_collector() -> Iterator[None]:
    """Another test's library may have one, and what the limit raises while it runs is lost in it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


def stored(seat: Seat[SqliteLog], tmp_path: Path, partition: str) -> Any:
    assert seat.command("snapshot", partition)[0]
    with reading(tmp_path / "data") as log:
        snapshot = log.snapshot(partition, 1, load_model(tmp_path / "model").digest)
    assert snapshot is not None
    return unpack(snapshot.state)["data"]


# Raised while a callback of the interpreter runs (a weak reference's, the collector's), it is ignored there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.req("LIM-07", "VAL-03", "VAL-05")
@pytest.mark.parametrize("schema", ["loops", "generates", "swallows", "changes"])
def test_a_rule_that_does_not_return_is_stopped_and_leaves_no_trace(schema: str, tmp_path: Path) -> None:
    """In a thread that is not the main one; what only a signal can interrupt is tried on a real server."""
    model = load_model(write_endless_model(tmp_path / "model"))
    with seated(tmp_path / "data", model, rule_timeout_s=TIMEOUT_S) as seat:
        caller, other = seat.front.connect(), seat.front.connect()
        before = caller.submit(candidate(["p"], note("counts")), profile=CANONICAL)
        assert before[0].status == "committed"
        results = caller.submit(
            candidate(["p"], note("counts")),
            candidate(["p", "q"], note(schema)),
            candidate(["p"], note("counts")),
            profile=CANONICAL,
        )
        assert [result.status for result in results] == ["committed", "rejected", "committed"]
        assert results[1].reason == "validation_failed"
        assert results[1].errors is not None
        says = results[1].errors[-1].message
        assert schema in says
        assert "0.2 s" in says
        assert "rule_timeout_s" in says
        assert other.submit(candidate(["q"], note("counts")), profile=CANONICAL)[0].status == "committed"
        assert stored(seat, tmp_path, "p") == {"count": 3}
        assert stored(seat, tmp_path, "q") == {"count": 1}
        assert seat.stats().counters[f"rules_stopped|{schema}/{schema}"] == 1


@pytest.mark.req("LIM-07")
def test_the_rules_of_one_event_have_their_time_in_all_its_partitions_together(tmp_path: Path) -> None:
    model = load_model(write_endless_model(tmp_path / "model"))
    with seated(tmp_path / "data", model, rule_timeout_s=TIMEOUT_S) as seat:
        caller = seat.front.connect()
        slow = note("lingers", for_s=TIMEOUT_S / 2)
        assert caller.submit(candidate(["p"], slow), profile=CANONICAL)[0].status == "committed"
        many = candidate([f"p{n}" for n in range(64)], slow)
        (result,) = caller.submit(many, profile=CANONICAL)
        assert result.status == "rejected"
        assert seat.front.head() == 1


@pytest.mark.req("LIM-07", "SUBMIT-04", "SUBMIT-07", "SUBMIT-09")
def test_a_request_that_takes_long_goes_on_in_another_group(tmp_path: Path) -> None:
    """A shared log ends a group that takes too long; the request must not come again and again."""
    model = load_model(write_endless_model(tmp_path / "model"))
    with seated(tmp_path / "data", model, request_s=0.05) as seat:
        caller, other = seat.front.connect(), seat.front.connect()
        slow = [candidate(["p"], note("lingers", for_s=0.03), f"slow-{n}") for n in range(8)]
        caller.send(*slow, profile=CANONICAL)
        caller.send(candidate(["p"], note("counts"), "next"), profile=CANONICAL)
        other.send(candidate(["q"], note("counts"), "others"), profile=CANONICAL)
        first, second = caller.results(), caller.results()
        assert [(result.id, result.status) for result in first] == [
            (f"slow-{n}", "committed") for n in range(8)
        ]
        assert [result.committed_id for result in first] == list(range(1, 9))
        assert [(result.id, result.status) for result in second] == [("next", "committed")]
        assert other.results()[0].status == "committed"
        assert seat.authority.groups.count > 4, "one group for each item or two"
        assert json.dumps(stored(seat, tmp_path, "p")) == '{"count": 9}'
