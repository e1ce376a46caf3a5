"""A long partition on its way into memory: whoever needs it waits in order, everybody else goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.authority.logs import CountingLog, grow
from tests.authority.seat import Caller, candidate, push, put, results_of, seated, seated_on
from unisono.authority.states.replay import SLICE_EVENTS
from unisono.ipc.messages import AskHead, BatchOutcome, Claim, Drain, Dropped, HeadAnswer, Release
from unisono.store.sqlite.log import SqliteLog

EVENTS = 8_000
TURNS = EVENTS // SLICE_EVENTS
"""So many turns it takes to load such a partition. A closed loop beside it commits once in most of them."""

MEDIUM, MEDIUM_EVENTS = ("m1", "m2", "m3", "m4"), SLICE_EVENTS - 20
HEAD = 2 * EVENTS + len(MEDIUM) * MEDIUM_EVENTS


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with two long partitions and four that take most of a slice."""
    data = tmp_path_factory.mktemp("long") / "data"
    log = SqliteLog.open(data)
    grow(log, "long", EVENTS)
    grow(log, "longer", EVENTS, seed=1)
    for name in MEDIUM:
        grow(log, name, MEDIUM_EVENTS)
    log.close()
    return data


@pytest.fixture
def data(tmp_path: Path, long_log: Path) -> Path:
    return Path(shutil.copytree(long_log, tmp_path / "data"))


def answered(caller: Caller) -> bool:
    return any(
        isinstance(message, BatchOutcome) and message.conn == caller.conn for message in caller.front.received
    )


def commits_until_answered(busy: Caller, waiting: Caller, limit: int) -> int:
    """How many events one connection commits, one after the other, before another one is answered."""
    for count in range(limit):
        if answered(waiting):
            return count
        assert busy.submit(candidate(["busy"], put("x", count)))[0].status == "committed"
    raise AssertionError(f"not answered while {limit} commits passed by")


@pytest.mark.req("SUBMIT-09", "BCAST-06")
def test_who_waits_keeps_its_order_and_who_need_not_goes_first(data: Path) -> None:
    with seated(data) as seat:
        first, second, third, last = (seat.front.connect() for _ in range(4))
        items = [
            candidate(["long"], push("new", "outline", parent="n0")),
            candidate(["short"], push("b")),
            candidate(["long"], push("newer", "outline", parent="new")),
        ]
        seat.front.send(
            first.request(items[0]),
            second.request(candidate(["short"], push("a"))),
            *(first.request(item) for item in items[1:]),
            third.request(candidate(["long", "short"], push("shared"))),
            last.request(candidate(["short"], push("c"))),
        )
        order = [seat.front.of(BatchOutcome) for _ in range(6)]
        assert [outcome.conn for outcome in order[:2]] == [second.conn, last.conn]
        results = [results_of(outcome)[0] for outcome in order]
        mine = [results_of(o)[0] for o in order if o.conn == first.conn]
        assert [result.id for result in mine] == [item.id for item in items]
        assert [r.committed_id for r in results] == [HEAD + n for n in range(1, 7)]
        assert seat.stats().gauges["parked_requests"] == 0


@pytest.mark.req("SUBMIT-09")
def test_requests_of_one_connection_wait_behind_each_other(data: Path) -> None:
    with seated(data) as seat:
        caller = seat.front.connect()
        places = [["long"], ["longer"], ["short"], ["m1"], ["long", "m2"], ["short"]]
        items = [candidate(place, put("x", n)) for n, place in enumerate(places)]
        seat.front.send(*(caller.request(item) for item in items))
        results = [caller.results()[0] for _ in items]
        assert [result.id for result in results] == [item.id for item in items]
        assert [result.committed_id for result in results] == [HEAD + n for n in range(1, 7)]


def test_others_commit_while_it_is_loaded(data: Path) -> None:
    with seated_on(CountingLog.open(data)) as seat:
        waiting, busy = seat.front.connect(), seat.front.connect()
        waiting.send(candidate(["long"], push("n0", "outline")))
        assert commits_until_answered(busy, waiting, 10 * TURNS) >= TURNS // 4
        (result,) = waiting.results()
        assert result.errors is not None, "judged on the whole of it: n0 is there"
        assert result.errors[0].field == "event.payload.value.id"
        assert seat.store.records_read == EVENTS, "read once"
        assert waiting.submit(candidate(["long"], push("new", "outline")))[0].status == "committed"
        assert seat.store.records_read == EVENTS, "and kept"


