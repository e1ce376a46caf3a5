"""What leaves the shared log, and what is erased in it, beside the nodes that write it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from tests.store.page_contract import NO_LIMIT
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, append_many, make_record
from unisono.protocol.tombstones import tombstone
from unisono.store.maintenance import MaintenanceRefused, Tombstone
from unisono.store.port import LogExtent, Pruned, Snapshot, StoreUnusable
from unisono.store.postgres import schema
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.postgres.maintenance import PostgresMaintenance

__all__ = ["database", "postgres"]

LAKE = "s3://bucket/lake"
STONE = tombstone(1_700_000_000_000)
ODD = "a\0b\1\u2028é"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def log(database: str, stack: ExitStack) -> PostgresLog:
    return stack.enter_context(closing(PostgresLog.open(database, "a")))


@pytest.fixture
def owner(database: str, stack: ExitStack) -> PostgresMaintenance:
    return stack.enter_context(closing(PostgresMaintenance(database)))


@pytest.mark.req("DUR-05", "ORD-01", "ORD-05")
def test_events_leave_and_stay_known(log: PostgresLog, owner: PostgresMaintenance) -> None:
    records = append(log, [["p"], [ODD], ["p", "r"], ["q"], ["r"], ["p"]])
    with pytest.raises(MaintenanceRefused, match="no archive is set"):
        owner.prune_batch(3)
    owner.set_archive(LAKE)
    assert [owner.prune_batch(3, limit=2) for _ in range(3)] == [2, 1, 0]
    assert log.extent() == LogExtent(3, 6, LAKE)
    opening = log.begin([record.id for record in records] + ["never"])
    log.abandon()
    assert {id: what.committed_id for id, what in opening.known.items()} == {
        record.id: record.committed_id for record in records
    }
    assert opening.known[records[0].id].hash == records[0].hash
    assert append(log, [["p"]])[0].committed_id == 7
    for since in (0, 2):
        with pytest.raises(Pruned) as told:
            log.scan(since, 7, limit=10)
        assert told.value.upto == 3
    for names in (["p"], [ODD], ["q", "r"]):
        with pytest.raises(Pruned):
            log.page(names, 0, 7, **NO_LIMIT)
    assert [r.committed_id for r in log.page(["q", "new"], 0, 7, **NO_LIMIT).records] == [4]
    assert [r.committed_id for r in log.page(["p", "q"], 3, 7, **NO_LIMIT).records] == [4, 6, 7]
    assert owner.prune_batch(10**6) == 4


@pytest.mark.req("DUR-06", "SYNC-01", "ORD-02")
def test_pruning_beside_nodes_that_commit_and_read(
    log: PostgresLog, owner: PostgresMaintenance, database: str
) -> None:
    """No reader meets a hole, no group fails, and a tailing node hears everything once."""
    append_many(log, 2_000)
    owner.set_archive(LAKE)
    stop = threading.Event()
    failures: list[BaseException] = []
    pruned_seen = 0

    def read() -> None:
        nonlocal pruned_seen
        since = 0
        try:
            with closing(PostgresReader.open(database)) as reader:
                while not stop.is_set():
                    try:
                        page = reader.page(["p"], since, 2_000, limit=50, bytes_max=1 << 20)
                    except Pruned as pruned:
                        pruned_seen += 1
                        since = pruned.upto
                        continue
                    found = [record.committed_id for record in page.records]
                    assert found == list(range(since + 1, min(since + 50, 2_000) + 1))
        except BaseException as error:
            failures.append(error)

    def prune() -> None:
        try:
            while owner.prune_batch(1_800, limit=40):
                pass
        except BaseException as error:
            failures.append(error)

    with closing(PostgresLog.open(database, "b")) as other:
        threads = [threading.Thread(target=work) for work in (read, prune)]
        for thread in threads:
            thread.start()
        heard: list[int] = []
        while threads[1].is_alive():
            append(log, [["p"]] * 3)
            heard += [record.committed_id for record in other.catch_up().records]
        stop.set()
        for thread in threads:
            thread.join()
        heard += [record.committed_id for record in other.catch_up(fresh=True).records]
        assert heard == list(range(2_001, log.head() + 1))
    assert not failures
    assert pruned_seen > 3
    assert log.extent().pruned_to == 1_800
    known = log.begin([f"id-{n}" for n in range(1, 2_001)]).known
    log.abandon()
    assert len(known) == 2_000


def test_pruning_waits_for_the_last_old_node(database: str, postgres: Postgres) -> None:
    """Version 1 nodes go on while 0002 is there; nothing leaves until they cannot even be started any more."""
    first = schema.known_migrations()[:1]
    dsn = postgres.create(template="template0")
    name = dsn.rsplit("/", 1)[1]
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute("CREATE SCHEMA unisono")
        connection.execute(first[0].script.encode())
        connection.execute("INSERT INTO unisono.db_version (number, name) VALUES (1, %s)", (first[0].name,))
    postgres.execute("CREATE ROLE old_node LOGIN", database=name)
    postgres.execute(
        "GRANT USAGE ON SCHEMA unisono TO old_node",
        "GRANT SELECT, INSERT ON unisono.events TO old_node",
        database=name,
    )
    with pytest.raises(StoreUnusable, match=r"lacks 0002_pre_keeping.sql, 0004_pre_identity.sql, 0005_pre_"):
        PostgresMaintenance(dsn)
    assert schema.migrate(dsn) == ["0002_pre_keeping.sql"]
    with closing(psycopg.connect(postgres.dsn(name, user="old_node"))) as connection:
        assert connection.execute("SELECT count(*) FROM unisono.pruned").fetchall() == [(0,)]
    with pytest.raises(
        StoreUnusable,
        match=r"lacks 0004_pre_identity.sql, .*: run `unisono db migrate --finish`",
    ):
        PostgresMaintenance(dsn)
    postgres.execute("INSERT INTO unisono.nodes (node_id, name, knows) VALUES (99, 'old', 1)", database=name)
    with pytest.raises(StoreUnusable, match=r"0003_post_keeping.sql takes away .* old"):
        schema.migrate(dsn, finish=True)
    postgres.execute("DELETE FROM unisono.nodes WHERE node_id = 99", database=name)
    assert schema.migrate(dsn, finish=True) == [each.name for each in schema.known_migrations()[2:]]
    with closing(PostgresMaintenance(dsn)) as owner, closing(PostgresLog.open(dsn, "new")) as log:
        append(log, [["p"]] * 3)
        owner.set_archive(LAKE)
        with closing(psycopg.connect(dsn)) as connection, pytest.raises(StoreUnusable, match="does not know"):
            schema.refuse_other_versions(connection, dsn, first)
        postgres.execute(
            "INSERT INTO unisono.nodes (node_id, name, knows) VALUES (99, 'back', 1)", database=name
        )
        with pytest.raises(MaintenanceRefused, match=r"older version .*: back"):
            owner.prune_batch(2)
        postgres.execute("DELETE FROM unisono.nodes WHERE node_id = 99", database=name)
        assert owner.prune_batch(2) == 2
    postgres.execute("DROP OWNED BY old_node", "DROP ROLE old_node", database=name)
    postgres.drop(dsn)


def test_only_the_owner_keeps_the_log(database: str, postgres: Postgres) -> None:
    name = database.rsplit("/", 1)[1]
    postgres.execute("CREATE ROLE keeping_node LOGIN")
    schema.migrate(database, runtime_role="keeping_node")
    as_node = postgres.dsn(name, user="keeping_node")
    with closing(PostgresLog.open(as_node, "a")) as log, closing(PostgresMaintenance(as_node)) as maintenance:
        append(log, [["p"]])
        assert log.extent() == LogExtent(0, 1)
        for call in (
            lambda: maintenance.set_archive(LAKE),
            lambda: maintenance.erase([Tombstone(1, STONE)]),
        ):
            with pytest.raises(MaintenanceRefused, match="needs the owner of the log"):
                call()
        with closing(PostgresMaintenance(database)) as owner:
            owner.set_archive(LAKE)
            with pytest.raises(MaintenanceRefused, match="needs the owner"):
                maintenance.prune_batch(1)
            assert owner.prune_batch(1) == 1
        assert set(log.begin(["id-1"]).known) == {"id-1"}
        log.abandon()
        with pytest.raises(Pruned):
            log.page(["p"], 0, 1, **NO_LIMIT)
    postgres.execute("DROP OWNED BY keeping_node", "DROP ROLE keeping_node", database=name)


@pytest.mark.req("AUTH-10")
def test_the_author_is_erased_with_the_text(log: PostgresLog, owner: PostgresMaintenance) -> None:
    log.begin([])
    log.commit([make_record(n, author='{"user_id":"ann"}') for n in (1, 2)])
    owner.erase([Tombstone(2, STONE)])
    assert [record.author for record in log.scan(0, 2, limit=2)] == ['{"user_id":"ann"}', ""]


def test_an_erasure_reaches_every_node(log: PostgresLog, owner: PostgresMaintenance, database: str) -> None:
    records = append(log, [["p"], ["q"], ["p", ODD]])
    with closing(PostgresLog.open(database, "b")) as other:
        log.put_snapshots([Snapshot(name, 3, 1, b"x", 1) for name in ("p", "q", ODD)])
        assert not other.catch_up(fresh=True).erased
        done = owner.erase([Tombstone(3, STONE)], ["q"])
        assert (done.events, sorted(done.partitions), done.erasures) == (1, sorted(["p", ODD, "q"]), 1)
        (record,) = log.scan(2, 3, limit=1)
        assert (record.event, record.hash) == (STONE, records[2].hash)
        assert [log.snapshot(name, 1) for name in ("p", "q", ODD)] == [None, None, None]
        # A state from before the erasure does not come back as a snapshot ...
        other.put_snapshots([Snapshot("p", 3, 1, b"holds what was erased", 1)])
        assert other.snapshot("p", 1) is None
        # ... and once a node was told, what it folds anew is taken.
        assert other.catch_up(fresh=True).erased
        assert not other.catch_up(fresh=True).erased
        other.put_snapshots([Snapshot("p", 3, 1, b"folded anew", 1)])
        assert other.snapshot("p", 1) is not None
    for wrong, words in (([Tombstone(4, STONE)], "no event 4"), ([Tombstone(1, b"{}")], "no tombstone")):
        with pytest.raises(MaintenanceRefused, match=words):
            owner.erase(wrong)
    assert owner.erase([Tombstone(3, STONE)]).events == 0


def test_erased_text_is_in_no_table_file_after_reclaiming(
    log: PostgresLog, owner: PostgresMaintenance, postgres: Postgres, database: str
) -> None:
    log.begin([])
    log.commit([make_record(n, event=b'"CANARY-%03d-%b"' % (n, b"y" * 40 * n)) for n in range(1, 101)])
    log.put_snapshots([Snapshot("p", 100, 1, b"CANARY-050 in a state", 1)])
    name = database.rsplit("/", 1)[1]
    postgres.execute("ANALYZE", "CHECKPOINT", database=name)
    owner.erase([Tombstone(n, STONE) for n in range(2, 101, 2)])
    owner.reclaim()
    postgres.execute("CHECKPOINT", database=name)
    with closing(psycopg.connect(database)) as connection:
        ((oid,),) = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", (name,)).fetchall()
    files = [file for file in (postgres.data / "base" / str(oid)).iterdir() if file.is_file()]
    present = b"".join(file.read_bytes() for file in files)
    assert not [n for n in range(2, 101, 2) if b"CANARY-%03d" % n in present]
    assert b"CANARY-001" in present
    assert log.scan(0, 1, limit=1)[0].event == b'"CANARY-001-%b"' % (b"y" * 40)
    append(log, [["p"]])


@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize("upto", [40, 130])
def test_events_that_leave_between_two_pages_are_not_passed_over(
    log: PostgresLog, owner: PostgresMaintenance, database: str, upto: int
) -> None:
    """Their ids were found with the page before, or were about to be."""
    names = [f"n{number:02}" for number in range(30)]
    append(log, [[names[number % 30]] for number in range(300)])
    owner.set_archive(LAKE)
    with closing(PostgresReader.open(database)) as reader:
        first = reader.page(names, 0, 300, limit=20, bytes_max=1 << 20)
        assert [each.committed_id for each in first.records] == [*range(1, 21)]
        while owner.prune_batch(upto):
            pass
        with pytest.raises(Pruned):
            reader.page(names, 20, 300, limit=20, bytes_max=1 << 20)
        rest = reader.page(names, upto, 300, limit=500, bytes_max=1 << 20)
        assert [each.committed_id for each in rest.records] == [*range(upto + 1, 301)]
        # What has left does not count where histories start above it.
        snapshot_starts = dict.fromkeys(names, upto)
        assert (
            reader.page(names, 0, 300, limit=500, bytes_max=1 << 20, snapshot_starts=snapshot_starts) == rest
        )


@pytest.mark.req("EXT-22")
def test_a_page_backwards_ends_where_the_log_begins(log: PostgresLog, owner: PostgresMaintenance) -> None:
    append(log, [["p"], ["q"], ["p"], ["r"], ["p"]])
    owner.set_archive(LAKE)
    while owner.prune_batch(3):
        pass
    page = log.newest_page("p", 9, limit=9, bytes_max=1 << 20)
    assert ([record.committed_id for record in page.records], page.has_more) == ([5], True)
    page = log.newest_page("r", 9, limit=9, bytes_max=1 << 20)
    assert ([record.committed_id for record in page.records], page.has_more) == ([4], False)
    for name in ("p", "q"):
        with pytest.raises(Pruned) as told:
            log.newest_page(name, 4, limit=9, bytes_max=1 << 20)
        assert told.value.upto == 3
