"""The pure core by hand: feed it, see what it asks for. Apply is answered `Stored` unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from unisono.client.options import Options
from unisono.client.sync.advance import Phase, SyncState, advance
from unisono.client.sync.inputs_effects import (
    Apply,
    Contradicted,
    Effect,
    Input,
    Opened,
    Received,
    ReportProblem,
    SendSync,
    Stored,
    SubmitNext,
    Submitted,
    WakeAt,
)
from unisono.protocol.client_codec import (
    Broadcast,
    Capabilities,
    CommittedEvent,
    Connected,
    ErrorMessage,
    Limits,
    SubmitResult,
    SubmitResultItem,
    SyncResponse,
)
from unisono.vocabulary import FieldError

E = TypeVar("E", bound=Effect)


def event(committed_id: int, *partitions: str, id: str | None = None) -> CommittedEvent:
    """A committed event, `e7` for committed_id 7."""
    body = {"type": "set", "payload": {"target": f"k{committed_id}", "value": committed_id}}
    return CommittedEvent(
        id or f"e{committed_id}",
        committed_id,
        partitions or ("p",),
        msgspec.Raw(msgspec.json.encode(body)),
        "other",
        1000,
    )


def page(
    *ids: int, to: int, more: bool = False, next_since: int | None = None, partition: str = "p", **told: Any
) -> SyncResponse:
    if next_since is None:
        next_since = ids[-1] if more else to
    return SyncResponse(tuple(event(n, partition) for n in ids), next_since, to, more, **told)


class Drive:
    """A state, and every effect it ever asked for, in order. Time is what the test says."""

    def __init__(self, **state: Any) -> None:
        given: dict[str, Any] = {
            "profile": "compatibility",
            "options": Options(),
            "cursors": {"p": 0},
        } | state
        self.state = SyncState(**given)
        self.now = 100.0
        self.effects: list[Effect] = []
        self.pending: list[str] = []
        self.clash: str | None = None

    def feed(self, happened: Input) -> list[Effect]:
        """What was asked for, with Apply and SubmitNext answered at once."""
        waiting = [happened]
        asked: list[Effect] = []
        while waiting:
            self.state, effects = advance(self.state, waiting.pop(0), self.now)
            for effect in effects:
                if isinstance(effect, WakeAt):
                    continue
                asked.append(effect)
                if isinstance(effect, Apply) and self.clash is not None:
                    waiting.append(Contradicted(self.clash))
                    self.clash = None
                    break
                if isinstance(effect, Apply):
                    self._settle(effect)
                    waiting.append(Stored())
                elif isinstance(effect, SubmitNext):
                    waiting.append(self._submitted(effect))
        self.effects += asked
        return asked

    def _submitted(self, effect: SubmitNext) -> Submitted:
        if effect.only is not None:
            return Submitted((effect.only,)) if effect.only in self.pending else Submitted(gone=effect.only)
        wanted = [id for id in self.pending if id not in effect.without]
        return Submitted(tuple(wanted[: effect.items_max]))

    def _settle(self, effect: Apply) -> None:
        gone = {each.id for each in effect.accepted} | {each.id for each in effect.refused}
        gone |= {each.id for each in effect.events}
        self.pending = [id for id in self.pending if id not in gone]

    def phase(self) -> Phase:
        return self.state.phase

    def submitted(self) -> tuple[str, ...]:
        return self.state.submitted

    # -- what a server says ----------------------------------------------------------------------------------

    def connect(self, *, ordered: bool = True, head: int = 0, **told: Any) -> list[Effect]:
        limits = told.pop("limits", Limits(max_message_bytes=1 << 20))
        capabilities = Capabilities("compatibility", ("set",), "strict", ordered)
        self.feed(Opened())
        return self.feed(Received(Connected("me", head, capabilities=capabilities, limits=limits, **told)))

    def live(self, *, to: int = 0, ordered: bool = True, **told: Any) -> None:
        """Connected and caught up with an empty answer to every sync."""
        self.connect(ordered=ordered, head=to, **told)
        while self.state.pending_request == "sync":
            self.feed(Received(page(to=to)))

    def page(self, *ids: int, **told: Any) -> list[Effect]:
        return self.feed(Received(page(*ids, **told)))

    def broadcast(self, committed_id: int, *partitions: str, id: str | None = None) -> list[Effect]:
        return self.feed(Received(Broadcast(event(committed_id, *partitions, id=id))))

    def error(self, code: str, details: Any = None, **told: Any) -> list[Effect]:
        return self.feed(Received(ErrorMessage(code, f"says {code}", details, **told)))

    def results(self, *results: SubmitResultItem) -> list[Effect]:
        return self.feed(Received(SubmitResult(results)))


def committed(id: str, committed_id: int) -> SubmitResultItem:
    return SubmitResultItem(id, "committed", committed_id, status_updated_at=1000)


def rejected(
    id: str, reason: str = "validation_failed", errors: Sequence[FieldError] = ()
) -> SubmitResultItem:
    told = [{"field": error.field, "message": error.message} for error in errors]
    return SubmitResultItem(id, "rejected", reason=reason, errors=told)


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def one(kind: type[E], effects: Iterable[Effect]) -> E:
    (found,) = of(kind, effects)
    return found


def asked(effects: Iterable[Effect]) -> tuple[tuple[str, ...], int]:
    """The partitions and the start of the one sync among these."""
    sync = one(SendSync, effects)
    return sync.partitions, sync.since


def stored(effects: Iterable[Effect]) -> list[int]:
    """The committed ids handed to the store, in order."""
    return [each.committed_id for apply in of(Apply, effects) for each in apply.events]


def reports(effects: Iterable[Effect]) -> list[str]:
    return [report.code for report in of(ReportProblem, effects)]
