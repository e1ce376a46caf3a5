"""Bugs in what is sent: broadcasts, pages, access, and clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any
from unittest.mock import patch

import msgspec

from tests.simulation.mutants.registry import Patches, around, mutant
from unisono.authority import loop as loop_module
from unisono.client.store.store import Store
from unisono.front.access import Access
from unisono.front.catchup import CatchUp
from unisono.front.deadlines import Deadlines
from unisono.front.hub import Hub
from unisono.front.sync_requests import SyncRequests
from unisono.ipc.messages import EventCommitted
from unisono.reader import process as reader_module
from unisono.reader import read_page as read_page_module
from unisono.store.port import WirePage
from unisono.store.sqlite.reader import SqliteReader

# -- broadcasts ----------------------------------------------------------------------------------------------


def publishing(change: Callable[[EventCommitted], Sequence[EventCommitted]]) -> Patches:
    def make(original: Any) -> Any:
        def publish(self: Hub, committed: EventCommitted) -> int:
            return sum(original(self, each) for each in change(committed))

        return publish

    return [around(Hub, "publish", make)]


@mutant("H7")
def an_event_is_sent_back_to_its_origin() -> Patches:
    return publishing(lambda committed: [msgspec.structs.replace(committed, origin=0)])


@mutant("H7")
def a_broadcast_is_lost() -> Patches:
    return publishing(lambda committed: [] if committed.committed_id % 4 == 0 else [committed])


@mutant("H7")
def broadcasts_change_places() -> Patches:
    held: list[EventCommitted] = []

    def change(committed: EventCommitted) -> Sequence[EventCommitted]:
        if committed.committed_id % 3 == 0:
            held.append(committed)
            return []
        taken, held[:] = [committed, *held], []
        return taken

    return publishing(change)


@mutant("H7", "H8")
def everybody_gets_everything() -> Patches:
    def receivers(self: Hub, _partitions: Any) -> list[Any]:
        found = {number: each for group in self._subscribers.values() for number, each in group.items()}
        return list(found.values())

    return [patch.object(Hub, "_receivers", receivers)]


@mutant("H1")
def the_content_changes_on_the_way() -> Patches:
    return publishing(
        lambda committed: [
            msgspec.structs.replace(committed, payload=committed.payload.replace(b'"n":1', b'"n":7'))
        ]
    )


# -- pages and watermarks ------------------------------------------------------------------------------------


@mutant("H5")
def the_watermark_is_one_short() -> Patches:
    def make(original: Any) -> Any:
        return lambda ticket, head: original(ticket, max(0, head - 1))

    return [around(loop_module, "HeadAnswer", make)]


@mutant("H7")
def subscribes_after_the_page() -> Patches:
    """Events between the head and the page are in neither."""

    def answering(original: Any) -> Any:
        def answer(self: CatchUp, ask: Any, sync_to: int, page: Any) -> None:
            CatchUp._set_subscriptions.__wrapped__(self, ask)  # type: ignore[attr-defined]
            original(self, ask, sync_to, page)

        return answer

    def setting(original: Any) -> Any:
        def nothing(_self: CatchUp, _ask: Any) -> None:
            pass

        nothing.__wrapped__ = original  # type: ignore[attr-defined]
        return nothing

    return [around(CatchUp, "_set_subscriptions", setting), around(CatchUp, "_answer", answering)]


def paging(change: Callable[[WirePage], slice | None]) -> Patches:
    """Of some pages only a part is sent."""

    def make(original: Any) -> Any:
        def wire_page(self: SqliteReader, *asked: Any, **more: Any) -> WirePage:
            page: WirePage = original(self, *asked, **more)
            part = change(page)
            if part is None:
                return page
            events = msgspec.json.decode(b"[%b]" % page.events)[part]
            last = events[-1]["committed_id"] if events else asked[1]
            joined = b",".join(map(msgspec.json.encode, events))
            return WirePage(joined, len(events), last, page.has_more)

        return wire_page

    return [around(SqliteReader, "wire_page", make)]


@mutant("H6")
def the_last_page_is_one_short() -> Patches:
    return paging(lambda page: None if page.has_more else slice(-1))


@mutant("H6")
def a_page_skips_its_first_event() -> Patches:
    return paging(lambda page: slice(1, None) if page.count > 1 else None)


@mutant("H6")
def a_page_is_in_the_wrong_order() -> Patches:
    return paging(lambda _: slice(None, None, -1))


@mutant("H6")
def the_next_page_starts_too_late() -> Patches:
    def make(original: Any) -> Any:
        def answer_page(*asked: Any) -> Any:
            page = original(*asked)
            return (
                msgspec.structs.replace(page, last=page.last + 1)
                if getattr(page, "has_more", False)
                else page
            )

        return answer_page

    return [around(reader_module, "answer_page", make)]


@mutant("H12")
def a_snapshot_claims_one_event_too_many() -> Patches:
    def make(original: Any) -> Any:
        def starting(*asked: Any) -> list[Any]:
            return [
                msgspec.structs.replace(each, committed_id=each.committed_id + 1)
                for each in original(*asked)
                if each.committed_id < asked[3]
            ]

        return starting

    return [around(read_page_module, "starting_snapshots", make)]


# -- access --------------------------------------------------------------------------------------------------


@mutant("H8")
def a_sync_may_read_everything() -> Patches:
    return [patch.object(SyncRequests, "denied", lambda *_: [])]


@mutant("H8")
def a_submission_may_go_everywhere() -> Patches:
    return [patch.object(Access, "denied", lambda *_: [])]


@mutant("H8")
def tokens_never_expire() -> Patches:
    return [patch.object(Deadlines, "_next_look", lambda *_: inf)]


# -- clients -------------------------------------------------------------------------------------------------


@mutant("H12")
def a_client_drops_a_draft_when_another_is_committed() -> Patches:
    def make(original: Any) -> Any:
        def apply(self: Store, events: Any, *more: Any) -> Any:
            applied = original(self, events, *more)
            if applied.settled and self.outbox.pending:
                id = next(iter(self.outbox.pending))
                self._connection.execute("DELETE FROM drafts WHERE id = ?", (id,))
                del self.outbox.pending[id]
            return applied

        return apply

    return [around(Store, "apply", make)]


@mutant("H12")
def a_client_moves_its_cursor_past_an_event() -> Patches:
    def make(original: Any) -> Any:
        def apply(self: Store, events: Any, *more: Any) -> Any:
            return original(self, events[:-1] if len(events) > 1 else events, *more)

        return apply

    return [around(Store, "apply", make)]
