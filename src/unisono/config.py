"""Every setting of a server: its name, its bounds, its default, and why that default.

A setting can be given, weakest first: as a key of a TOML file, as an environment variable (`UNISONO_` and the
name in capitals), or as an option of `unisono serve` (dashes for underscores). A name nobody knows or a value
out of bounds is a ConfigError that names it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

ENVIRONMENT_PREFIX = "UNISONO_"

NOT_SETTINGS = frozenset({"config", "token", "cache_dir", "traceback"})
"""Variables with that prefix that mean something else: where the file is, who `tail` and `submit` are, and what the
`lake` commands take from the environment."""

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
"""Each waits for what the one before limits, and must outlast it: else a node gives up what was about to come."""


EVENT_ENVELOPE_BYTES = 64 * 1024
"""What a committed event has around it on the wire at most: 64 names of partitions, its id and its client_id, each
byte of them escaped to six."""

NAME_BYTES = 6 * 128 + 3
"""The name of a partition on the wire, at most."""


class ConfigError(Exception):
    """A setting is unknown, of the wrong kind, or out of bounds; the text names it and where it stood."""


def about(section: str, text: str) -> Meta:
    """What `--help` and the reference page say of a setting."""
    return Meta(description=text, extra={"section": section})


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One server's settings. Units stand last in the names."""

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
    archive_cache_bytes_max: Annotated[
        int,
        Meta(ge=0, le=2**40),
        about("Server", "Memory of the reader for archived history that was read last."),
    ] = 128 * 1024 * 1024
    node_name: Annotated[
        str | None, about("Server", "What this node is called in a shared log; default: the host's name.")
    ] = None
    host: Annotated[str, about("Server", "Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, about("Server", "WebSocket port, path /sync; 0 takes a free one.")] = 8040
    admin_port: Annotated[
        Port, about("Server", "Port of health, metrics and orders; 0 takes a free one.")
    ] = 8041
    fronts: Annotated[
        Count, about("Server", "Processes that talk to clients; one per spare core is plenty.")
    ] = 1
    log_format: Annotated[Literal["text", "json"], about("Server", "Form of the log lines on stderr.")] = (
        "text"
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("Server", "Least severity that is logged.")
    ] = "info"

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

    rule_timeout_s: Annotated[
        float,
        Meta(ge=0.01, le=60),
        about(
            "Events",
            "The model's rules have so long for one event, in all its partitions; then it is refused.",
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
            "Start with a model whose content changed under its model_version; states are folded anew.",
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
        Seconds, about("Timers", "Close a connection that sent no heartbeat for so long.")
    ] = 30.0
    heartbeat_any_message: Annotated[
        bool,
        about("Timers", "Let any message count as a heartbeat; the server pings, and a pong counts too."),
    ] = False
    handshake_timeout_s: Annotated[
        Seconds, about("Timers", "Close a socket that has not connected within this time.")
    ] = 10.0
    close_grace_s: Annotated[
        Seconds, about("Timers", "Wait so long for a client to answer a close before cutting the socket.")
    ] = 2.0
    drain_timeout_s: Annotated[
        Seconds, about("Timers", "On SIGTERM, finish queued work for at most this long.")
    ] = 10.0
    stall_timeout_s: Annotated[
        Patience,
        about(
            "Timers",
            "Give up a front that takes nothing from authority or reader for so long; the node ends.",
        ),
    ] = 30.0

    store_connect_timeout_s: Annotated[
        WholePatience,
        about("Shared log", "Wait so long for one host of the database to accept a connection."),
    ] = 5
    store_peer_timeout_s: Annotated[
        WholePatience,
        about("Shared log", "Take the other side for gone when the network has been silent for so long."),
    ] = 10
    store_group_timeout_s: Annotated[
        Patience,
        about(
            "Shared log", "From a group's opening to its commit; then the database ends it, and others go on."
        ),
    ] = 5.0
    store_lock_timeout_s: Annotated[
        Patience, about("Shared log", "Wait so long for the groups of other nodes; longer than one may last.")
    ] = 10.0
    store_statement_timeout_s: Annotated[
        Patience, about("Shared log", "For one statement, its waiting for other nodes included.")
    ] = 15.0
    store_answer_timeout_s: Annotated[
        Patience,
        about(
            "Shared log", "Give up a connection whose answer has not come after so long, whatever keeps it."
        ),
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
    json_depth_max: Annotated[
        int, Meta(ge=8, le=500), about("Limits", "Nesting of one message; deeper is bad_request.")
    ] = 64
    rate_events_per_s: Annotated[
        NotNegative, about("Limits", "Events per second one client may submit; 0: no limit.")
    ] = 0.0
    rate_burst_events: Annotated[
        Count, about("Limits", "Events a client may submit at once before that rate counts.")
    ] = 200

    connections_max: Annotated[
        Count, about("Pressure", "Connections of one front; one more is closed with 4006.")
    ] = 20_000
    send_buffer_bytes_max: Annotated[
        int,
        Meta(ge=64 * 1024, le=2**30),
        about("Pressure", "Unsent bytes of one connection; above, it is a slow consumer: close 4005."),
    ] = 4 * 1024 * 1024
    sync_page_bytes_max: Annotated[
        int,
        # A page, and what waits for judgement, must each fit into one frame between processes.
        Meta(ge=64 * 1024, le=64 * 1024 * 1024),
        about("Pressure", "Event bytes of one page; a fuller page is cut short with has_more."),
    ] = 1024 * 1024
    sync_snapshot_bytes_max: Annotated[
        int,
        Meta(ge=0, le=64 * 1024 * 1024),
        about(
            "Pressure",
            "Bytes of snapshots in one sync_response, at most half of send_buffer_bytes_max; 0: no snapshots.",
        ),
    ] = 4 * 1024 * 1024
    sync_queue_max: Annotated[
        Count, about("Pressure", "Syncs of one connection waiting for their turn; one more is rate_limited.")
    ] = 16
    sync_queue_bytes_max: Annotated[
        int,
        Meta(ge=1024 * 1024, le=256 * 1024 * 1024),
        about("Pressure", "Memory of one front for syncs without an answer yet; above, rate_limited."),
    ] = 128 * 1024 * 1024
    queue_events_max: Annotated[
        Count, about("Pressure", "Items of one front waiting for judgement; above, rate_limited.")
    ] = 20_000
    queue_bytes_max: Annotated[
        int,
        Meta(ge=1024 * 1024, le=128 * 1024 * 1024),
        about("Pressure", "Bytes of one front waiting for judgement; above, rate_limited."),
    ] = 64 * 1024 * 1024

    states_bytes_max: Annotated[
        int,
        Meta(ge=1024 * 1024, le=2**40),
        about("States", "Memory for partition states; the least recently used go first."),
    ] = 512 * 1024 * 1024
    snapshot_every_events: Annotated[
        int,
        Meta(ge=0, le=2**53),
        about("States", "Write a partition's snapshot after so many of its events; 0: never."),
    ] = 10_000

    def __post_init__(self) -> None:
        if self.sync_limit_min > self.sync_limit_max:
            raise ValueError("sync_limit_min is above sync_limit_max")
        if not self.profiles:
            raise ValueError("profiles names none")
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
        """Limits that contain one another: what one lets in, the next must be able to pass on."""
        if self.max_batch_size > self.max_in_flight_drafts:
            raise ValueError(
                f"max_in_flight_drafts ({self.max_in_flight_drafts}) must be at least max_batch_size"
                f" ({self.max_batch_size}): a full batch would always be rate_limited"
            )
        if self.max_batch_size > self.queue_events_max:
            raise ValueError(
                f"queue_events_max ({self.queue_events_max}) must be at least max_batch_size"
                f" ({self.max_batch_size}): a full batch would always be rate_limited"
            )
        if self.max_message_bytes > self.queue_bytes_max:
            raise ValueError(
                f"queue_bytes_max ({self.queue_bytes_max}) must be at least max_message_bytes"
                f" ({self.max_message_bytes}): the largest message would always be rate_limited"
            )
        needed = 2 * (self.max_message_bytes + EVENT_ENVELOPE_BYTES) + 2 * NAME_BYTES * self.max_subscriptions
        if self.send_buffer_bytes_max < needed:
            raise ValueError(
                f"send_buffer_bytes_max ({self.send_buffer_bytes_max}) must be at least {needed}: twice the largest"
                f" event on the wire (max_message_bytes {self.max_message_bytes}, {EVENT_ENVELOPE_BYTES} around it)"
                f" and the names of {self.max_subscriptions} subscriptions (max_subscriptions) twice;"
                " a slow link could never take it"
            )


FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def section_and_help(name: str) -> tuple[str, str]:
    """Where a setting stands in the help, and its one line."""
    hint = _hints()[name]
    meta = next(m for m in reversed(hint.__metadata__) if isinstance(m, Meta) and m.description)
    assert meta.description is not None
    assert meta.extra is not None
    return str(meta.extra["section"]), meta.description


def load(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings from all three places; `options` holds only what was given on the command line.

    `defaults` stand in for the ones above where no place says anything.
    """
    values: dict[str, Any] = dict(defaults or {})
    if file is not None:
        values.update(_from_file(file))
    for key, text in environment.items():
        if not key.startswith(ENVIRONMENT_PREFIX):
            continue
        name = key.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in NOT_SETTINGS:
            continue
        if name not in FIELDS:
            raise ConfigError(f"environment variable {key}: there is no setting {name!r}")
        values[name] = _checked(name, text, f"environment variable {key}", strict=False)
    for name, value in options.items():
        values[name] = _checked(name, value, f"option --{name.replace('_', '-')}", strict=False)
    try:
        return Settings(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _from_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    for name in table:
        if name not in FIELDS:
            raise ConfigError(f"{file}: there is no setting {name!r}")
    return {name: _checked(name, value, f"{file}: {name}", strict=True) for name, value in table.items()}


def _split(name: str, value: Any, where: str) -> Any:
    """Lists are written with commas where only text can be given, tables as key=value with commas between."""
    if not isinstance(value, str) or not (is_list(name) or is_table(name)):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not is_table(name):
        return parts
    pairs = [part.partition("=") for part in parts]
    for number, (key, equals, _) in enumerate(pairs, 1):
        if not key or not equals:  # the text is not shown: it may be a secret
            raise ConfigError(f"{where}: part {number} of it is not key=value")
    return {key: rest for key, _, rest in pairs}


def is_list(name: str) -> bool:
    return any(get_origin(part) is tuple for part in _parts(name))


def is_table(name: str) -> bool:
    return any(get_origin(part) is dict for part in _parts(name))


def is_flag(name: str) -> bool:
    return bool in _parts(name)


@cache
def _hints() -> dict[str, Any]:
    """Resolving them takes milliseconds, and every option of `serve` asks."""
    return get_type_hints(Settings, include_extras=True)


def _parts(name: str) -> tuple[Any, ...]:
    plain = get_args(_hints()[name])[0]
    return (plain, *get_args(plain))


def _checked(name: str, value: Any, where: str, *, strict: bool) -> Any:
    hint = _hints()[name]
    if not strict:
        value = _split(name, value, where)
    try:
        return msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
