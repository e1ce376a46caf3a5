"""A server for the client's simulation: a log in memory that answers in any order it may."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import msgspec

from unisono.model.model import open_model
from unisono.model.partition import PartitionState
from unisono.protocol.codec import encode
from unisono.vocabulary import Json

PARTITIONS = ("p", "q", "r")


class Entry(msgspec.Struct, frozen=True):
    """One line of the server's log."""

    committed_id: int
    id: str
    partitions: tuple[str, ...]
    event: dict[str, Any]

    def told(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "client_id": "somebody",
            "partitions": list(self.partitions),
            "committed_id": self.committed_id,
            "event": self.event,
            "status_updated_at": 5,
        }


class Server:
    """A log, at most one connection, and the protocol as the seeds have it.

    Without `ordered` it delivers broadcasts in any order and results whenever it likes, as a conforming server
    may, and never says `ordered_delivery`.
    """

    def __init__(self, random: Random, *, ordered: bool, page: int) -> None:
        self.random = random
        self.ordered = ordered
        self.page = page
        self.log: list[Entry] = []
        self.model_version = 1
        self.subscriptions: set[str] = set()
        self.cycle: tuple[tuple[str, ...], int, int, dict[str, int]] | None = None
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.wants_snapshots = False
        self.incoming: deque[dict[str, Any]] = deque()
        self.outgoing: deque[tuple[str, dict[str, Any]]] = deque()
        self.open = False

    @property
    def head(self) -> int:
        return self.log[-1].committed_id if self.log else 0

    def connect(self) -> None:
        self.open = True
        self.hang_up_state()

    def hang_up_state(self) -> None:
        self.subscriptions = set()
        self.cycle = None
        self.incoming.clear()
        self.outgoing.clear()

    def commit(self, id: str, partitions: tuple[str, ...], event: dict[str, Any], *, origin: bool) -> Entry:
        gap = 1 if self.random.random() < 0.8 else self.random.randint(2, 5)
        entry = Entry(self.head + gap, id, partitions, event)
        self.log.append(entry)
        if self.open and not origin and self.subscriptions & set(partitions):
            self.outgoing.append(("event_broadcast", entry.told()))
        return entry

    def answer(self) -> None:
        """Process the client's next message."""
        message = self.incoming.popleft()
        payload = message["payload"]
        match message["type"]:
            case "connect":
                capabilities: dict[str, Any] = {
                    "profile": "compatibility", "accepted_event_types": [], "tree_policy": "strict"
                }  # fmt: skip
                if self.ordered:
                    capabilities["ordered_delivery"] = True
                self.wants_snapshots = payload["snapshots"]
                if self.wants_snapshots:
                    capabilities["snapshots"] = True
                self._say("connected", {
                    "client_id": "me", "server_time": 1, "server_last_committed_id": self.head,
                    "capabilities": capabilities, "model_version": self.model_version,
                    "limits": {"max_batch_size": 4, "sync_limit_min": 1, "sync_limit_max": self.page},
                })  # fmt: skip
            case "sync":
                self._sync(payload)
            case "submit_events":
                results = [self._judge(item) for item in payload["events"]]
                if not self.ordered:
                    self.random.shuffle(results)
                self._say("submit_events_result", {"results": results})

    def _sync(self, asked: dict[str, Any]) -> None:
        partitions, since = tuple(asked["partitions"]), asked["since_committed_id"]
        upto = self.head
        floors: dict[str, int] = {}
        started: list[dict[str, Any]] | None = None
        if (
            self.cycle is not None
            and self.cycle[:2] == (partitions, since)
            and "subscription_partitions" not in asked
        ):
            upto, floors = self.cycle[2:]
        elif not since and self.wants_snapshots and asked.get("snapshots") is not False:
            started = [
                snapshot for name in partitions
                if (snapshot := self.snapshots.get(name)) is not None
                and snapshot["model_version"] == self.model_version and self.random.random() < 0.8
            ]  # fmt: skip
            floors = {snapshot["partition"]: snapshot["committed_id"] for snapshot in started}
        if "subscription_partitions" in asked:
            self.subscriptions = set(asked["subscription_partitions"])
        found = [
            e
            for e in self.log
            if since < e.committed_id <= upto
            and any(name in partitions and e.committed_id > floors.get(name, 0) for name in e.partitions)
        ]
        events, more = found[: self.page], len(found) > self.page
        reached = events[-1].committed_id if more else upto
        self.cycle = (partitions, reached, upto, floors) if more else None
        told = {
            "partitions": list(partitions), "effective_subscriptions": sorted(self.subscriptions),
            "events": [e.told() for e in events], "next_since_committed_id": reached,
            "sync_to_committed_id": upto, "has_more": more, "model_version": self.model_version,
        }  # fmt: skip
        self._say("sync_response", told if started is None else told | {"snapshots": started})

    def snapshot(self, partition: str, upto: int, *, damaged: bool) -> None:
        """Keep the state of a partition as it was at one of its ids, or something that is none."""
        events = [e.event for e in self.log if partition in e.partitions and e.committed_id <= upto]
        self.snapshots[partition] = {
            "partition": partition, "committed_id": upto, "model_version": self.model_version,
            "state": {"tree": [damaged]} if damaged else {"tree": fold(events), "data": {"of": "no matter"}},
        }  # fmt: skip

    def _judge(self, item: dict[str, Any]) -> dict[str, Any]:
        known = next((e for e in self.log if e.id == item["id"]), None)
        if known is None and item["event"]["payload"].get("target") == "forbidden":
            return {"id": item["id"], "status": "rejected", "reason": "forbidden", "status_updated_at": 5}
        entry = known or self.commit(item["id"], tuple(item["partitions"]), item["event"], origin=True)
        return {
            "id": item["id"], "status": "committed", "committed_id": entry.committed_id, "status_updated_at": 5
        }  # fmt: skip

    def _say(self, kind: str, payload: dict[str, Any]) -> None:
        self.outgoing.append((kind, payload))

    def deliver(self) -> bytes:
        """The next message on its way to the client: the oldest, or any broadcast where order is not promised."""
        chosen = 0
        if not self.ordered:
            loose = [n for n, (kind, _) in enumerate(self.outgoing) if kind == "event_broadcast"]
            first_other = next(
                (n for n, (kind, _) in enumerate(self.outgoing) if kind != "event_broadcast"), None
            )
            chosen = self.random.choice(loose + ([] if first_other is None else [first_other]))
        kind, payload = self.outgoing[chosen]
        again = kind == "event_broadcast" and not self.ordered and self.random.random() < 0.2
        if not again:
            del self.outgoing[chosen]
        return encode(kind, "s", 1, msgspec.json.encode(payload))


def fold(events: list[dict[str, Any]]) -> Json:
    """The plainest way from a history to its state."""
    model, state = open_model(), PartitionState()
    for event in events:
        model.apply_committed(state, event)
    return state.tree.dump()
