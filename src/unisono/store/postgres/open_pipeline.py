"""Opening a connection to a log that this program supports, first or again."""

from __future__ import annotations

import psycopg

from unisono.store.cluster import StoreLost
from unisono.store.port import (
    StoreUnusable,
)
from unisono.store.postgres import identity as identities
from unisono.store.postgres import schema
from unisono.store.postgres.connect import connect, raise_unusable
from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.timeouts import Timeouts


def open_pipeline(dsn: str, timeouts: Timeouts, *, record_location: bool = False) -> PipelineConnection:
    """A connection to a log of a version that this program supports; raises StoreUnusable.

    `record_location`: see `identity.record_location`.
    """
    try:
        connection = connect(dsn, timeouts)
        try:
            schema.refuse_other_versions(connection, dsn)
            if record_location:
                identities.record_location(connection)
            return PipelineConnection(connection, timeouts.answer_s)
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        raise_unusable(dsn, error)


def reopen_pipeline(dsn: str, timeouts: Timeouts) -> PipelineConnection:
    """As `open_pipeline` for a log that was open before: any failure may be temporary, so it raises StoreLost."""
    try:
        return open_pipeline(dsn, timeouts, record_location=True)
    except StoreUnusable as error:
        raise StoreLost(str(error)) from error
