"""Histories written by hand, frame by frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Raw

from unisono.history.check import check_history
from unisono.history.findings import Verdict
from unisono.history.records import (
    AccessScope,
    ClientCursor,
    ClientStore,
    ConnectionOpened,
    Frame,
    HistoryEvent,
    HistoryRecord,
    HistoryStart,
    LakeEvent,
    LakeRead,
    Located,
    LogEvent,
    LogRead,
    SnapshotRead,
)
from unisono.protocol.canonical import canonical, content_hash


def event_of(id: str) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": "note", "data": {"text": id}}}


def hash_of(event: dict[str, Any], partitions: Sequence[str]) -> str:
    return content_hash(canonical(event), canonical([*sorted(partitions)])).hex()


class Story:
    """A history in the making; each step is a second after the one before."""

    def __init__(self, *, complete: bool = True) -> None:
        self.records: list[HistoryRecord] = []
        self.add(HistoryStart(complete=complete))
        self.now = 0.0
        self.partitions: dict[str, list[str]] = {}
        self.ids: dict[int, str] = {}

    def add(self, record: HistoryRecord) -> None:
        self.records.append(record)

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def frame(
        self, connection: str, direction: Literal["sent", "received"], kind: str, payload: dict[str, Any]
    ) -> None:
        message = {"type": kind, "msg_id": "m", "timestamp": 0, "protocol_version": "1.0", "payload": payload}
        self.add(Frame(self.tick(), connection, direction, Raw(json.dumps(message).encode())))

    def connect(
        self,
        connection: str,
        client: str = "",
        *,
        scope: AccessScope | None = None,
        expires_at: float | None = None,
        epoch: int = 1,
        extensions: Sequence[str] = (),
    ) -> None:
        client = client or connection
        self.add(ConnectionOpened(self.tick(), connection, client, scope=scope, expires_at=expires_at))
        self.frame(connection, "sent", "connect", {"token": "…", "client_id": client})
        self.frame(
            connection,
            "received",
            "connected",
            {
                "client_id": client,
                "server_last_committed_id": 0,
                "log_id": "log",
                "log_epoch": epoch,
                "capabilities": {"extensions": list(extensions)},
            },
        )

    def submit(
        self, connection: str, *ids: str, partitions: Sequence[str] = ("p",), atomic: bool = False
    ) -> None:
        for id in ids:
            self.partitions[id] = list(partitions)
        items = [{"id": id, "partitions": list(partitions), "event": event_of(id)} for id in ids]
        self.frame(
            connection, "sent", "submit_events", {"events": items} | ({"atomic": True} if atomic else {})
        )

    def result(self, connection: str, outcomes: Mapping[str, int | None]) -> None:
        results: list[dict[str, Any]] = []
        for id, committed_id in outcomes.items():
            if committed_id is None:
                results.append({"id": id, "status": "rejected", "reason": "validation_failed", "errors": []})
            else:
                self.ids[committed_id] = id
                results.append({"id": id, "status": "committed", "committed_id": committed_id})
        self.frame(connection, "received", "submit_events_result", {"results": results})

    def commit(self, connection: str, id: str, committed_id: int, partitions: Sequence[str] = ("p",)) -> None:
        self.submit(connection, id, partitions=partitions)
        self.result(connection, {id: committed_id})

    def event(self, committed_id: int, **changes: Any) -> dict[str, Any]:
        id = self.ids[committed_id]
        return {
            "id": id,
            "client_id": "a",
            "partitions": self.partitions[id],
            "committed_id": committed_id,
            "event": event_of(id),
            "status_updated_at": 0,
        } | changes

    def broadcast(self, connection: str, committed_id: int, **changes: Any) -> None:
        self.frame(connection, "received", "event_broadcast", self.event(committed_id, **changes))

    def sync(
        self, connection: str, since: int = 0, partitions: Sequence[str] = ("p",), subscribe: bool = False
    ) -> None:
        payload: dict[str, Any] = {"partitions": list(partitions), "since_committed_id": since}
        if subscribe:
            payload["subscription_partitions"] = list(partitions)
        self.frame(connection, "sent", "sync", payload)

    def page(
        self,
        connection: str,
        ids: Sequence[int],
        sync_to: int,
        *,
        next_since: int | None = None,
        subscriptions: Iterable[str] = (),
        snapshots: Mapping[str, int] | None = None,
    ) -> None:
        payload: dict[str, Any] = {
            "partitions": ["p"],
            "effective_subscriptions": list(subscriptions),
            "events": [self.event(each) for each in ids],
            "next_since_committed_id": sync_to if next_since is None else next_since,
            "sync_to_committed_id": sync_to,
            "has_more": next_since is not None,
        }
        if snapshots is not None:
            payload["snapshots"] = [
                {"partition": name, "committed_id": at, "state": {}} for name, at in snapshots.items()
            ]
        self.frame(connection, "received", "sync_response", payload)

    def revoke(self, connection: str, *partitions: str) -> None:
        details = {"partitions": list(partitions), "revoked": True}
        error = {"code": "forbidden", "message": "", "details": details}
        self.frame(connection, "received", "error", error)

    def stored(self, committed_ids: Iterable[int] | None = None) -> list[HistoryEvent]:
        return [
            HistoryEvent(
                each,
                self.ids[each],
                tuple(self.partitions[self.ids[each]]),
                hash_of(event_of(self.ids[each]), self.partitions[self.ids[each]]),
            )
            for each in sorted(self.ids if committed_ids is None else committed_ids)
        ]

    def log(self, committed_ids: Iterable[int] | None = None, *, pruned_to: int = 0) -> None:
        """The final read of the log: all that was committed, unless said otherwise."""
        for each in self.stored(committed_ids):
            if each.committed_id > pruned_to:
                self.add(LogEvent(each.committed_id, each.id, each.partitions, each.hash))
        self.add(LogRead(max(self.ids, default=0), pruned_to))

    def lake(self, committed_ids: Iterable[int], upto: int) -> None:
        for number in committed_ids:
            (each,) = self.stored([number])
            self.add(LakeEvent(each.committed_id, each.id, each.partitions, each.hash))
        self.add(LakeRead(upto))

    def verdict(self) -> Verdict:
        return check_history(Located(f"line {n}", each) for n, each in enumerate(self.records, start=1))

    def broken(self) -> set[str]:
        """The invariants that are."""
        return {finding.invariant for finding in self.verdict().findings()}


def sound() -> Story:
    """Two clients that submit, get results and catch up; in the end everything is in log and lake."""
    story = Story()
    story.connect("a1", "a", scope=AccessScope(("p", "q")), expires_at=500.0)
    story.connect("b1", "b", scope=AccessScope((), ("p",)), extensions=["atomic"])
    story.sync("b1", subscribe=True)
    story.page("b1", [], 0, subscriptions=["p"])
    story.submit("a1", "e1", "e2", "e3")
    story.result("a1", {"e1": 1, "e2": None, "e3": 2})
    story.broadcast("b1", 1)
    story.broadcast("b1", 2)
    story.commit("a1", "e4", 3, ["q"])
    story.commit("b1", "e5", 4)
    story.submit("b1", "e7", "e8", atomic=True)
    story.result("b1", {"e7": None, "e8": None})
    story.commit("a1", "e6", 5, ["p", "q"])
    story.broadcast("b1", 5)
    story.connect("a2", "a")
    story.sync("a2", 1, ["p", "q"])
    story.page("a2", [2, 3], 5, next_since=3)
    story.sync("a2", 3, ["p", "q"])
    story.page("a2", [4, 5], 5)
    story.add(ClientCursor(story.tick(), "b", 4))
    story.add(ClientCursor(story.tick(), "b", 5))
    story.log()
    story.lake([1, 2, 3], 3)
    story.add(SnapshotRead("p", 2, "same", "same"))
    for client in ("b", "c"):
        story.add(
            ClientStore(client, ("p",), 5, ((1, "e1"), (2, "e3"), (4, "e5"), (5, "e6")), ("e9",), state="s")
        )
    return story
