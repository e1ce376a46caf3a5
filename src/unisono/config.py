"""Every setting of a server: its name, its bounds, its default, and why that default.

`unisono.cli.settings` loads them from a file, the environment and the command line.

Names: bounds start with `max_`, and the unit stands last (`max_queue_bytes`, `handshake_timeout_s`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from unisono.web_origins import normal_origin

Count = Annotated[int, Meta(ge=1, le=2**31)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400 * 366)]
Patience = Annotated[float, Meta(ge=0.1, le=86_400)]
WholePatience = Annotated[int, Meta(ge=2, le=3_600)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]


STORE_LIMITS = (
    "store_group_timeout_s",
    "store_lock_timeout_s",
    "store_statement_timeout_s",
    "store_answer_timeout_s",
)
"""Each contains the one before and must be longer: otherwise a node gives up on an answer that was about to come."""


EVENT_ENVELOPE_BYTES = 64 * 1024
"""Largest envelope of a committed event on the wire: 64 partition names, its id and its client_id, each byte of them
escaped to six."""

NAME_BYTES = 6 * 128 + 3
"""Largest partition name on the wire."""


def about(section: str, text: str) -> Meta:
    """Section and one-line help of a setting, for `--help` and the reference page."""
    return Meta(description=text, extra={"section": section})


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one server."""

    data: Annotated[str, about("Server", "Directory of the embedded log; made when missing.")] = (
        "unisono-data"
    )
    store: Annotated[
        str | None,
        about("Server", "Shared log for several nodes, postgresql://…; unset: the embedded log in `data`."),
    ] = None
    archive: Annotated[
        str | None,
        about(
            "Server",
            "Lake that has the events which left the log, a directory or a URL; default: the one the log names.",
        ),
    ] = None
    archive_options: Annotated[
        dict[str, str] | None,
        about(
            "Server",
            "What delta-rs needs to reach an archive in an object store, key=value,key=value or a TOML table.",
        ),
    ] = None
    max_archive_cache_bytes: Annotated[
        int,
        Meta(ge=0, le=2**40),
        about("Server", "Memory of the reader for archived history that was read last."),
    ] = 128 * 1024 * 1024
    node_name: Annotated[
        str | None, about("Server", "Name of this node in a shared log; default: the host's name.")
    ] = None
    host: Annotated[str, about("Server", "Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, about("Server", "WebSocket port, path /sync; 0 takes a free one.")] = 8040
    admin_port: Annotated[
        Port, about("Server", "Port of health, metrics, admin commands and the console; 0 takes a free one.")
    ] = 8041
    console: Annotated[
        bool, about("Server", "Serve the console for operators on the admin port, at `/`.")
    ] = True
    fronts: Annotated[
        Count, about("Server", "Processes that talk to clients; one per spare core is plenty.")
    ] = 1
    log_format: Annotated[Literal["text", "json"], about("Server", "Form of the log lines on stderr.")] = (
        "text"
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("Server", "Least severity that is logged.")
    ] = "info"

    otel_endpoint: Annotated[
        str | None,
        about("Server", "OpenTelemetry collector for traces of events, http://host:4318; off without one."),
    ] = None
    otel_sample: Annotated[
        float, Meta(ge=0, le=1), about("Server", "Share of the events that are traced; 1 is all of them.")
    ] = 0.01

    jwt_secret_file: Annotated[
        str | None, about("Identity", "File with the shared secret of HS256/384/512 tokens.")
    ] = None
    jwt_public_key: Annotated[
        str | None, about("Identity", "PEM file with the public key of the token issuer.")
    ] = None
    jwks: Annotated[str | None, about("Identity", "JWKS of the token issuer: a file or a URL.")] = None
    jwt_algorithms: Annotated[
        tuple[str, ...] | None, about("Identity", "Accepted algorithms; default: all that the key can serve.")
    ] = None
    jwt_issuer: Annotated[str | None, about("Identity", "Required `iss`; unset: not checked.")] = None
    jwt_audience: Annotated[str | None, about("Identity", "Required `aud`; unset: not checked.")] = None
    jwt_user_claim: Annotated[
        str,
        Meta(min_length=1),
        about("Identity", "Claim that names the person behind a client, stored with events."),
    ] = "sub"
    jwt_leeway_s: Annotated[
        float,
        Meta(ge=0, le=300),
        about("Identity", "Clock difference forgiven on `exp` and `nbf`; on `nbf` 10 s at least."),
    ] = 0.0

    access_default: Annotated[
        Literal["deny", "allow"],
        about("Access", "What a client may touch when neither token nor ACL says anything."),
    ] = "deny"
    acl: Annotated[str | None, about("Access", "ACL file (TOML or JSON).")] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        about(
            "Access",
            "Web origins whose pages may connect, https://app.example.com; empty: any. Only browsers send one.",
        ),
    ] = ()

    rule_timeout_s: Annotated[
        float,
        Meta(ge=0.01, le=60),
        about(
            "Events",
            "Time the model's rules have for one event, in all its partitions; then it is refused.",
        ),
    ] = 1.0

    profiles: Annotated[
        tuple[Literal["canonical", "compatibility"], ...],
        about("Events", "Profiles offered; canonical needs a model."),
    ] = ("canonical", "compatibility")
    default_profile: Annotated[
        Literal["canonical", "compatibility"],
        about("Events", "Profile of a client that names none in connect."),
    ] = "canonical"
    model: Annotated[
        str | None,
        about("Events", "Model directory, or `open`: any schema name, data unchecked."),
    ] = None
    allow_model_edits: Annotated[
        bool,
        about(
            "Events",
            "Start with a model whose content changed under its model_version; states are folded again.",
        ),
    ] = False
    accept_init: Annotated[bool, about("Events", "Take `init` in the compatibility profile.")] = True
    require_uuid_ids: Annotated[bool, about("Events", "Refuse event ids that are not UUIDs.")] = False
    legacy_partition: Annotated[
        bool, about("Events", "Take the legacy field `partition` standing alone.")
    ] = False
    sync_subscribes: Annotated[
        bool, about("Events", "A sync without subscription_partitions subscribes to its partitions.")
    ] = False

    heartbeat_timeout_s: Annotated[
        Seconds, about("Timers", "Close a connection that sent no heartbeat for this long.")
    ] = 30.0
    heartbeat_any_message: Annotated[
        bool,
        about("Timers", "Let any message count as a heartbeat; the server pings, and a pong counts too."),
    ] = False
    handshake_timeout_s: Annotated[
        Seconds, about("Timers", "Close a socket that has not connected within this time.")
    ] = 10.0
    close_grace_s: Annotated[
        Seconds, about("Timers", "Wait this long for a client to answer a close before cutting the socket.")
    ] = 2.0
    drain_timeout_s: Annotated[
        Seconds, about("Timers", "On SIGTERM, finish queued work for at most this long.")
    ] = 10.0
    stall_timeout_s: Annotated[
        Patience,
        about(
            "Timers",
            "Give up a front that takes nothing from authority or reader for this long; the node ends.",
        ),
    ] = 30.0

    store_connect_timeout_s: Annotated[
        WholePatience,
        about("Shared log", "Wait this long for one host of the database to accept a connection."),
    ] = 5
    store_peer_timeout_s: Annotated[
        WholePatience,
        about("Shared log", "Treat the other side as gone when the network has been silent for this long."),
    ] = 10
    store_group_timeout_s: Annotated[
        Patience,
        about(
            "Shared log", "From a group's start to its commit; then the database ends it, and others go on."
        ),
    ] = 5.0
    store_lock_timeout_s: Annotated[
        Patience,
        about("Shared log", "Wait this long for the groups of other nodes; longer than one may last."),
    ] = 10.0
    store_statement_timeout_s: Annotated[
        Patience, about("Shared log", "For one statement, including its wait for other nodes.")
    ] = 15.0
    store_answer_timeout_s: Annotated[
        Patience,
        about("Shared log", "Give up a connection that has not answered for this long, whatever the cause."),
    ] = 30.0

    max_batch_size: Annotated[Count, about("Limits", "Events in one submit_events.")] = 100
    sync_limit_min: Annotated[Count, about("Limits", "Smallest page a client can ask for.")] = 50
    sync_limit_max: Annotated[Count, about("Limits", "Largest page a client can ask for.")] = 1000
    max_message_bytes: Annotated[
        int, Meta(ge=1024, le=64 * 1024 * 1024), about("Limits", "Bytes of one message; above, close 1009.")
    ] = 1024 * 1024
    max_in_flight_drafts: Annotated[
        Count, about("Limits", "Submitted and unanswered items of one connection.")
    ] = 200
    max_subscriptions: Annotated[
        int,
        Meta(ge=1, le=10_000),
        about("Limits", "Partitions one connection can subscribe to, and one sync can name."),
    ] = 1000
    max_json_depth: Annotated[
        int, Meta(ge=8, le=500), about("Limits", "Nesting of one message; deeper is bad_request.")
    ] = 64
    rate_events_per_s: Annotated[
        NotNegative, about("Limits", "Events per second one client may submit; 0: no limit.")
    ] = 0.0
    rate_burst_events: Annotated[
        Count, about("Limits", "Events a client may submit at once before that rate counts.")
    ] = 200

    max_presence_bytes: Annotated[
        int, Meta(ge=16, le=4096), about("Limits", "Bytes of what a client says of itself by presence.")
    ] = 1024
    presence_per_s: Annotated[
        float,
        Meta(gt=0, le=1000),
        about("Limits", "Presence messages per second of one connection; above, rate_limited."),
    ] = 20.0
    presence_ttl_s: Annotated[
        float,
        Meta(ge=1, le=3600),
        about("Limits", "Longest time that a presence stays without being said again."),
    ] = 30.0

    max_connections: Annotated[
        Count,
        about(
            "Pressure",
            "Connections of one front, sockets without an upgrade included; one more is closed with 4006.",
        ),
    ] = 20_000
    max_send_buffer_bytes: Annotated[
        int,
        Meta(ge=64 * 1024, le=2**30),
        about("Pressure", "Unsent bytes of one connection; above, it is a slow consumer: close 4005."),
    ] = 4 * 1024 * 1024
    max_sync_page_bytes: Annotated[
        int,
        # A page, and what waits for judgement, must each fit into one frame between processes.
        Meta(ge=64 * 1024, le=64 * 1024 * 1024),
        about("Pressure", "Event bytes of one page; a fuller page is cut short with has_more."),
    ] = 1024 * 1024
    max_sync_snapshot_bytes: Annotated[
        int,
        Meta(ge=0, le=64 * 1024 * 1024),
        about(
            "Pressure",
            "Bytes of snapshots in one sync_response, at most half of max_send_buffer_bytes; 0: no snapshots.",
        ),
    ] = 4 * 1024 * 1024
    max_queued_syncs: Annotated[
        Count, about("Pressure", "Syncs of one connection waiting for their turn; one more is rate_limited.")
    ] = 16
    max_sync_queue_bytes: Annotated[
        int,
        Meta(ge=1024 * 1024, le=256 * 1024 * 1024),
        about("Pressure", "Memory of one front for syncs without an answer yet; above, rate_limited."),
    ] = 128 * 1024 * 1024
    max_queue_events: Annotated[
        Count, about("Pressure", "Items of one front waiting for judgement; above, rate_limited.")
    ] = 20_000
    max_queue_bytes: Annotated[
        int,
        Meta(ge=1024 * 1024, le=128 * 1024 * 1024),
        about("Pressure", "Bytes of one front waiting for judgement; above, rate_limited."),
    ] = 64 * 1024 * 1024

    max_states_bytes: Annotated[
        int,
        Meta(ge=1024 * 1024, le=2**40),
        about("States", "Memory for partition states; the least recently used go first."),
    ] = 512 * 1024 * 1024
    snapshot_every_events: Annotated[
        int,
        Meta(ge=0, le=2**53),
        about("States", "Write a partition's snapshot after this many of its events; 0: never."),
    ] = 10_000

    def __post_init__(self) -> None:
        if self.sync_limit_min > self.sync_limit_max:
            raise ValueError("sync_limit_min is above sync_limit_max")
        if not self.profiles:
            raise ValueError("profiles names none")
        for origin in self.allowed_origins:
            if normal_origin(origin) is None:
                raise ValueError(
                    f"allowed_origins: {origin!r} is not an origin, which is scheme://host or scheme://host:port,"
                    " in ASCII and without a path or a wildcard; leave the list empty to allow any"
                )
        if self.otel_endpoint is not None and not self.otel_endpoint.startswith(("http://", "https://")):
            raise ValueError("otel_endpoint must be an http:// or https:// address")
        if self.store is not None and not self.store.startswith(("postgresql://", "postgres://")):
            raise ValueError("store must be a postgresql:// address")
        for shorter, longer in pairwise(STORE_LIMITS):
            if getattr(self, shorter) >= getattr(self, longer):
                raise ValueError(f"{longer} must be longer than {shorter}, which it contains")
        self._check_sizes()
        if self.store is not None and self.rule_timeout_s > self.store_group_timeout_s / 4:
            raise ValueError(
                f"rule_timeout_s ({self.rule_timeout_s:g}) must be at most a quarter of store_group_timeout_s"
                f" ({self.store_group_timeout_s:g}): a group whose rules run longer is never committed"
            )
        if sum(key is not None for key in (self.jwt_secret_file, self.jwt_public_key, self.jwks)) > 1:
            raise ValueError("give one of jwt_secret_file, jwt_public_key and jwks, not several")

    def _check_sizes(self) -> None:
        """Limits along the path of a message: what one admits, the next must be able to pass on."""
        if self.max_batch_size > self.max_in_flight_drafts:
            raise ValueError(
                f"max_in_flight_drafts ({self.max_in_flight_drafts}) must be at least max_batch_size"
                f" ({self.max_batch_size}): a full batch would always be rate_limited"
            )
        if self.max_batch_size > self.max_queue_events:
            raise ValueError(
                f"max_queue_events ({self.max_queue_events}) must be at least max_batch_size"
                f" ({self.max_batch_size}): a full batch would always be rate_limited"
            )
        if self.max_message_bytes > self.max_queue_bytes:
            raise ValueError(
                f"max_queue_bytes ({self.max_queue_bytes}) must be at least max_message_bytes"
                f" ({self.max_message_bytes}): the largest message would always be rate_limited"
            )
        needed = 2 * (self.max_message_bytes + EVENT_ENVELOPE_BYTES) + 2 * NAME_BYTES * self.max_subscriptions
        if self.max_send_buffer_bytes < needed:
            raise ValueError(
                f"max_send_buffer_bytes ({self.max_send_buffer_bytes}) must be at least {needed}: twice the largest"
                f" event on the wire (max_message_bytes {self.max_message_bytes}, {EVENT_ENVELOPE_BYTES} around it)"
                f" and the names of {self.max_subscriptions} subscriptions (max_subscriptions) twice;"
                " a slow link could never take it"
            )
