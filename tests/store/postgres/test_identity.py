"""Which log a database holds, and how nodes notice that its past may have changed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.behaviour.nodes.cluster import query
from tests.commands import unisono
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, make_record
from unisono.store.copy import copy_log
from unisono.store.port import Snapshot, StorageError
from unisono.store.postgres import identity as identities
from unisono.store.postgres import schema
from unisono.store.postgres.connect import connect
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.postgres.timeouts import Timeouts
from unisono.vocabulary import LogIdentity

__all__ = ["database", "postgres"]


def opened(dsn: str) -> LogIdentity:
    with closing(PostgresReader.open(dsn)) as reader:
        return reader.identity()


@pytest.mark.req("DUR-08")
def test_a_log_has_an_identity_and_keeps_it(database: str) -> None:
    one = opened(database)
    assert (len(one.log_id), one.log_epoch) == (32, 1)
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["p"]])
        assert log.identity() == one
    assert opened(database) == one
    status = schema.status(database)
    assert (status.log_id, status.log_epoch) == (one.log_id, one.log_epoch)


@pytest.mark.req("DUR-08")
def test_a_log_of_an_earlier_version_gets_an_epoch(postgres: Postgres) -> None:
    dsn = postgres.create(template="template0")
    try:
        known = schema.known_migrations()
        postgres.execute("CREATE SCHEMA unisono", database=dsn.rsplit("/", 1)[1])
        with closing(connect(dsn, Timeouts(), owner=True)) as connection:
            schema._migrate(connection, None, new=True, finish=True, migrations=known[:3])
        before = query(dsn, "SELECT replace(log_id::text, '-', '') FROM unisono.head")[0][0]
        assert schema.migrate(dsn) == [migration.name for migration in known[3:]]
        assert opened(dsn) == LogIdentity(before, 1)
    finally:
        postgres.drop(dsn)


@pytest.mark.req("AUTH-10")
def test_a_log_of_an_earlier_version_has_no_authors_and_takes_them(postgres: Postgres) -> None:
    """The migration only adds: what a node that does not know it has committed, and commits later, has none."""
    dsn = postgres.create(template="template0")
    try:
        known = schema.known_migrations()
        postgres.execute("CREATE SCHEMA unisono", database=dsn.rsplit("/", 1)[1])
        with closing(connect(dsn, Timeouts(), owner=True)) as connection:
            schema._migrate(connection, None, new=True, finish=True, migrations=known[:4])
        by_an_older_node = (
            "INSERT INTO unisono.events (committed_id, id, client_id, partitions, event, hash, status_updated_at)"
            " VALUES ({0}, 'old-{0}', 'c', '[\"p\"]', '{{}}', '', 1);"
            " UPDATE unisono.head SET committed_id = {0}"
        )
        query(dsn, by_an_older_node.format(1))
        assert schema.migrate(dsn) == [migration.name for migration in known[4:]]
        with closing(PostgresLog.open(dsn, "a")) as log:
            log.begin([])
            log.commit([make_record(2, author='{"user_id":"ann"}')])
            query(dsn, by_an_older_node.format(3))
            authors = [record.author for record in log.scan(0, 9, limit=9)]
            assert authors == ["", '{"user_id":"ann"}', ""]
            assert [record.author for record in log.catch_up(fresh=True).records] == [""]
    finally:
        postgres.drop(dsn)


@pytest.mark.req("DUR-08")
@pytest.mark.parametrize("part", range(4))
def test_a_log_in_another_place_has_another_epoch(
    database: str, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Another cluster, timeline, database or table: restored from a dump, to a point in time, or promoted."""
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["p"]] * 3)
        one = log.identity()
        place = query(database, "SELECT place FROM unisono.head")[0][0].split("/")
        assert len(place) == 4
        assert "-" not in place, "everything can be asked for here"
        place[part] = "0"
        query(database, f"UPDATE unisono.head SET place = '{'/'.join(place)}'")
        two = opened(database)
        assert two.log_id == one.log_id
        assert two.log_epoch > one.log_epoch
        assert "its history may differ" in caplog.text
        assert opened(database) == two, "once is enough"
        news = log.catch_up(fresh=True)
        assert (news.log_epoch, log.identity()) == (two.log_epoch, two)
    place[part] = "-"
    query(database, f"UPDATE unisono.head SET place = '{'/'.join(place)}'")
    assert opened(database) == two, "what was not known before says nothing"


