"""What nodes learn of each other: commits, takeovers, models, and who is alive."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.store.postgres.nodes import OpenNode, news, query, woken
from tests.store.records import append, append_many, make_record
from unisono.store.cluster import Cluster, ModelBundle, ModelRefused
from unisono.store.port import Behind, CommitLog, Record, StorageError
from unisono.store.postgres import log as module
from unisono.store.postgres import log_tail as postgres_tailing
from unisono.store.postgres.schema import newest_known


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
