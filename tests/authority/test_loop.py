"""The group loop: what is sent, to whom, in which order, and never before it is durable."""

from __future__ import annotations

import random
import select
from pathlib import Path

import apsw
import pytest

from tests.authority.logs import FailingLog, GatedLog
from tests.authority.seat import FrontEnd, candidate, check_order, push, put, reading, seated, seated_on
from tests.simulation.disk import no_fault, simulated_disk
from unisono.authority.group_size import GROUP_BYTES_MAX, GROUP_EVENTS_MAX
from unisono.ipc.messages import (
    AskHead,
    BatchOutcome,
    Claim,
    Claimed,
    Dropped,
    EventCommitted,
    HeadAnswer,
    LogFailed,
    Message,
    Offer,
    Release,
    Replaced,
)
from unisono.store.port import StorageError


def silent(front: FrontEnd) -> bool:
    return not select.select([front.channel], [], [], 0)[0]


# -- order ---------------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-06", "BCAST-03", "BCAST-06", "SUBMIT-03", "SUBMIT-09", "ORD-01")
@pytest.mark.parametrize("seed", range(4))
def test_on_every_channel_everything_comes_in_commit_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with seated(tmp_path / "data", fronts=3) as seat:
        callers = [front.connect() for front in seat.fronts for _ in range(3)]
        asked, ticket = {id(front): 0 for front in seat.fronts}, 0
        for _ in range(60):
            front = chance.choice(seat.fronts)
            frame: list[Message] = []
            for _ in range(chance.randrange(1, 12)):
                caller = chance.choice([caller for caller in callers if caller.front is front])
                kind = chance.randrange(10)
                if kind < 7:
                    items = [
                        candidate([chance.choice("pqr")], push(chance.choice("abcdefgh")))
                        if chance.random() < 0.3
                        else candidate(["p", "q"], put(chance.choice("xyz"), chance.random()))
                        for _ in range(chance.randrange(1, 40))
                    ]
                    frame.append(caller.request(*items))
                    asked[id(front)] += 1
                elif kind < 9:
                    frame.append(AskHead(ticket := ticket + 1))
                else:
                    frame.append(Claim(1_000_000 + ticket, f"new {ticket}"))
                    ticket += 1
            front.send(*frame)
        head = 0
        for front in seat.fronts:
            for _ in range(asked[id(front)]):
                front.of(BatchOutcome)
            head = front.head()
        seat.drain()
        received = [front.rest() for front in seat.fronts]
        assert [check_order(one) for one in received] == [head] * 3
        assert len({tuple(m for m in one if isinstance(m, EventCommitted)) for one in received}) == 1
    with reading(tmp_path / "data") as log:
        assert [record.committed_id for record in log.scan(0, head, limit=head)] == [*range(1, head + 1)]


@pytest.mark.req("LIM-05")
def test_a_group_is_bounded_and_takes_whole_requests(tmp_path: Path) -> None:
    with seated(tmp_path / "data", group_s=60.0, request_s=60.0) as seat:
        caller = seat.front.connect()
        sizes = [300, 300, 300, 300, 1, 699, 1, GROUP_EVENTS_MAX + 50]
        seat.front.send(
            *(caller.request(*(candidate(["p"], put("x", n)) for n in range(size))) for size in sizes)
        )
        assert [len(caller.results()) for _ in sizes] == sizes
        groups = seat.stats().histograms["group_events"]
        counts = dict(zip([*groups.bounds, "more"], groups.counts, strict=True))
        assert counts[1000] == 2, "three of 300; 300, 1 and 699"
        assert counts[1] == 1, "the one that stood before a request too large for any group"
        assert counts[2000] == 1, "which is a group of its own"
        assert (sum(groups.counts), groups.total) == (4, sum(sizes))


