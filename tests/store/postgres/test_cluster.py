"""What nodes learn of each other: commits, takeovers, models, and who is alive."""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.store.postgres.server import database, postgres
from tests.store.records import append, append_many, make_record
from tests.waiting import PATIENCE_S
from unisono.store.cluster import Cluster, ModelBundle, ModelRefused, News
from unisono.store.port import Behind, CommitLog, Record, StorageError
from unisono.store.postgres import log as module
from unisono.store.postgres import log_tail as postgres_tailing
from unisono.store.postgres.log import PostgresLog
from unisono.store.postgres.schema import newest_known

__all__ = ["database", "postgres"]

OpenNode = Callable[[str], PostgresLog]


@pytest.fixture
def node(database: str) -> Iterator[OpenNode]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(closing(PostgresLog.open(database, name)))


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def woken(log: PostgresLog, timeout_s: float = PATIENCE_S) -> bool:
    return bool(select.select([log.wake_fd()], [], [], timeout_s)[0])


def news(log: PostgresLog) -> News:
    """The first news that says anything."""
    deadline = time.monotonic() + PATIENCE_S
    while not ((told := log.catch_up()).records or told.replaced):
        assert time.monotonic() < deadline, "no news"
        time.sleep(0.01)
    return told


def test_it_is_a_log_and_a_cluster(node: OpenNode) -> None:
    log: CommitLog = node("a")
    cluster: Cluster = node("b")
    assert log.head() == cluster.catch_up().head == 0


# Tailing


