"""Numbers that the documentation repeats from the code: each sentence here is made from the constants it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unisono.authority.group_size import GROUP_BYTES_MAX, GROUP_EVENTS_MAX, GROUP_S, REQUEST_S
from unisono.authority.maintenance_commands import PRUNE_EVENTS_MIN, STEP_S
from unisono.authority.recent_activity import GROUPS_KEPT, REFUSALS_KEPT
from unisono.authority.shared_presence import MAX_WAITING
from unisono.authority.states.load import FOLD_BUDGET_EVENTS
from unisono.authority.states.replay import SLICE_BYTES, SLICE_EVENTS
from unisono.authority.states.resident import SNAPSHOT_WEIGHT_MAX
from unisono.authority.stuck_rules import GRACE_S, SAY_EVERY_S
from unisono.console import api, log_views, metric_history, partition_history, process_client, sessions, site
from unisono.front import backpressure, catchup, history_requests
from unisono.front.auth.keys import MAX_KEY_FILE_BYTES, MIN_HMAC_SECRET_BYTES
from unisono.front.auth.verified_tokens import MAX_REMEMBERED, MAX_REMEMBERED_BYTES
from unisono.front.auth.verify import MAX_AUTHOR_BYTES, MAX_TOKEN_BYTES, NBF_LEEWAY_S
from unisono.front.descriptors import MAX_REFUSED
from unisono.front.early_messages import (
    MAX_EARLY_MESSAGES,
    MAX_UNVERIFIED_BYTES,
    MAX_UNVERIFIED_UNSENT_BYTES,
)
from unisono.front.intake import SPREAD_MAX
from unisono.front.openings import MAX_HEAD_BYTES, MIN_OPENINGS
from unisono.front.presence import (
    MAX_BACKLOG_BYTES,
    MAX_OWN_PARTITIONS,
    MAX_PARTITION_PRESENCES,
    MAX_PRESENCES,
)
from unisono.front.rates import MAX_CLIENTS
from unisono.front.upgrades import MAX_ORIGINS_LOGGED
from unisono.ipc.channel import FRAME_BYTES_MAX
from unisono.ipc.files import COMMAND_TIMEOUT_S
from unisono.ipc.link import UNSENT_BYTES_MAX
from unisono.lake import sql
from unisono.lake.cold.archive import COLD_NAMES_MAX, COLD_SETS_MAX
from unisono.lake.cold.merge import CURSORS_KEPT_MAX
from unisono.model.registry import ERRORS_MAX
from unisono.node.admin import MAX_COMMAND_BODY_BYTES
from unisono.node.model_review import EVENT_TIMEOUT_S
from unisono.node.supervisor import STATS_TIMEOUT_S
from unisono.protocol.identities import CLIENT_ID_BYTES_MAX, EVENT_ID_BYTES_MAX
from unisono.protocol.partitions import ENTRIES_MAX, NAME_BYTES_MAX, SENT_NAME_BYTES_MAX
from unisono.reader.read_ahead import HISTORIES_MAX, PAGES_BYTES_MAX
from unisono.store.check import FINDINGS_KEPT_MAX
from unisono.store.maintenance import PRUNE_BYTES_MAX, PRUNE_EVENTS_MAX
from unisono.store.merge_ids import KEPT_MAX
from unisono.store.port import CLOCK_SKEW_MAX_MS
from unisono.store.postgres.log import POLL_S
from unisono.store.sqlite.files import PAGE_BYTES
from unisono.store.sqlite.pages import NUMBERS_MAX
from unisono.store.sqlite.wal import CAP_FRAMES, RETRY_FRAMES


def size(count: float) -> str:
    """Bytes as the documentation writes them: 64 KiB, 4 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count:g} bytes"


def written(name: str, default: Any) -> str:
    """The default of a setting, in the unit that its name ends with."""
    if name.endswith("_bytes"):
        return size(default)
    return f"{default:g} s" if name.endswith("_s") and "per_s" not in name else f"{default:g}"


def times(factor: int) -> str:
    return {2: "twice"}[factor]


