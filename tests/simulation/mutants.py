"""Bugs, put into the product's code while a simulation runs: each breaks a promise, and the checker has to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from typing import Any
from unittest.mock import patch

import msgspec

from unisono.authority import group as group_module
from unisono.authority import loop as loop_module
from unisono.authority.answers import COMMITTED_FORMAT, rejected_result
from unisono.authority.client_claims import ClientClaims
from unisono.authority.judge import COMMIT, Duplicate, Reject, judge
from unisono.authority.outboxes import Outboxes
from unisono.client.store.store import Store
from unisono.front.access import Access
from unisono.front.catchup import CatchUp
from unisono.front.deadlines import Deadlines
from unisono.front.hub import Hub
from unisono.front.sync_requests import SyncRequests
from unisono.ipc.messages import Candidate, EventCommitted
from unisono.reader import process as reader_module
from unisono.reader import read_page as read_page_module
from unisono.store.port import StorageError, WirePage
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.reader import SqliteReader

Patches = list[Any]
MUTANTS: dict[str, tuple[set[str], Callable[[], Patches]]] = {}


def mutant(*invariants: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register a bug with the invariants of which it breaks one at least."""

    def remember(make: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS[make.__name__] = set(invariants), make
        return make

    return remember


@contextmanager
def applied(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for each in MUTANTS[name][1]():
            stack.enter_context(each)
        yield


def around(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """A patch of a function or method, made from the original."""
    return patch.object(owner, name, make(getattr(owner, name)))


# -- durability ----------------------------------------------------------------------------------------------


@mutant("H1", "H2")
def commits_are_not_synced() -> Patches:
    def make(original: Any) -> Any:
        def init(self: SqliteLog, connection: Any, *more: Any, **named: Any) -> None:
            original(self, connection, *more, **named)
            connection.pragma("synchronous", 0)

        return init

    return [around(SqliteLog, "__init__", make)]


@mutant("H2", "H7", "H12")
def answers_leave_before_the_commit() -> Patches:
    return [patch.object(Outboxes, "stage", lambda self, front, message: self.send(front, [message]))]


@mutant("H1", "H2")
def a_failed_commit_is_taken_for_done() -> Patches:
    def make(original: Any) -> Any:
        def commit(self: SqliteLog, records: Any) -> None:
            try:
                original(self, records)
            except StorageError:
                self._failure = self._group_head = None
                with suppress(Exception):
                    self._connection.execute("ROLLBACK")

        return commit

    return [around(SqliteLog, "commit", make)]


@mutant("H1", "H2")
def an_id_is_given_again_after_a_restart() -> Patches:
    def make(original: Any) -> Any:
        def opened(directory: Any, **more: Any) -> SqliteLog:
            log: SqliteLog = original(directory, **more)
            head = log.head()
            for sql in (
                "DELETE FROM events WHERE committed_id = ?",
                "DELETE FROM event_partitions WHERE committed_id = ?",
                "UPDATE head SET committed_id = ? - 1 WHERE committed_id > 0",
            ):
                log._connection.execute(sql, (head,))
            return log

        return opened

    return [patch.object(SqliteLog, "open", make(SqliteLog.open))]


# -- judging -------------------------------------------------------------------------------------------------


@mutant("H1")
def deduplicates_by_id_only() -> Patches:
    def make(original: Any) -> Any:
        def judge(item: Any, profile: str, known: Any, *more: Any) -> Any:
            if isinstance(item, Candidate) and item.id in known:
                return Duplicate(known[item.id])
            return original(item, profile, known, *more)

        return judge

    return [around(group_module, "judge", make)]


@mutant("H1")
def a_retry_gets_another_number() -> Patches:
    def make(original: Any) -> Any:
        def judge(*question: Any) -> Any:
            verdict = original(*question)
            if isinstance(verdict, Duplicate):
                known = verdict.known
                return Duplicate(msgspec.structs.replace(known, committed_id=known.committed_id + 1))
            return verdict

        return judge

    return [around(group_module, "judge", make)]


@mutant("H3")
def stores_what_it_rejects() -> Patches:
    wrong: set[str] = set()

    def judging(original: Any) -> Any:
        def judge(item: Any, *more: Any) -> Any:
            verdict = original(item, *more)
            known = more[1]
            if isinstance(verdict, Reject) and isinstance(item, Candidate) and item.id not in known:
                wrong.add(item.id)
                return COMMIT
            return verdict

        return judge

    class LyingFormat:
        def __mod__(self, values: tuple[bytes, int, int]) -> bytes:
            id = msgspec.json.decode(values[0], type=str)
            if id in wrong:
                return rejected_result(id, values[1], Reject("validation_failed", ()))
            return COMMITTED_FORMAT % values

    return [
        around(group_module, "judge", judging),
        patch.object(group_module, "COMMITTED_FORMAT", LyingFormat()),
    ]


@mutant("H13")
def an_atomic_batch_is_committed_in_part() -> Patches:
    def apart(items: Any, profile: str, known: Any, states: Any, by: Any, _: Any) -> list[Any]:
        return [judge(item, profile, known, states.stage, by) for item in items]

    return [patch.object(group_module, "judge_atomic", apart)]


@mutant("H1", "H4")
def a_batch_is_answered_backwards() -> Patches:
    def make(original: Any) -> Any:
        def outcome(conn: int, results: Sequence[bytes]) -> Any:
            entries = [msgspec.json.decode(each) for each in results]
            numbers = [each.get("committed_id") for each in entries][::-1]
            for entry, number in zip(entries, numbers, strict=True):
                if "committed_id" in entry and number is not None:
                    entry["committed_id"] = number
            return original(conn, [msgspec.json.encode(each) for each in entries])

        return outcome

    return [around(group_module, "batch_outcome", make)]


@mutant("H10")
def a_replaced_connection_goes_on() -> Patches:
    def make(original: Any) -> Any:
        def claim(self: ClientClaims, client_id: str, conn: int) -> None:
            original(self, client_id, conn)

        return claim

    return [around(ClientClaims, "claim", make), patch.object(ClientClaims, "has", lambda *_: True)]


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
