"""What the pages of the console ask for, as JSON. Reads change nothing; actions go the way of the admin commands."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
from aiohttp import web

from unisono.authority.access_commands import AccessRequest
from unisono.config import Settings
from unisono.console import parameters
from unisono.console.errors import ConsoleBusy, ConsoleRefused
from unisono.console.log_views import PARTITIONS_MAX, ROWS_MAX, EventFilter, LogViews
from unisono.console.metric_history import SAMPLE_S, MetricHistory, sample_of
from unisono.console.parameters import BadParameter
from unisono.console.pipeline_api import PipelineApi
from unisono.console.process_client import ProcessClient
from unisono.console.process_requests import (
    AskChanges,
    AskDifference,
    AskEvent,
    AskModel,
    AskPartitionHistory,
    AskState,
)
from unisono.display import escape_controls, shorten
from unisono.ipc.messages import CommandResult
from unisono.ipc.stats import CounterValues
from unisono.node.admin import MAX_REVOKED_S, AdminHost
from unisono.node.model_reload import ReloadRequest
from unisono.vocabulary import Json, JsonObject

log = logging.getLogger("unisono.console")

Handler: TypeAlias = Callable[[web.Request], Awaitable[Json]]

CONNECTIONS_MAX: Final = 1_000
NOW_WINDOW_S: Final = 10.0
"""Over which the figures of this moment are taken."""

KICK_NAME_CHARS_MAX: Final = 512


class KickRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose connections are ended, and for how long they are refused."""

    kind: Literal["client", "user"]
    name: str
    for_s: float = 0.0


class PreviewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory with a newer version of the model, on the server's machine."""

    model: str


class ConsoleApi:
    """The endpoints by name: `reads` answer GET, `actions` answer POST."""

    def __init__(
        self,
        settings: Settings,
        host: AdminHost,
        history: MetricHistory,
        views: LogViews,
        replays: ProcessClient,
        pipeline: PipelineApi,
    ) -> None:
        self._settings = settings
        self._host = host
        self._history = history
        self._views = views
        self._replays = replays
        self._pipeline = pipeline
        self._previewing = False
        self.reads: Mapping[str, Handler] = {
            "now": self._now,
            "series": self._series,
            "events": self._events,
            "event": self._event,
            "times": self._times,
            "refusals": self._refusals,
            "partitions": self._partitions,
            "history": self._partition_history,
            "state": self._state,
            "difference": self._difference,
            "changes": self._changes,
            "connections": self._connections,
            "model": self._model,
            "pipeline": pipeline.page,
        }
        self.actions: Mapping[str, Handler] = {
            "kick": self._kick,
            "preview": self._preview,
            "sql": pipeline.query,
        }

    # -- now ---------------------------------------------------------------------------------------------------

    async def _now(self, request: web.Request) -> Json:  # noqa: ARG002
        stats = await self._host.stats()
        sample = sample_of(stats)
        rates, span_s = self._history.since(sample, NOW_WINDOW_S)
        authority = stats.get("authority")
        return {
            "time": sample.time_ms,
            "node": self._settings.node_name or socket.gethostname(),
            "store": "embedded" if self._settings.store is None else "shared",
            "ready": self._host.ready,
            "processes": list(stats),
            "head": 0 if authority is None else authority.gauges.get("last_committed_id", 0),
            "store_reachable": authority is None or bool(authority.gauges.get("store_reachable", 1)),
            "rates": rates,
            "window_s": round(span_s, 1),
            "totals": {name: value for name, value in sample.totals.items() if not name.startswith("rules_")},
            "connections": sample.connections,
            "nodes": await self._nodes(),
            "depths": list(depths(self._settings, stats)),
            "pipeline": await self._pipeline.status(),
        }

    async def _nodes(self) -> Json:
        """The nodes of a shared log; null when it cannot be read."""
        try:
            return list(await self._views.nodes()) if self._settings.store is not None else []
        except (ConsoleRefused, ConsoleBusy):
            return None

    async def _series(self, request: web.Request) -> Json:  # noqa: ARG002
        return {**self._history.series(), "every_s": SAMPLE_S}

    # -- log ---------------------------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> Json:
        wanted = EventFilter(
            *(parameters.text(request, name) for name in ("partition", "client", "user", "type"))
        )
        limit = max(1, parameters.number(request, "limit", 100, ROWS_MAX))
        if "after" in request.query:
            behind = parameters.number(request, "behind_max") if "behind_max" in request.query else None
            return await self._views.after(parameters.number(request, "after"), wanted, limit, behind)
        before = parameters.number(request, "before") if "before" in request.query else None
        return await self._views.before(before, wanted, limit)

    async def _event(self, request: web.Request) -> Json:
        found = await self._replays.ask(AskEvent(max(1, parameters.number(request, "committed_id"))))
        if found is None:
            raise ConsoleRefused("there is no event of this id")
        return found

    async def _times(self, request: web.Request) -> Json:
        after = parameters.number(request, "after", 0)
        groups = await self._executed("recent_groups", str(after))
        assert isinstance(groups, dict)
        return {**groups, "fronts": await self._host.event_times(after)}

    async def _refusals(self, request: web.Request) -> Json:  # noqa: ARG002
        return await self._executed("refusals")

    # -- partitions --------------------------------------------------------------------------------------------

    async def _partitions(self, request: web.Request) -> Json:
        prefix, after = parameters.text(request, "prefix"), parameters.text(request, "after")
        found = await self._views.partitions(prefix, after, PARTITIONS_MAX)
        names = [str(each["name"]) for each in found]
        for each, subscribers in zip(found, await self._host.subscribers(names), strict=True):
            each["subscribers"] = subscribers
        return {"partitions": list(found), "more": len(found) == PARTITIONS_MAX}

    async def _partition_history(self, request: web.Request) -> Json:
        return await self._replays.ask(AskPartitionHistory(_partition(request)))

    async def _state(self, request: web.Request) -> Json:
        return await self._replays.ask(AskState(_partition(request), parameters.number(request, "at")))

    async def _difference(self, request: web.Request) -> Json:
        at, then = parameters.number(request, "at"), parameters.number(request, "then")
        return await self._replays.ask(AskDifference(_partition(request), at, then))

    async def _changes(self, request: web.Request) -> Json:
        item = parameters.text(request, "item") if "item" in request.query else None
        at, path = parameters.number(request, "at"), parameters.path(request, "path")
        return await self._replays.ask(AskChanges(_partition(request), at, path, item))

    # -- connections -------------------------------------------------------------------------------------------

    async def _connections(self, request: web.Request) -> Json:
        limit = max(1, parameters.number(request, "limit", CONNECTIONS_MAX, CONNECTIONS_MAX))
        found = await self._host.connections(limit)
        return {
            "connections": list(found.connections),
            "silent_nodes": list(found.silent),
            "bound_bytes": self._settings.max_send_buffer_bytes,
        }

    async def _kick(self, request: web.Request) -> Json:
        kick = await parameters.body(request, KickRequest)
        if not 0 < len(kick.name) <= KICK_NAME_CHARS_MAX or not 0 <= kick.for_s <= MAX_REVOKED_S:
            raise BadParameter("a name, and a time of at most ten years")
        body = msgspec.json.encode(AccessRequest(kick.kind, kick.name, kick.for_s))
        name = escape_controls(shorten(kick.name, 128))
        log.warning(
            "console: %s %s kicked from %s, refused for %g s",
            kick.kind,
            name,
            request.remote,
            kick.for_s,
            extra={"kind": kick.kind, "name_kicked": name, "remote": request.remote, "for_s": kick.for_s},
        )
        return _result(await self._host.change_access(body))

    # -- model -------------------------------------------------------------------------------------------------

    async def _model(self, request: web.Request) -> Json:  # noqa: ARG002
        described = await self._replays.ask(AskModel())
        stats = await self._host.stats()
        authority = stats.get("authority")
        rules: dict[str, dict[str, float]] = {}
        for key, value in ({} if authority is None else authority.counters).items():
            name, _, label = key.partition("|")
            if name.startswith("rules_"):
                rules.setdefault(label, {})[name.removeprefix("rules_")] = value
        assert isinstance(described, dict)
        counted: Json = {label: dict(counts) for label, counts in sorted(rules.items())}
        return {**described, "rule_counts": counted, "directory": self._settings.model}

    async def _preview(self, request: web.Request) -> Json:
        asked = await parameters.body(request, PreviewRequest)
        if not asked.model or len(asked.model) > 4096 or "\x00" in asked.model:
            raise BadParameter("model: a directory on the server's machine")
        if self._previewing:
            raise ConsoleBusy("another preview is running; wait for it")
        self._previewing = True
        try:
            return _result(await self._host.reload(ReloadRequest(asked.model, dry_run=True)))
        finally:
            self._previewing = False

    async def _executed(self, command: str, argument: str = "") -> Json:
        return _result(await self._host.execute(command, argument))


