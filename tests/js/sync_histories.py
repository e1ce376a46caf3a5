"""Random inputs of a client's sync, with the state and effects that Python's `advance` makes of each.

Messages come as text and are decoded on both sides. Times are whole seconds in Python and milliseconds in JavaScript.
Texts for people may differ; codes, ids, numbers and order may not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from unisono.client.sync import inputs_effects as io
from unisono.client.sync.advance import Phase, SyncState, advance
from unisono.client.sync.drafts import UNFIT
from unisono.protocol.client_codec import CommittedEvent, Limits, decode
from unisono.vocabulary import FieldError

SECONDS = {
    "requested_at": "requestedAt",
    "retry_at": "retryAt",
    "connect_lost_at": "connectLostAt",
    "wait_s": "waitMs",
    "at": "at",
}
NAMES = ["p", "q", "é", "__proto__"]
OTHERS = [
    "Lost", "DraftsWaiting", "DraftsWaiting", "PartitionAdded", "PartitionRemoved", "TimerFired", "DraftRetried",
    "error", "version", "heartbeat", "Stored",
]  # fmt: skip
CODES = [
    "bad_request", "validation_failed", "forbidden", "rate_limited", "server_error", "auth_failed",
    "protocol_version_unsupported",
]  # fmt: skip


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def plain(value: Any) -> Any:
    """A value as the script in JavaScript writes its own: maps and sets sorted, events by their ids."""
    match value:
        case CommittedEvent():
            return [value.committed_id, value.id]
        case Limits():
            return msgspec.to_builtins(value)
        case FieldError():
            return value.field
        case io.ReportProblem():
            return {"kind": "ReportProblem", "code": value.code}
        case msgspec.Struct():
            fields = {
                SECONDS.get(name, camel(name)): _seconds(name, getattr(value, name))
                for name in value.__struct_fields__
                if name not in ("options", "reason", "message", "state")
            }
            return fields | ({"kind": type(value).__name__} if isinstance(value, io.Effect) else {})
        case Phase():
            return value.value
        case Mapping():
            return sorted([[key, plain(part)] for key, part in value.items()])
        case set() | frozenset():
            return sorted(value)
        case list() | tuple():
            return [plain(part) for part in value]
    return None if value is UNSET else value


def _seconds(name: str, value: Any) -> Any:
    return round(value * 1000) if name in SECONDS and value is not None else plain(value)


class Story:
    """One sync under way, with inputs that mostly fit what it waits for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        names = self.random.sample(NAMES, self.random.randrange(0, 3))
        self.state = SyncState(
            profile="compatibility",
            cursors={name: self.random.choice([0, 0, 5]) for name in names},
            highest_cursors={name: self.random.choice([0, 5, 9]) for name in names},
            drafts_waiting=self.random.random() < 0.5,
            wants_snapshots=self.random.random() < 0.5,
        )
        self.initial = {
            "cursors": [[name, upto] for name, upto in self.state.cursors.items()],
            "highestCursors": [[name, upto] for name, upto in self.state.highest_cursors.items()],
            "draftsWaiting": self.state.drafts_waiting,
            "wantsSnapshots": self.state.wants_snapshots,
        }
        self.now = 100
        self.head = self.random.choice([0, 9, 30])
        self.submits: list[io.SubmitNext] = []
        self.steps: list[Any] = []

    def run(self, steps: int) -> bytes:
        for _ in range(steps):
            self._feed(self._next())
        return json.dumps({"initial": self.initial, "steps": self.steps}).encode() + b"\n"

    def _feed(self, given: dict[str, Any]) -> None:
        self.state, effects = advance(self.state, _python(given), float(self.now))
        self.submits += [each for each in effects if isinstance(each, io.SubmitNext)]
        self.steps.append(
            {
                "now": self.now * 1000,
                "input": given,
                "effects": [plain(each) for each in effects],
                "state": plain(self.state),
            }
        )

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def _next(self) -> dict[str, Any]:
        state, chance = self.state, self.random.random()
        self.now += self.random.choice([0, 0, 1, 5, 70])
        if self.submits:
            self.submits.pop()
            return self._submitted()
        if state.storing and self.chance(0.7):
            if self.chance(0.05):
                return {"kind": "Contradicted", "message": "no"}
            return {"kind": "Stored"}
        if state.phase is Phase.OFFLINE and self.chance(0.7):
            return {"kind": "Dialing"}
        if state.phase is Phase.CONNECTING and state.pending_request is None and self.chance(0.8):
            return {"kind": "Opened"}
        if chance < 0.5 and state.pending_request is not None:
            return self._answer(state.pending_request)
        if chance < 0.7:
            return self._broadcast()
        return self._other()

    def _submitted(self) -> dict[str, Any]:
        ids = [f"d{self.random.randrange(9)}" for _ in range(self.random.choice([0, 1, 1, 2, 3]))]
        more: dict[str, Any] = {}
        if not ids and self.chance(0.5):
            more = {self.random.choice(["tooLarge", "gone"]): "d1"}
        elif not ids and self.chance(0.5):
            more = {"unfit": {"ids": ["d1", "d2"], "reason": self.random.choice([*UNFIT])}}
        elif ids and self.chance(0.4):
            more = {"atomic": True}
        return {"kind": "Submitted", "ids": list(dict.fromkeys(ids)), **more}

    def _other(self) -> dict[str, Any]:
        kind = self.random.choice(OTHERS)
        name = self.random.choice(NAMES)
        match kind:
            case "Lost":
                code = self.random.choice([None, 1000, 1001, 1006, 1009, 1011, 1011, 4001, 4002, 4003, 4005])
                return {"kind": "Lost", "code": code}
            case "PartitionAdded":
                cursor = self.random.choice([0, 0, 4])
                based = self.chance(0.2)
                return {
                    "kind": kind, "partition": name, "cursor": cursor, "highestCursor": cursor, "snapshotBased": based
                }  # fmt: skip
            case "PartitionRemoved":
                return {"kind": kind, "partition": name}
            case "DraftRetried":
                return {"kind": kind, "id": self.random.choice(["d1", *self.state.set_aside_drafts])}
            case "error":
                return self._error()
            case "version":
                return _message("version_changed", {"new_model_version": self.random.choice([1, 1, 2])})
            case "heartbeat":
                return _message("heartbeat_ack", {})
        return {"kind": kind}

    def _answer(self, request: str) -> dict[str, Any]:
        if self.chance(0.15):
            return self._error()
        if request == "connect":
            return _message("connected", self._connected())
        if request == "sync":
            return self._page()
        results = [self._result(id) for id in self.state.submitted if not self.chance(0.03)]
        return _message("submit_events_result", {"results": results})

    def _connected(self) -> dict[str, Any]:
        capabilities = {
            "profile": self.random.choice(["compatibility"] * 9 + ["canonical"]),
            "tree_policy": "strict",
            "ordered_delivery": self.chance(0.6),
            "snapshots": self.chance(0.5),
            "extensions": self.random.choice([[], ["atomic"], ["presence", "atomic"]]),
        }
        body: dict[str, Any] = {"client_id": "c", "server_last_committed_id": self.head, **self._identity()}
        if self.chance(0.95):
            body["capabilities"] = capabilities
        if self.chance(0.6):
            body["limits"] = {"max_subscriptions": self.random.choice([1, 2, 64]), "max_batch_size": 2}
            if self.chance(0.5):
                body["limits"]["max_in_flight_drafts"] = self.random.choice([1, 9])
        return body

    def _identity(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.chance(0.7):
            found |= {"model_version": self.random.choice([1] * 12 + [2]), "model_digest": "d"}
        if self.chance(0.7):
            found |= {"log_id": "l", "log_epoch": self.random.choice([1] * 15 + [2])}
        return found

    def _result(self, id: str) -> dict[str, Any]:
        if self.chance(0.3):
            errors = [{"field": "event", "message": "no"}] if self.chance(0.7) else None
            return {"id": id, "status": "rejected", "reason": "validation_failed", "errors": errors}
        self.head += 1
        return {"id": id, "status": "committed", "committed_id": self.head, "status_updated_at": 7.5}

    def _page(self) -> dict[str, Any]:
        cycle = self.state.cycle
        since = 0 if cycle is None else cycle.since
        self.head = max(self.head, since) + self.random.choice([0, 0, 1, 3])
        ids = sorted(self.random.sample(range(since + 1, since + 9), self.random.randrange(4)))
        more = bool(ids) and self.chance(0.4)
        to = max([self.head, *ids]) if self.chance(0.95) else 1
        self.head = max(self.head, to)
        partitions = list(cycle.partitions) if cycle is not None and cycle.partitions else ["p"]
        body = {
            "events": [self._event(number, self.random.choice(partitions)) for number in ids],
            "next_since_committed_id": ids[-1] if more else to,
            "sync_to_committed_id": to,
            "has_more": more,
            **self._identity(),
        }
        given = _message("sync_response", body)
        if cycle is not None and self.chance(0.2):
            name = self.random.choice(partitions)
            if self.chance(0.7):
                given["startStates"] = [[name, self.random.randrange(1, to + 2)]]
            else:
                given["unusable"] = [name]
        return given

    def _event(self, committed_id: int, partition: str) -> dict[str, Any]:
        id = self.random.choice([f"e{committed_id}", *self.state.submitted])
        event = {"type": "set", "payload": {"target": "t", "value": committed_id}}
        return {"id": id, "committed_id": committed_id, "partitions": [partition], "event": event}

    def _broadcast(self) -> dict[str, Any]:
        self.head += self.random.choice([1, 1, 2])
        event = self._event(self.head, self.random.choice(NAMES))
        return _message("event_broadcast", event) | ({"more": True} if self.chance(0.2) else {})

    def _error(self) -> dict[str, Any]:
        code = self.random.choice(CODES)
        body: dict[str, Any] = {"code": code, "message": "no"}
        if self.chance(0.4):
            body["details"] = self.random.choice(
                [
                    {"partitions": self.random.sample(NAMES, 2)},
                    {"retry_after_ms": 2000},
                    {"errors": [{"field": "x"}]},
                ]
            )
        if body["code"] == "forbidden" and self.chance(0.5):
            lost = self.random.sample(NAMES, self.random.randrange(0, 3))
            body["details"] = {"partitions": lost, "revoked": True}
        if self.chance(0.3):
            body["retry_after_ms"] = 3000
        return _message("error", body)


def _message(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    envelope = {"type": kind, "msg_id": "s", "timestamp": 1, "protocol_version": "1.0", "payload": payload}
    return {"kind": "Received", "text": json.dumps(envelope, separators=(",", ":"))}


def _python(given: dict[str, Any]) -> io.Input:
    """An input as Python has it."""
    fields = dict(given)
    kind = fields.pop("kind")
    if kind == "Received":
        message = decode(fields["text"])
        assert message is not None
        starts = {name: io.StartState(upto, b"{}") for name, upto in fields.get("startStates", [])}
        return io.Received(message, starts, tuple(fields.get("unusable", [])), bool(fields.get("more")))
    if kind == "Submitted":
        unfit = fields.get("unfit", {"ids": [], "reason": ""})
        return io.Submitted(
            tuple(fields["ids"]),
            fields.get("tooLarge"),
            fields.get("gone"),
            fields.get("atomic", False),
            tuple(unfit["ids"]),
            unfit["reason"],
        )
    if kind == "PartitionAdded":
        return io.PartitionAdded(
            fields["partition"], fields["cursor"], fields["highestCursor"], fields["snapshotBased"]
        )
    made: io.Input = getattr(io, kind)(**fields)
    return made


def sync_histories(count: int, seed: int = 1) -> Iterator[bytes]:
    """Lines for `sync-vectors.mjs`."""
    for number in range(count):
        story = Story(seed * 1_000_003 + number)
        yield story.run(story.random.choice([10, 30, 60]))
