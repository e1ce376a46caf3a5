"""Bugs in what is committed: durability and judging."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import msgspec

from tests.simulation.mutants.registry import Patches, around, mutant
from unisono.authority import group as group_module
from unisono.authority.answers import COMMITTED_FORMAT, rejected_result
from unisono.authority.client_claims import ClientClaims
from unisono.authority.judge import COMMIT, Duplicate, Reject, judge
from unisono.authority.outboxes import Outboxes
from unisono.front.claims import Claims
from unisono.ipc.messages import Candidate
from unisono.store.port import StorageError
from unisono.store.sqlite.log import SqliteLog

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


@mutant("H10")
def the_only_front_lets_a_replaced_connection_go_on() -> Patches:
    def make(original: Any) -> Any:
        def claim(self: Claims, conn: int, client_id: str, _replace: Any, on_claimed: Any) -> None:
            original(self, conn, client_id, lambda _: None, on_claimed)

        return claim

    return [around(Claims, "claim", make), patch.object(ClientClaims, "has", lambda *_: True)]