def depths(settings: Settings, stats: Mapping[str, CounterValues]) -> list[JsonObject]:
    """How full each bounded queue is: the fullest of those that each front has for itself."""
    fronts = [values.gauges for role, values in stats.items() if role.startswith("front")]
    authority = stats["authority"].gauges if "authority" in stats else {}

    def fullest(name: str) -> float:
        return max((gauges.get(name, 0) for gauges in fronts), default=0)

    rows: list[tuple[str, float, float | None, str]] = [
        ("connections", fullest("connections"), settings.max_connections, ""),
        ("items waiting for judgement", fullest("in_flight_items"), settings.max_queue_events, ""),
        ("bytes waiting for judgement", fullest("in_flight_bytes"), settings.max_queue_bytes, "bytes"),
        ("syncs waiting for pages", fullest("sync_queue_bytes"), settings.max_sync_queue_bytes, "bytes"),
        ("partition states", authority.get("states_bytes", 0), settings.max_states_bytes, "bytes"),
        ("requests in the authority's queue", authority.get("queue_requests", 0), None, ""),
        ("requests waiting for a state", authority.get("parked_requests", 0), None, ""),
    ]
    return [{"name": name, "value": value, "bound": bound, "unit": unit} for name, value, bound, unit in rows]


def _partition(request: web.Request) -> str:
    name = parameters.text(request, "partition")
    if not name:
        raise BadParameter("partition: is required")
    return name


def _result(result: CommandResult) -> Json:
    answer: Json = msgspec.json.decode(result.body)
    if not result.ok:
        error = answer.get("error") if isinstance(answer, dict) else None
        raise ConsoleRefused(str(error or "refused"))
    return answer