@pytest.mark.req("DUR-08")
def test_a_dump_that_is_restored_is_noticed(database: str, postgres: Postgres) -> None:
    """CREATE TABLE AS stands for pg_restore: the rows come back in other tables."""
    one = opened(database)
    query(database, "CREATE TABLE public.kept AS SELECT * FROM unisono.head")
    query(database, "DROP SCHEMA unisono CASCADE")
    schema.initialise(database)
    query(database, "DELETE FROM unisono.head")
    columns = "one, committed_id, status_updated_at, pruned_to, model_version, log_id, log_epoch, place"
    query(database, f"INSERT INTO unisono.head ({columns}) SELECT {columns} FROM public.kept")
    two = opened(database)
    assert (two.log_id, two.log_epoch > one.log_epoch) == (one.log_id, True)


@pytest.mark.req("DUR-08")
def test_who_may_only_read_notices_nothing_and_can_still_read(database: str, postgres: Postgres) -> None:
    one = opened(database)
    name = database.rsplit("/", 1)[1]
    postgres.execute("DROP ROLE IF EXISTS looker", "CREATE ROLE looker LOGIN")
    tables = "db_version, events, event_partitions, head, keeping, snapshots, models, pruned_partitions"
    query(database, "GRANT USAGE ON SCHEMA unisono TO looker")
    query(database, f"GRANT SELECT ON {', '.join('unisono.' + t for t in tables.split(', '))} TO looker")
    query(database, "UPDATE unisono.head SET place = '0/0/0/0'")
    assert opened(postgres.dsn(name, user="looker")) == one
    assert opened(database).log_epoch > one.log_epoch


@pytest.mark.req("DUR-08")
def test_the_role_of_the_nodes_may_note_it(database: str, postgres: Postgres) -> None:
    one = opened(database)
    name = database.rsplit("/", 1)[1]
    postgres.execute("DROP ROLE IF EXISTS noter", "CREATE ROLE noter LOGIN")
    schema.migrate(database, runtime_role="noter")
    query(database, "UPDATE unisono.head SET place = '0/0/0/0'")
    assert opened(postgres.dsn(name, user="noter")).log_epoch > one.log_epoch


@pytest.mark.req("DUR-08", "ORD-01")
def test_a_log_that_went_back_gets_a_new_epoch_from_whoever_finds_out(database: str) -> None:
    with closing(PostgresLog.open(database, "a")) as a, closing(PostgresLog.open(database, "b")) as b:
        append(a, [["p"]] * 3)
        b.catch_up(fresh=True)
        one = a.identity()
        query(database, "DELETE FROM unisono.event_partitions WHERE committed_id = 3")
        query(database, "DELETE FROM unisono.events WHERE committed_id = 3")
        query(database, "UPDATE unisono.head SET committed_id = 2")
        with pytest.raises(
            StorageError, match=r"committed events are missing.* log_epoch \d{13} from now on"
        ):
            a.reopen()
        two = opened(database)
        assert two.log_epoch > one.log_epoch
        with pytest.raises(
            StorageError, match=f"committed events are missing.* log_epoch {two.log_epoch} from now on"
        ):
            b.reopen()
        assert opened(database) == two, "the second one finds it noted"


@pytest.mark.req("DUR-08")
def test_an_operator_can_say_so(database: str) -> None:
    one = opened(database)
    done = unisono("db", "new-epoch", "--store", database)
    two = opened(database)
    assert done.exit_code == 0, done.output
    assert f"log_id {one.log_id}, log_epoch {two.log_epoch}, before it was 1" in done.output
    assert two.log_epoch > one.log_epoch
    before, after = identities.new_epoch(database)
    assert (before, after) == (two, opened(database))
    told = unisono("db", "status", "--store", database)
    assert f"log_id {after.log_id}, log_epoch {after.log_epoch}" in told.output


@pytest.mark.req("DUR-08", "DUR-07")
def test_a_copy_is_the_same_log_unless_it_is_of_a_backup(
    database: str, postgres: Postgres, tmp_path: Path
) -> None:
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["p"]] * 4)
        log.put_snapshots([Snapshot("p", 4, 2, b"{}", 1, "content")])
        log.put_snapshots([Snapshot("p", 3, 2, b"other", 1, "other")])
        assert log.snapshot("p", 2, "content") is None, "one of another content makes way"
        log.put_snapshots([Snapshot("p", 4, 2, b"{}", 1, "content")])
    one = opened(database)
    assert copy_log(database, tmp_path / "moved").identity == one
    other = postgres.create()
    try:
        query(other, "UPDATE unisono.head SET log_id = gen_random_uuid()")  # made from a template here
        restored = copy_log(tmp_path / "moved", other, restoring=True).identity
        assert restored.log_id != one.log_id
        assert opened(other) == restored
        assert copy_log(tmp_path / "moved", other).identity == one
        assert opened(other) == one
        with closing(PostgresReader.open(other)) as reader:
            assert reader.snapshot("p", 2, "content") == Snapshot("p", 4, 2, b"{}", 1, "content")
    finally:
        postgres.drop(other)