def test_many_who_wait_do_not_make_the_others_wait_longer(data: Path) -> None:
    with seated_on(CountingLog.open(data)) as seat:
        waiting = [seat.front.connect() for _ in range(40)]
        busy = seat.front.connect()
        for number, caller in enumerate(waiting):
            place = "long" if number % 2 else "longer"
            caller.send(candidate([place], push(f"new {number}", "outline")))
        for caller in waiting:
            commits_until_answered(busy, caller, 20 * TURNS)
        others = [event for event in seat.front.committed() if event.origin == busy.conn]
        assert len(others) >= TURNS // 4, (
            "its partition was not in memory either, and did not wait for theirs"
        )
        assert [caller.results()[0].status for caller in waiting] == ["committed"] * 40
        assert seat.store.records_read == 2 * EVENTS


@pytest.mark.req("LIM-05")
def test_steady_pressure_does_not_keep_it_from_loading(data: Path) -> None:
    with seated(data) as seat:
        waiting, busy = seat.front.connect(), seat.front.connect()
        for number in range(20):
            busy.send(candidate(["busy"], put("x", number)))
        waiting.send(candidate(["long"], push("new", "outline")))
        for number in range(2_000):
            if answered(waiting):
                break
            busy.results()
            busy.send(candidate(["busy"], put("x", number)))  # there is always one more on its way
        assert answered(waiting)
        for _ in range(20):
            busy.results()


def test_a_request_that_needs_more_than_memory_holds_gets_it_nevertheless(data: Path) -> None:
    with seated(data, states_bytes=1) as seat:
        waiting, busy = seat.front.connect(), seat.front.connect()
        waiting.send(candidate(["long", "longer"], push("new", "outline")))
        commits_until_answered(busy, waiting, 5 * TURNS)
        assert waiting.results()[0].status == "committed"
        busy.submit(candidate(["busy"], put("x", 0)))
        assert seat.stats().gauges["states_resident"] == 1


def test_others_that_are_loaded_again_and_again_do_not_keep_it_from_loading(data: Path) -> None:
    with seated(data, states_bytes=1) as seat:
        waiting = seat.front.connect()
        busy = {caller.conn: (caller, name) for name in MEDIUM if (caller := seat.front.connect())}
        for caller, name in busy.values():
            caller.send(candidate([name], push("new", "outline")))
        waiting.send(candidate(["long"], push("new", "outline")))
        passed_by = 0
        while (outcome := seat.front.of(BatchOutcome)).conn != waiting.conn:
            passed_by += 1
            assert passed_by < 20 * TURNS
            caller, name = busy[outcome.conn]
            caller.send(candidate([name], push(f"new {passed_by}", "outline")))
        assert results_of(outcome)[0].status == "committed"


@pytest.mark.req("CONN-05")
def test_who_is_replaced_or_gone_while_waiting_commits_nothing(data: Path) -> None:
    with seated(data) as seat:
        old, gone = seat.front.connect("alice"), seat.front.connect("bob")
        new = seat.front.caller("alice")
        seat.front.send(
            old.request(candidate(["long"], push("a", "outline"))),
            gone.request(candidate(["long"], push("b", "outline"))),
            Claim(new.conn, "alice"),
            Release(gone.conn),
            new.request(candidate(["long"], push("c", "outline"))),
        )
        assert new.results()[0].committed_id == HEAD + 1
        assert seat.front.head() == HEAD + 1
        assert not answered(old)
        assert not answered(gone)
        assert [seat.front.of(Dropped).conn for _ in range(2)] == [old.conn, gone.conn]


def test_drained_it_finishes_what_waits(data: Path) -> None:
    with seated(data) as seat:
        caller = seat.front.connect()
        seat.front.send(caller.request(candidate(["long"], push("a", "outline"))), AskHead(1))
        assert seat.front.of(HeadAnswer).committed_id == HEAD
        seat.node.send(Drain())
        seat.join()
        assert caller.results()[0].committed_id == HEAD + 1
