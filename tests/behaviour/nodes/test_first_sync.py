"""Starting from snapshots on a shared log: one node writes them, any node starts clients from them (SYNC-12)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import orjson
import pytest

from tests.behaviour.nodes.cluster import cluster
from tests.behaviour.server.harness import item
from tests.behaviour.server.planting import history, state_of
from tests.behaviour.server.test_first_sync import Follower, needed, order_snapshot
from tests.store.postgres.server import shared_server
from unisono.store.postgres.log import PostgresReader

NAMES = ("a", "b", "c", "d")


@pytest.mark.req("SYNC-12", "SYNC-01")
def test_what_one_node_wrote_another_starts_from(tmp_path: Path) -> None:
    postgres = shared_server()
    dsn = postgres.create()
    random, floors = Random(4), dict[str, int]()
    try:
        with cluster(tmp_path, dsn) as (first, second):
            with first.client("writer") as one, second.client("other") as two:
                for start in range(0, 160, 40):
                    for writer, offset in ((one, 0), (two, 20)):
                        planted = history(random, NAMES, 20, start + offset + 1)
                        writer.submit(
                            *(
                                item(each.partitions, orjson.loads(each.event), f"{each.id}")
                                for each in planted
                            )
                        )
                    if start < 120:
                        name = NAMES[start // 40]
                        floors[name] = order_snapshot((first, second)[start // 40 % 2], name)
            reader = PostgresReader.open(dsn)
            records = reader.scan(0, reader.head(), limit=10_000)
            reader.close()
            assert len(records) > 50, "some are refused, as they fit no state"
            due = {name: state_of(records, name).dump() for name in NAMES}
            for server in (first, second):
                with server.client("reader", snapshots=True) as peer:
                    follower = Follower(peer)
                    follower.follow(NAMES, 50)
                    assert follower.floors == floors
                    assert follower.sent == needed(records, NAMES, floors)
                    assert follower.dumps() == due
    finally:
        postgres.drop(dsn)
