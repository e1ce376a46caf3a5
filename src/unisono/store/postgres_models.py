"""Models in the shared log: one is in force for all nodes, and only a newer one takes its place."""

from __future__ import annotations

import msgspec
from psycopg import Connection

from unisono.store.cluster import ModelBundle, ModelRefused
from unisono.store.postgres_connecting import SQL
from unisono.store.postgres_rows import Row

_decode_files = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def published(connection: Connection[Row]) -> ModelBundle | None:
    """The model in force."""
    row = connection.execute(SQL["published_model"], binary=True).fetchone()
    return None if row is None else ModelBundle(row[0], row[1], _decode_files(row[2]))


def publish(connection: Connection[Row], bundle: ModelBundle, node: str) -> None:
    """Put `bundle` in force between two groups; the same one again changes nothing."""
    parameters = {
        "version": bundle.version,
        "digest": bundle.digest,
        "files": msgspec.msgpack.encode(bundle.files),
        "node": node,
    }
    with connection.transaction():
        connection.execute(SQL["lock_head"])
        present = published(connection)
        if present is not None and (present.version, present.digest) == (bundle.version, bundle.digest):
            return
        if present is not None and bundle.version <= present.version:
            raise ModelRefused(
                f"model version {bundle.version} is not newer than {present.version}, which is in force in the "
                "cluster: give the changed model a higher version"
            )
        connection.execute(SQL["insert_model"], parameters)
        connection.execute(SQL["adopt_model"], {"version": bundle.version})