@pytest.mark.req("ORD-02")
def test_a_node_hears_of_the_others_commits_in_order_and_once(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    first = append(a, [["p"], ["q"]])
    assert woken(b)
    told = b.catch_up()
    assert (list(told.records), told.head, told.more) == (first, 2, False)
    second = append(a, [["p"]])
    opening = b.begin([])
    assert (list(opening.foreign), opening.head) == (second, 3)
    b.commit([make_record(4)])
    assert list(b.catch_up().records) == []
    assert [r.committed_id for r in news(a).records] == [4]
    a.begin([])
    a.abandon()
    assert list(a.catch_up().records) == []


def test_what_was_there_before_is_no_news(node: OpenNode) -> None:
    append_many(node("a"), 5)
    late = node("late")
    assert (late.catch_up().head, list(late.catch_up().records)) == (5, [])
    opening = late.begin(["id-3"])
    late.abandon()
    assert (list(opening.foreign), set(opening.known)) == ([], {"id-3"})


def test_a_node_is_not_sent_looking_by_its_own_commits(
    node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 60.0)
    a, b = node("a"), node("b")
    a.catch_up()
    append(a, [["p"]])
    assert woken(a)  # PostgreSQL wakes everybody
    looked_at = a._news_read_at
    assert a.catch_up().head == 1
    assert a._news_read_at == looked_at
    assert not woken(a, 0)
    append(b, [["p"]])
    assert woken(a)
    assert len(a.catch_up().records) == 1


def test_a_lost_wake_up_delays_and_never_loses(node: OpenNode, database: str) -> None:
    a, b = node("a"), node("b")
    b.catch_up()
    fd = b.wake_fd()
    assert b._listener._connection is not None
    query(database, f"SELECT pg_terminate_backend({b._listener._connection.info.backend_pid})")
    append(a, [["p"]])
    assert woken(b)
    assert [r.committed_id for r in news(b).records] == [1]
    assert (b._listener.lost, b.wake_fd()) == (1, fd)
    assert not woken(b, 0.05)
    append(a, [["p"]])
    assert woken(b), "it listens again"
    assert [r.committed_id for r in b.catch_up().records] == [2]


def test_without_any_wake_up_the_log_is_looked_at_by_the_clock(
    node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = node("a"), node("b")
    b.catch_up()
    monkeypatch.setattr(b._listener, "drain", lambda seen: False)
    append(a, [["p"]])
    news(b)


def test_strange_wake_ups_do_no_harm(node: OpenNode, database: str) -> None:
    a = node("a")
    a.catch_up()
    query(
        database,
        "SELECT pg_notify('unisono', 'hello'), pg_notify('unisono', '-1'), pg_notify('unisono', '99')",
    )
    assert woken(a)
    assert (a.catch_up().head, a.catch_up().head) == (0, 0)


@pytest.mark.parametrize("bound", ["RECORDS_MAX", "BYTES_MAX"])
def test_a_node_far_behind_catches_up_in_bounded_steps(
    node: OpenNode, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    size = len(make_record(1).event)
    monkeypatch.setattr(postgres_tailing, bound, 10 if bound == "RECORDS_MAX" else 10 * (size + 1))
    a, b, c = node("a"), node("b"), node("c")
    history = append(a, [["p"]] * 45)
    told, heard = b.catch_up(), list[int]()
    while told.more:
        assert len(told.records) <= 10
        assert told.head == 45
        heard += [r.committed_id for r in told.records]
        told = b.catch_up()
    assert heard + [r.committed_id for r in told.records] == list(range(1, 46))
    # A group starts from everything, handed out part by part; what is far ahead is read before the lock is taken.
    parts = list[Sequence[Record]]()
    while True:
        try:
            opening = c.begin(["id-3"])
            break
        except Behind as behind:
            parts.append(behind.records)
            append(a, [["p"]])  # nobody is held up meanwhile
    parts.append(opening.foreign)
    assert (opening.head, set(opening.known)) == (45 + len(parts) - 1, {"id-3"})
    assert [r for part in parts for r in part][:45] == history
    assert [r.committed_id for part in parts for r in part] == list(range(1, opening.head + 1))
    assert len(parts) >= 3
    assert max(map(len, parts)) <= 20, "of one look before the lock, and one under it"
    c.commit([make_record(opening.head + 1)])


def test_a_record_larger_than_the_bound_is_told_all_the_same(
    node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_tailing, "BYTES_MAX", 5)
    a, b = node("a"), node("b")
    append(a, [["p"]] * 3)
    assert [r.committed_id for _ in range(3) for r in b.catch_up().records] == [1, 2, 3]


def test_a_log_pruned_past_a_node_stops_it(node: OpenNode, database: str) -> None:
    a, b = node("a"), node("b")
    append_many(a, 5)
    query(database, "UPDATE unisono.head SET pruned_to = 3")
    query(database, "DELETE FROM unisono.events WHERE committed_id <= 3")
    with pytest.raises(StorageError, match="the log is pruned to 3"):
        b.catch_up()


# Presence


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


# Nodes


def test_a_node_that_goes_leaves_nothing_behind(node: OpenNode, database: str) -> None:
    a = node("a")
    a.claim("ann", 1)
    assert query(database, "SELECT name, knows FROM unisono.nodes") == [("a", newest_known())]
    a.close()
    assert query(database, "SELECT 1 FROM unisono.nodes UNION ALL SELECT 1 FROM unisono.presence") == []


def test_two_runs_of_one_name_are_two_nodes(node: OpenNode) -> None:
    before, now = node("a"), node("a")
    before.claim("ann", 1)
    now.claim("ann", 1)
    assert list(news(before).replaced) == [1]


def test_dead_nodes_are_buried_and_the_living_are_not(
    node: OpenNode, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, dead = node("a"), node("dead")
    a.claim("ann", 1)
    dead.claim_many([(f"c{n}", n) for n in range(50)])
    query(database, "UPDATE unisono.nodes SET seen_at = now() - interval '1 hour' WHERE name = 'dead'")
    a.maintain()
    assert query(database, "SELECT name FROM unisono.nodes") == [("a",)]
    assert query(database, "SELECT client_id FROM unisono.presence") == [("ann",)]
    # It was only asleep: it finds out, and so do its connections.
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    dead.maintain()
    assert sorted(dead.catch_up().replaced) == list(range(50))
    assert query(database, "SELECT name FROM unisono.nodes ORDER BY name") == [("a",), ("dead",)]


def test_a_sign_of_life_is_given_now_and_then(
    node: OpenNode, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = node("a")
    a.maintain()
    query(database, "UPDATE unisono.nodes SET seen_at = now() - interval '30 s'")
    a.maintain()  # too soon
    assert query(database, "SELECT now() - seen_at > interval '20 s' FROM unisono.nodes") == [(True,)]
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    a.maintain()
    assert query(database, "SELECT now() - seen_at < interval '20 s' FROM unisono.nodes") == [(True,)]


# Models


@pytest.mark.req("MODEL-02")
def test_a_model_published_on_one_node_reaches_all(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    assert a.published_model() is None
    assert a.catch_up().model_version is None
    model = ModelBundle(3, "digest", {"model.toml": b"version = 3", "schemas/x.json": b"\0\xff"})
    b.catch_up()
    a.publish_model(model)
    assert woken(b)
    assert b.catch_up().model_version == 3
    assert b.published_model() == model
    assert b.begin([]).model_version == 3
    b.abandon()
    assert node("late").catch_up().model_version == 3


@pytest.mark.req("MODEL-02")
def test_only_a_newer_model_takes_force(node: OpenNode) -> None:
    a, b = node("a"), node("b")
    a.publish_model(ModelBundle(3, "three", {}))
    b.publish_model(ModelBundle(3, "three", {}))
    for version, digest in ((3, "other"), (2, "two")):
        with pytest.raises(ModelRefused, match="is not newer than 3"):
            b.publish_model(ModelBundle(version, digest, {}))
    bundle = b.published_model()
    assert bundle is not None
    assert (bundle.version, bundle.digest) == (3, "three")
    b.publish_model(ModelBundle(4, "four", {}))
    append(b, [["p"]])
    assert a.begin([]).model_version == 4
    a.abandon()