FIXED: Final = (
    f"| a message before `connected` | {size(MAX_UNVERIFIED_BYTES)}, or",
    f"| messages sent behind a `connect` that is still being verified | {MAX_EARLY_MESSAGES}, or"
    f" {size(MAX_UNVERIFIED_BYTES)} together |",
    "| bytes waiting to be sent to a connection before `connected` |"
    f" {size(MAX_UNVERIFIED_UNSENT_BYTES)}, or `max_send_buffer_bytes`",
    f"| an HTTP request for an upgrade | {size(MAX_HEAD_BYTES)}, and",
    f"| sockets without an upgrade although there is no room for connections, per front | {MIN_OPENINGS} |",
    f"| connections above `max_connections` that are being closed with 4006, per front | {MAX_REFUSED} |",
    f"| refused origins named in the log, per front | {MAX_ORIGINS_LOGGED} |",
    f"| one group | {GROUP_EVENTS_MAX} events, or {size(GROUP_BYTES_MAX)};",
    f"| judging one group | {GROUP_S:g} s, then no further request; {REQUEST_S:g} s, or a quarter",
    "| the canonical form of an event, and of all events of a request | `max_message_bytes` |",
    f"| an event's bytes times its partitions | {times(SPREAD_MAX)} `max_message_bytes` |",
    f"| events of one state folded at a time while it loads | {SLICE_EVENTS}, or {size(SLICE_BYTES)} |",
    f"| events folded between two groups, of all states that load | {FOLD_BUDGET_EVENTS}, and",
    f"| the write-ahead log | {size(CAP_FRAMES * PAGE_BYTES)} between groups |",
    f"| one frame between processes | {size(FRAME_BYTES_MAX)} |",
    f"| bytes that a front has for authority or reader, which take nothing | {size(UNSENT_BYTES_MAX)} |",
    f"| the author of an event: its `user_id` and stored claims | {size(MAX_AUTHOR_BYTES)} |",
    f"| presences: of one connection, in one partition, per front | {MAX_OWN_PARTITIONS},"
    f" {MAX_PARTITION_PRESENCES:,}, {MAX_PRESENCES:,} |",
    f"| bytes waiting for one connection above which it gets no presence | {size(MAX_BACKLOG_BYTES)} |",
    f"| presence that waits to be sent to other nodes | {MAX_WAITING:,} changes |",
    f"| requests of one connection for history that wait for their turn | {history_requests.MAX_WAITING} |",
    f"| a token | {size(MAX_TOKEN_BYTES)} |",
    f"| tokens that were verified and are remembered, per front | {MAX_REMEMBERED:,}, or"
    f" {size(MAX_REMEMBERED_BYTES)} of claims |",
    f"| a key file or JWKS | {size(MAX_KEY_FILE_BYTES)} |",
    f"| clients remembered for the rate limit, per front | {MAX_CLIENTS:,} |",
    f"| partition numbers kept in memory by a reader of the log | {NUMBERS_MAX:,} |",
    f"| pages that the reader of an embedded log has read ahead | {HISTORIES_MAX}, or {size(PAGES_BYTES_MAX)} |",
    "| ids found for the next pages of histories of many partitions, in the reader |"
    f" {KEPT_MAX:,}, partitions and names included; of archived history {CURSORS_KEPT_MAX:,} partitions |",
    "| sets of partitions remembered as being in the archive |"
    f" {COLD_SETS_MAX:,}, with {COLD_NAMES_MAX:,} names together |",
    f"| errors of schemas and rules reported for one event | {ERRORS_MAX} |",
    f"| findings listed by `unisono check` | {FINDINGS_KEPT_MAX} |",
    f"| counters of a process, for metrics | {STATS_TIMEOUT_S:g} s |",
    f"| an admin command | {COMMAND_TIMEOUT_S:g} s |",
    f"| the body of an admin command | {size(MAX_COMMAND_BODY_BYTES)} |",
    f"| events that leave the log at a time | as many as take about {STEP_S * 1000:g} ms,"
    f" {PRUNE_EVENTS_MIN} to {PRUNE_EVENTS_MAX}; {size(PRUNE_BYTES_MAX)} |",
)
"""The starts of the rows of the table of fixed bounds in docs/operations.md, each up to its last number."""

