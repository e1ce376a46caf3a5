"""A sync cycle with a host played by hand: what happens when the model changes while a first page is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from unisono.config import Settings
from unisono.front.catchup import Ask, CatchUp
from unisono.ipc.page_messages import PageResult
from unisono.protocol.errors import RateLimited
from unisono.protocol.messages import Sync
from unisono.vocabulary import LogIdentity


class Host:
    """Answers when told to."""

    def __init__(self, *, wants_snapshots: bool = True) -> None:
        self.subscriptions: tuple[str, ...] = ()
        self.wants_snapshots = wants_snapshots
        self.version: int | None = 1
        self.digest = "content"
        self.asked: list[tuple[Ask, int, dict[str, int] | None, Callable[[PageResult], None]]] = []
        self.answers: list[dict[str, Any]] = []
        self.bytes = self.cancelled = 0

    def denied(self, partitions: tuple[str, ...]) -> list[str]:
        return []

    def subscribe(self, partitions: tuple[str, ...]) -> None:
        self.subscriptions = partitions

    def admit_sync(self, size: int) -> None:
        self.bytes += size

    def settle_sync(self, size: int) -> None:
        self.bytes -= size

    def cancel_sync(self, size: int) -> None:
        self.bytes -= size
        self.cancelled += 1

    def ask_head(self, then: Callable[[int], None]) -> None:
        then(100)

    def ask_page(
        self, ask: Ask, upto: int, snapshot_starts: dict[str, int] | None, then: Callable[[PageResult], None]
    ) -> None:
        self.asked.append((ask, upto, snapshot_starts, then))

    def answer_sync(self, payload: bytes) -> None:
        self.answers.append(msgspec.json.decode(payload))

    def model(self) -> tuple[int | None, str]:
        return self.version, self.digest

    def log(self) -> LogIdentity | None:
        return LogIdentity("a" * 32, 5)

    def page(self, page: PageResult) -> None:
        self.asked.pop(0)[3](page)


@pytest.mark.req("LIM-05")
def test_what_syncs_take_is_counted_until_they_are_answered_or_given_up() -> None:
    host = Host(wants_snapshots=False)
    catchup = CatchUp(host, Settings())
    names = [f"{number:0128}" for number in range(1000)]
    catchup.start(Sync(0, names))
    large = host.bytes
    assert large > 128_000
    catchup.start(Sync(0, ["p"]))
    host.page(PageResult(1, b"", 0, 0, False))
    assert 0 < host.bytes < 1_000, "one is answered"
    host.page(PageResult(2, b"", 0, 0, False))
    assert host.bytes == 0
    for _ in range(3):
        catchup.start(Sync(0, names))
    with pytest.raises(RateLimited):
        catchup.start(Sync(0, names))  # three may be fewer than 17, and are enough
    assert host.bytes == 3 * large
    catchup.give_up()
    catchup.give_up()
    assert (host.bytes, host.cancelled) == (0, 1)


SNAPSHOT = b'{"partition":"p","committed_id":40,"model_version":1,"state":{}}'


@pytest.mark.req("SYNC-12", "DUR-07", "MODEL-03")
def test_snapshots_of_another_content_than_the_one_in_force_are_not_sent() -> None:
    host = Host()
    catchup = CatchUp(host, Settings())
    catchup.start(Sync(0, ["p"]))
    host.digest = "edited"
    host.page(PageResult(1, b"", 0, 0, False, (SNAPSHOT,), {"p": 40}))
    assert not host.answers
    assert len(host.asked) == 1


@pytest.mark.req("SYNC-12", "DUR-07", "MODEL-03", "DUR-08")
def test_snapshots_of_a_model_that_is_no_longer_in_force_are_not_sent() -> None:
    host = Host()
    catchup = CatchUp(host, Settings())
    catchup.start(Sync(0, ["p"]))
    ((_, upto, snapshot_starts, _),) = host.asked
    assert (upto, snapshot_starts) == (100, None)
    host.version = 2
    host.page(PageResult(1, b"", 0, 0, False, (SNAPSHOT,), {"p": 40}))
    assert not host.answers
    ((_, upto, snapshot_starts, _),) = host.asked
    assert (upto, snapshot_starts) == (100, None), "the same watermark, snapshots of the model in force"
    host.page(PageResult(2, b"7", 1, 60, True))
    (answer,) = host.answers
    assert (answer["snapshots"], answer["events"], answer["model_version"]) == ([], [7], 2)
    assert (answer["log_id"], answer["log_epoch"], answer["model_digest"]) == ("a" * 32, 5, "content")
    catchup.start(Sync(60, ["p"]))
    assert host.asked[0][2] == {}, "this cycle has no snapshots"


@pytest.mark.req("SYNC-12", "SYNC-04")
def test_floors_belong_to_their_cycle() -> None:
    host = Host()
    catchup = CatchUp(host, Settings())
    catchup.start(Sync(0, ["p", "q"]))
    host.page(PageResult(1, b"7", 1, 60, True, (SNAPSHOT,), {"p": 40}))
    assert host.answers[-1]["snapshots"] == [msgspec.json.decode(SNAPSHOT)]
    catchup.start(Sync(60, ["p", "q"]))
    assert host.asked[0][2] == {"p": 40}
    host.page(PageResult(2, b"8", 1, 70, True, (), {"p": 40}))
    assert "snapshots" not in host.answers[-1]
    catchup.start(Sync(70, ["q", "p"]))
    assert host.asked[0][2] == {"p": 40}, "the third page as well"
    host.page(PageResult(3, b"9", 1, 80, True, (), {"p": 40}))
    catchup.start(Sync(80, ["p"]))
    assert host.asked[0][2] == {}, "other partitions are another cycle"
    host.page(PageResult(4, b"", 0, 80, False))
    catchup.start(Sync(80, ["p", "q"]))
    assert host.asked[0][2] == {}, "a cycle that ended is not continued"


@pytest.mark.req("SYNC-12")
@pytest.mark.parametrize(
    ("wants", "sync"),
    [
        (False, Sync(0, ["p"])),
        (False, Sync(0, ["p"], snapshots=True)),
        (True, Sync(0, ["p"], snapshots=False)),
        (True, Sync(1, ["p"])),
        (True, Sync(1, ["p"], snapshots=True)),
    ],
)
def test_who_gets_the_whole_history(wants: bool, sync: Sync) -> None:
    host = Host(wants_snapshots=wants)
    catchup = CatchUp(host, Settings())
    catchup.start(sync)
    assert host.asked[0][2] == {}
    host.page(PageResult(1, b"7", 1, 60, False))
    assert "snapshots" not in host.answers[-1]


@pytest.mark.req("LIM-07")
def test_a_refused_sync_costs_the_same_whatever_waits_before_it() -> None:
    """A client with many names in its queue could hold up everybody by small syncs behind it."""

    def refusal_s(names: int) -> float:
        catchup = CatchUp(Host(), Settings())
        for _ in range(17):
            catchup.start(Sync(0, [f"{number:x}" for number in range(names)]))
        best = 1.0
        for _ in range(20):
            began = time.perf_counter()
            with pytest.raises(RateLimited):
                catchup.start(Sync(0, ["p"]))
            best = min(best, time.perf_counter() - began)
        return best

    assert refusal_s(450) < 10 * refusal_s(1)
