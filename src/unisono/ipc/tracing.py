"""Traces of events in the form of OpenTelemetry (OTLP over HTTP, as JSON).

Each process exports its own spans: `submit` and `deliver` of fronts, `judge` and `commit` of the authority. The ids
of a trace come from the id of the event. So no context travels between processes and nodes, all of them choose the
same events, and a retry joins the trace of the first attempt.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterable
from multiprocessing import current_process
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

log = logging.getLogger("unisono.tracing")

PATH: Final = "/v1/traces"
QUEUE_SPANS: Final = 4_096
"""Spans that wait for the collector; further ones are dropped, and the log says how many."""

BATCH_SPANS: Final = 512
EXPORT_S: Final = 1.0
POST_TIMEOUT_S: Final = 5.0
CLOSE_S: Final = 3.0
WARN_EVERY_S: Final = 60.0

_SERVER: Final = 2
_INTERNAL: Final = 1
_PRODUCER: Final = 4
_KINDS: Final = {"submit": _SERVER, "deliver": _PRODUCER}
_ALL: Final = 1 << 64


class TraceIds(msgspec.Struct, frozen=True):
    """The trace of an event, and its first span."""

    trace: str
    root: str


class Tracer:
    """Collects spans and posts them from a thread of its own. Nothing waits for it, and its memory is bounded."""

    def __init__(self, endpoint: str, sample: float, node: str) -> None:
        self._url = endpoint if urlsplit(endpoint).path.endswith(PATH) else endpoint.rstrip("/") + PATH
        self._below = int(sample * _ALL)
        self._resource = {
            "attributes": _attributes(
                {
                    "service.name": "unisono",
                    "service.instance.id": node,
                    "unisono.process": current_process().name,
                }
            )
        }
        self._spans: deque[dict[str, Any]] = deque()
        self._dropped = 0
        self._failed = ""
        self._warned_at = 0.0
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    @staticmethod
    def now_ns() -> int:
        return time.time_ns()

    def chosen(self, event_id: str) -> TraceIds | None:
        """The ids for the spans of an event; None when it is not among those that are traced."""
        digest = hashlib.sha256(event_id.encode("utf-8", "surrogatepass")).digest()
        if int.from_bytes(digest[24:]) >= self._below:
            return None
        return TraceIds(digest[:16].hex(), digest[16:24].hex())

    def add(self, ids: TraceIds, name: str, start_ns: int, end_ns: int, **attributes: str | int) -> None:
        """One span; `submit` is the root of its trace."""
        span = {
            "traceId": ids.trace,
            "spanId": ids.root if name == "submit" else os.urandom(8).hex(),
            "name": name,
            "kind": _KINDS.get(name, _INTERNAL),
            "startTimeUnixNano": str(start_ns),
            "endTimeUnixNano": str(end_ns),
            "attributes": _attributes(attributes),
        }
        if name != "submit":
            span["parentSpanId"] = ids.root
        with self._wake:
            if len(self._spans) >= QUEUE_SPANS:
                self._dropped += 1
                return
            self._spans.append(span)
            if len(self._spans) >= BATCH_SPANS:
                self._wake.notify()

    def committed(self, events: Iterable[tuple[str, int]], judging_ns: int, committing_ns: int) -> None:
        """Two spans for each event of a group that is durable now: its id and its committed_id."""
        done_ns = self.now_ns()
        for event_id, committed_id in events:
            ids = self.chosen(event_id)
            if ids is not None:
                known: dict[str, str | int] = {
                    "unisono.event_id": event_id,
                    "unisono.committed_id": committed_id,
                }
                self.add(ids, "judge", judging_ns, committing_ns, **known)
                self.add(ids, "commit", committing_ns, done_ns, **known)

    def close(self) -> None:
        """Post what is left, for a short time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or len(self._spans) >= BATCH_SPANS, EXPORT_S)
                count = min(BATCH_SPANS, len(self._spans))
                batch = [self._spans.popleft() for _ in range(count)]
                ending = self._closing and not self._spans
            if batch:
                self._post(batch)
            self._warn()
            if ending:
                return

    def _post(self, batch: list[dict[str, Any]]) -> None:
        scope = {"scope": {"name": "unisono"}, "spans": batch}
        body = msgspec.json.encode({"resourceSpans": [{"resource": self._resource, "scopeSpans": [scope]}]})
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=POST_TIMEOUT_S) as answer:  # noqa: S310
                answer.read()
        except (OSError, ValueError) as error:
            self._failed = str(error)
            with self._wake:
                self._dropped += len(batch)

    def _warn(self) -> None:
        now = time.monotonic()
        if not self._dropped or (self._warned_at and now - self._warned_at < WARN_EVERY_S):
            return
        with self._wake:
            dropped, self._dropped = self._dropped, 0
        why = self._failed or "the collector does not keep up"
        log.warning("%d spans were not exported: %s", dropped, why, extra={"dropped": dropped, "error": why})
        self._warned_at, self._failed = now, ""


def open_tracer(endpoint: str | None, sample: float, node: str) -> Tracer | None:
    """For this process; None where tracing is not configured."""
    return None if endpoint is None else Tracer(endpoint, sample, node)


def _attributes(values: dict[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
