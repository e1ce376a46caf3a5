"""How long the commits of a table stay in its Delta log, and files that it no longer names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalake import PostCommitHookProperties

if TYPE_CHECKING:
    from unisono.lake.table import Table

LOG_RETENTION: Final = "delta.logRetentionDuration"
LOG_KEPT: Final = "interval 7 days"
"""How long commits stay in a table's log after a checkpoint; Delta's own default is 30 days. Whoever opens a table
lists what is in its log: with a commit each minute, 10,000 files instead of 43,000."""

CLEANUP_COMMITS: Final = 32
"""Commits between two removals of expired ones, for each of which delta-rs lists the whole log: after 4,000 versions
three quarters of a commit's time."""


VACUUM_HOURS_MAX: Final = 1_000_000
"""Longer than any lake has existed; delta-rs cannot count many more."""


def hooks_after(version: int) -> PostCommitHookProperties:
    """What delta-rs does after the commit of this version, besides a checkpoint if one is due.

    None leaves it to the table, which may be set to keep expired commits.
    """
    return PostCommitHookProperties(cleanup_expired_logs=None if version % CLEANUP_COMMITS == 0 else False)


def shorten_log(table: Table) -> None:
    """Give a table of an older version the retention of its log that new ones have."""
    if LOG_RETENTION not in table.delta.metadata().configuration:
        before = table.version
        table.delta.alter.set_table_properties({LOG_RETENTION: LOG_KEPT})
        table.storage.sync_commits(table.name, before)