@pytest.mark.req("LIM-05")
def test_a_group_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    with seated(tmp_path / "data") as seat:
        caller = seat.front.connect()
        large = "x" * (GROUP_BYTES_MAX * 2 // 5)
        sizes = [1, 1, 1, 1, 3]  # two and two fit; three at once are too large and go alone
        requests = [[candidate(["p"], put("x", large)) for _ in range(size)] for size in sizes]
        seat.front.send(*(caller.request(*items) for items in requests))
        assert [len(caller.results()) for _ in sizes] == sizes
        groups = seat.stats().histograms["group_events"]
        counts = dict(zip([*groups.bounds, "more"], groups.counts, strict=True))
        assert {size: number for size, number in counts.items() if number} == {2: 2, 5: 1}


# -- durable first -------------------------------------------------------------------------------------------


@pytest.mark.req("SUBMIT-07", "DUR-02")
def test_nothing_is_told_before_it_is_durable(tmp_path: Path) -> None:
    gated = GatedLog.open(tmp_path / "data")
    gate = gated.gate
    with seated_on(gated, fronts=2) as seat, reading(tmp_path / "data") as log:
        here = seat.front
        caller = here.connect()
        for number in range(1, 21):
            gate.shut()
            here.send(caller.request(candidate(["p"], put("x", number))), AskHead(number))
            gate.wait_reached()
            assert all(silent(front) for front in seat.fronts), "judged, and nobody knows"
            assert log.head() == number - 1
            gate.open()
            for front in seat.fronts:
                assert front.of(EventCommitted).committed_id == number
                assert log.head() >= number
            assert [record.committed_id for record in log.scan(number - 1, number, limit=1)] == [number]
            assert caller.results()[0].committed_id == number
            assert here.of(HeadAnswer).committed_id == number


def check_failed(front: FrontEnd, told_before: int) -> None:
    """DUR-04: after what was sent before, only that it failed."""
    assert [type(message) for message in front.rest()[told_before:]] == [LogFailed]


@pytest.mark.req("DUR-04", "SUBMIT-07", "DUR-03")
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_when_the_disk_fails_nobody_is_told_anything_but_that(tmp_path: Path, operation: str) -> None:
    item = candidate(["p"], push("a"))
    with simulated_disk(tmp_path) as disk:
        with seated(tmp_path / "data", fronts=2, fails=True) as seat:
            here, there = seat.fronts
            caller = here.connect()
            caller.submit(candidate(["p"], put("x", 1)))
            heard = [len(here.received), (there.head(), len(there.received))[1]]

            def fault(doing: str, name: str) -> None:
                if (doing, name) == (operation, "log.db-wal"):
                    raise apsw.FullError("no space left on device")

            disk.fault = fault
            caller.send(item, candidate(["p"], put("y", 1)))
            seat.join()
            assert isinstance(seat.failure, StorageError)
            check_failed(here, heard[0])
            check_failed(there, heard[1])
        disk.fault = no_fault
        with seated(tmp_path / "data") as seat:
            head = seat.front.head()
            assert head in ({1} if operation == "write" else {1, 3}), "the group is there whole or not at all"
            (again,) = seat.front.connect().submit(item)
            assert (again.status, again.committed_id) == ("committed", 2)


@pytest.mark.req("DUR-04", "ORD-01")
def test_a_failed_group_takes_no_ids_and_what_waited_behind_it_is_not_answered(tmp_path: Path) -> None:
    with seated_on(FailingLog.open(tmp_path / "data"), fails=True) as seat:
        caller = seat.front.connect()
        for number in (1, 2):
            assert caller.submit(candidate(["p"], put("x", number)))[0].committed_id == number
        heard = len(seat.front.received)
        many = [candidate(["p"], put("y", number)) for number in range(GROUP_EVENTS_MAX)]
        seat.front.send(caller.request(*many), AskHead(1), caller.request(candidate(["p"], push("a"))))
        check_failed(seat.front, heard)
        seat.join()
        assert isinstance(seat.failure, StorageError)
    with seated(tmp_path / "data") as seat:
        assert seat.front.connect().submit(candidate(["p"], push("a")))[0].committed_id == 3


# -- who speaks ----------------------------------------------------------------------------------------------


@pytest.mark.req("CONN-05")
def test_a_replaced_connection_commits_nothing_more(tmp_path: Path) -> None:
    with seated(tmp_path / "data", fronts=2) as seat:
        here, there = seat.fronts
        old, stranger = here.connect("alice"), here.connect("bob")
        new = there.caller("alice")
        here.send(old.request(candidate(["p"], push("a"))))
        assert old.results()[0].status == "committed", "before the newer one came"
        there.send(Claim(new.conn, "alice"), AskHead(1))
        assert [front.of(Replaced).conn for front in seat.fronts] == [old.conn, old.conn]
        assert there.of(Claimed).conn == new.conn
        heard = len(here.received)
        here.send(old.request(candidate(["p"], push("b"))), stranger.request(candidate(["p"], push("c"))))
        assert stranger.results()[0].committed_id == 2, "others go on"
        assert [type(message) for message in here.received[heard:]] == [Dropped, EventCommitted, BatchOutcome]
        here.send(Release(old.conn))
        assert here.head() == 2
        assert new.submit(candidate(["p"], push("b")))[0].committed_id == 3, (
            "its release does not unseat the new"
        )
        assert not [message for message in there.received if message == Replaced(new.conn)]


@pytest.mark.req("CONN-05")
@pytest.mark.parametrize(("fronts", "answers"), [(1, []), (2, [Replaced, Claimed])])
def test_in_one_group_the_fence_stands_between_the_requests(
    tmp_path: Path, fronts: int, answers: list[type[Message]]
) -> None:
    """An only front has replaced the older connection itself; it is told nothing."""
    with seated(tmp_path / "data", fronts=fronts) as seat:
        offer = next(message for message in seat.front.received if isinstance(message, Offer))
        assert offer.sole_front == (fronts == 1)
        old = seat.front.connect("alice")
        heard = len(seat.front.received)
        new = seat.front.caller("alice")
        requests = [old.request(candidate(["p"], push(id))) for id in "ab"]
        seat.front.send(
            requests[0], Claim(new.conn, "alice"), requests[1], new.request(candidate(["p"], push("c")))
        )
        assert new.results()[0].committed_id == 2
        assert [type(m) for m in seat.front.received[heard:]] == [
            EventCommitted,
            BatchOutcome,
            *answers,
            Dropped,
            EventCommitted,
            BatchOutcome,
        ]


@pytest.mark.req("CONN-05")
def test_a_released_or_unknown_connection_commits_nothing(tmp_path: Path) -> None:
    with seated(tmp_path / "data") as seat:
        gone, unknown = seat.front.connect(), seat.front.caller("nobody")
        seat.front.send(
            Release(gone.conn),
            gone.request(candidate(["p"], push("a"))),
            unknown.request(candidate(["p"], push("a"))),
            Release(unknown.conn),
        )
        assert seat.front.head() == 0
        assert not [message for message in seat.front.received if isinstance(message, BatchOutcome)]
        assert [seat.front.of(Dropped).conn for _ in range(2)] == [gone.conn, unknown.conn]


@pytest.mark.req("CONN-05")
def test_who_claims_again_does_not_replace_itself(tmp_path: Path) -> None:
    with seated(tmp_path / "data") as seat:
        caller = seat.front.connect()
        seat.front.send(Claim(caller.conn, caller.client_id))
        assert caller.submit(candidate(["p"], push("a")))[0].status == "committed"
        assert not [message for message in seat.front.received if isinstance(message, Replaced)]