CONSOLE: Final = (
    f"| requests being answered | {site.REQUESTS_MAX} |",
    f"| reads of the log that wait | {log_views.READS_WAITING_MAX} |",
    f"| replays that wait | {process_client.WAITING_MAX} |",
    f"| one replay | {partition_history.EVENTS_MAX:,} events, {size(partition_history.BYTES_MAX)} of them,"
    f" {process_client.ANSWER_S:g} s |",
    f"| one list | {log_views.ROWS_MAX} events, {log_views.PARTITIONS_MAX} partitions,"
    f" {api.CONNECTIONS_MAX:,} connections |",
    f"| sessions | {sessions.SESSIONS_MAX}, {sessions.SESSION_S / 3600:g} hours each |",
    f"| figures of the last hour | one sample every {metric_history.SAMPLE_S:g} s |",
    f"kinds of refusals, kept by the authority | {GROUPS_KEPT:,}, {REFUSALS_KEPT} |",
    f"one question to each process every {metric_history.SAMPLE_S:g} s.",
    f"ends after {process_client.IDLE_S / 60:g} minutes without one.",
)

SENTENCES: Final[Mapping[str, tuple[str, ...]]] = {
    "docs/operations.md": (
        *FIXED,
        *CONSOLE,
        f"with another try every {size(RETRY_FRAMES * PAGE_BYTES)} |",
        f"with {size(catchup.MAX_WAITING_SYNC_BYTES)} of names together |"
        f" `rate_limited`, retry after {catchup.RETRY_MS} ms |",
        f"items per front waiting for the authority, also of connections that are gone |"
        f" `rate_limited`, retry after {backpressure.RETRY_MS} ms |",
        f"if the state is not above {size(SNAPSHOT_WEIGHT_MAX)} |",
        f"snapshots by itself only for states up to {size(SNAPSHOT_WEIGHT_MAX)},",
        f"times do not go back by {CLOCK_SKEW_MAX_MS / 1000:g} s or less",
        f"when one does not reply within {STATS_TIMEOUT_S:g} s,",
        f"is named in the log with its event {GRACE_S:g} s later",
        f"The log says every {SAY_EVERY_S:g} s which rule",
    ),
    "docs/howto/console.md": (
        f"with more than {partition_history.EVENTS_MAX:,} events or {size(partition_history.BYTES_MAX)}, states",
        f"for at most {partition_history.CHANGES_S:g} s and {partition_history.CHANGES_SHOWN} changes,",
        f"session lasts {sessions.SESSION_S / 3600:g} hours",
        f"for at most {sql.QUERY_S:g} s, with {size(sql.MEMORY_BYTES)} of memory\nfor DuckDB",
        f"shows at most {sql.ROWS_MAX} rows",
    ),
    "docs/operations-postgres.md": (f"looks every {POLL_S:g} s", f"a look every {POLL_S:g} s finds it"),
    "docs/protocol/messages.md": (
        f"more than {MAX_EARLY_MESSAGES} of them, or more than {size(MAX_UNVERIFIED_BYTES)} together",
        f"has at most {size(MAX_UNVERIFIED_BYTES)} (close 1009)",
        f"or above {size(MAX_UNVERIFIED_BYTES)} before `connected`",
        f"per message; before `connected` {size(MAX_UNVERIFIED_BYTES)} |",
        f"{EVENT_ID_BYTES_MAX} bytes, no id twice in one request",
        f"| partitions in one event | {ENTRIES_MAX}, duplicates included |",
        f"| a partition name | {NAME_BYTES_MAX} bytes of UTF-8 after NFC"
        f" (no such name has more than {SENT_NAME_BYTES_MAX} before it) |",
        f"| an event id | {EVENT_ID_BYTES_MAX} bytes of UTF-8 |",
        f"times its partitions | {times(SPREAD_MAX)} `max_message_bytes` |",
        f"| a token | {size(MAX_TOKEN_BYTES)} |",
        f"| a `client_id` | {CLIENT_ID_BYTES_MAX} bytes of UTF-8 |",
    ),
    "docs/howto/tokens-and-access.md": (
        f"a string of 1 to {CLIENT_ID_BYTES_MAX} bytes of UTF-8",
        f"not valid before, with {NBF_LEEWAY_S:g} s for clocks",
        "HS256 from {HS256} bytes, HS384 from {HS384}, HS512 from {HS512}".format(**MIN_HMAC_SECRET_BYTES),
    ),
    "docs/howto/models.md": (f"does not return within {EVENT_TIMEOUT_S:g} seconds on an event of the log",),
}
"""Page → what it says, with the numbers of the code."""
