"""Claims of clients in a cluster: one holder, every other node hears of it, nobody waits in circles."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise

import pytest

from tests.store.postgres.nodes import OpenNode, news, query, woken
from tests.store.records import make_record
from tests.waiting import PATIENCE_S
from unisono.store.cluster import ModelBundle
from unisono.store.port import StorageError
from unisono.store.postgres.log import PostgresLog


@pytest.mark.req("CONN-05")
def test_a_claim_elsewhere_replaces_and_tells_the_old_node(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    first = a.claim("ann", 7)
    a.catch_up()
    second = b.claim("ann", 3)
    assert second > first
    assert woken(a)
    assert list(a.catch_up().replaced) == [7]
    assert list(a.catch_up().replaced) == list(b.catch_up().replaced) == []
    assert a.claim("ann", 8) > second
    assert list(news(b).replaced) == [3]


@pytest.mark.req("CONN-05")
def test_a_claim_on_the_same_node_is_no_news_and_fences_the_older(node: OpenNode) -> None:
    a = node("a")
    a.claim("ann", 1)
    a.claim("ann", 2)
    assert list(a.catch_up().replaced) == []
    a.fence([("ann", 1), ("ann", 2), ("bob", 3)])
    assert list(a.begin([]).replaced) == [1, 3]
    a.abandon()
    assert list(a.begin([]).replaced) == []  # a fence is for one group
    a.abandon()


@pytest.mark.req("CONN-05")
def test_a_group_of_a_replaced_connection_learns_it(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    odd = "a\0\1n"
    a.claim_many([("ann", 7), (odd, 8), ("bob", 9)])
    b.claim_many([("ann", 1), (odd, 2)])
    a.fence([("bob", 9), ("ann", 7), (odd, 8)])
    assert list(a.begin([]).replaced) == [7, 8]
    a.abandon()


@pytest.mark.req("CONN-05")
def test_a_claim_waits_for_the_group_it_would_replace(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    a.claim("ann", 7)
    a.fence([("ann", 7)])
    opening = a.begin([])
    assert list(opening.replaced) == []
    done: list[float] = []

    def take_over() -> None:
        b.claim("ann", 1)
        done.append(time.monotonic())

    claiming = threading.Thread(target=take_over)
    claiming.start()
    time.sleep(0.3)
    assert not done, "the successor was connected while the group was open"
    committing = time.monotonic()
    a.commit([make_record(1, client_id="ann")])
    claiming.join(PATIENCE_S)
    assert done[0] > committing
    a.fence([("ann", 7)])
    assert list(a.begin([]).replaced) == [7]
    a.abandon()


@pytest.mark.req("CONN-05")
def test_racing_claims_leave_one_holder_and_every_other_is_told(node: OpenNode, database: str) -> None:
    nodes = [node("a"), node("b")]
    claims: list[dict[int, int]] = [{}, {}]  # conn → epoch
    told: list[list[int]] = [[], []]

    def race(number: int) -> None:
        chance = random.Random(number)
        for conn in range(1, 101):
            claims[number][conn] = nodes[number].claim("ann", conn)
            if chance.random() < 0.3:
                told[number] += nodes[number].catch_up().replaced

    threads = [threading.Thread(target=race, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for number, log in enumerate(nodes):
        log._news_read_at = 0.0
        told[number] += log.catch_up().replaced

    order = sorted((epoch, number, conn) for number in (0, 1) for conn, epoch in claims[number].items())
    assert len({epoch for epoch, _, _ in order}) == 200, "an epoch was given twice"
    crossings = [[c for (_, n, c), (_, m, _) in pairwise(order) if n == i != m] for i in (0, 1)]
    assert sorted(told[0]) == sorted(crossings[0])
    assert sorted(told[1]) == sorted(crossings[1])
    assert crossings[0], "this was no race"
    _, winner, conn = order[-1]
    assert query(database, "SELECT client_id, conn FROM unisono.presence") == [("ann", conn)]
    for number, log in enumerate(nodes):
        everyone = [("ann", c) for c in claims[number]]
        log.fence(everyone)
        replaced = log.begin([]).replaced
        log.abandon()
        assert set(claims[number]) - set(replaced) == ({conn} if number == winner else set())


@pytest.mark.req("CONN-05")
def test_many_claims_at_once_and_in_circles(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    forth = [(f"client-{n}", n) for n in range(300)]
    back = [(f"client-{n}", 1000 + n) for n in reversed(range(300))]

    def race(log: PostgresLog, claims: list[tuple[str, int]]) -> None:
        for _ in range(5):
            epochs = log.claim_many(claims)
            assert len(set(epochs)) == len(claims)

    threads = [threading.Thread(target=race, args=pair) for pair in ((a, forth), (b, back))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    a.fence(forth)
    b.fence(back)
    gone_a = a.begin([]).replaced
    a.abandon()
    gone_b = b.begin([]).replaced
    b.abandon()
    assert {n % 1000 for n in gone_a} | {n % 1000 for n in gone_b} == set(range(300))
    assert len(gone_a) + len(gone_b) == 300
    # The same client twice in one call: the last one counts.
    epochs = a.claim_many([("twice", 1), ("once", 2), ("twice", 3)])
    assert epochs[2] > epochs[0]
    a.fence([("twice", 1), ("once", 2), ("twice", 3)])
    assert list(a.begin([]).replaced) == [1]
    a.abandon()


def test_a_release_gives_up_what_is_still_held(node: OpenNode, database: str) -> None:
    a, b = node("a"), node("b")
    a.claim_many([("ann", 1), ("bob", 2)])
    b.claim("bob", 5)
    a.release("ann", 1)
    a.release("bob", 2)
    a._news_read_at = 0.0
    a.catch_up()
    assert query(database, "SELECT client_id, conn FROM unisono.presence") == [("bob", 5)]
    b.fence([("bob", 5)])
    assert list(b.begin([]).replaced) == []
    b.abandon()


def test_many_releases_are_sent_without_being_asked(node: OpenNode, database: str) -> None:
    a = node("a")
    a.claim_many([(f"c{n}", n) for n in range(600)])
    for n in range(600):
        a.release(f"c{n}", n)
    assert query(database, "SELECT count(*) FROM unisono.presence") == [(100,)]
    a.maintain()
    assert query(database, "SELECT count(*) FROM unisono.presence") == [(0,)]


@pytest.mark.req("CONN-05")
def test_claims_releases_and_groups_never_wait_in_circles(node: OpenNode) -> None:
    """A deadlock would be found by PostgreSQL after a second, and end one of them as StoreLost."""
    logs = [node("a"), node("b"), node("c")]

    def work(number: int) -> None:
        chance, log = random.Random(number), logs[number]
        for turn in range(25):
            chosen = chance.sample(range(40), 30)
            pairs = [(f"client-{n}", turn * 100 + n) for n in chosen]
            log.claim_many(pairs)
            log.fence(chance.sample(pairs, 20))
            log.begin([])
            log.abandon()
            for client_id, conn in chance.sample(pairs, 20):
                log.release(client_id, conn)
            log.catch_up(fresh=True)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for log in logs:
        log.catch_up()  # none of them failed


def test_calls_about_the_cluster_are_refused_inside_a_group(node: OpenNode) -> None:
    a = node("a")
    a.begin([])
    for call in (
        a.catch_up,
        lambda: a.claim("ann", 1),
        lambda: a.fence([]),
        lambda: a.publish_model(ModelBundle(1, "x", {})),
    ):
        with pytest.raises(StorageError, match="a group is still open"):
            call()
    a.release("ann", 1)
    a.commit([make_record(1)])
