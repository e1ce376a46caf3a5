"""The synchronous facade: the same client without an event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server
from tests.client.running import QUICK, WAIT_S
from unisono.client import (
    BlockingClient,
    ClientClosed,
    Committed,
    InvalidEvent,
    Phase,
    StoreForeign,
    StoreInUse,
    connect,
)


def blocking(server: Server, client_id: str, part: str, **more: Any) -> BlockingClient:
    given: dict[str, Any] = {
        "token": server.token(client_id), "partitions": [part], "profile": "compatibility", "options": QUICK
    }  # fmt: skip
    return connect(server.url, client_id=client_id, **given | more)


def test_everything_without_an_event_loop(server: Server, part: str, who: str) -> None:
    with blocking(server, who, part) as one, blocking(server, f"{who}-2", part) as two:
        changes = two.changes(part, timeout=WAIT_S)
        draft = one.tree("notes").push({"id": "a", "text": "x"})
        assert draft.event["type"] == "treePush"
        outcome = draft.settled(WAIT_S)
        assert isinstance(outcome, Committed)
        assert next(changes).committed_id == outcome.committed_id
        assert two.view() == one.view()
        two.tree("notes").push({"id": "b"}, parent="a", position="last")
        two.tree("notes").update("b", {"text": "y"})
        two.tree("notes").move("b", position={"after": "a"})
        two.set("settings", {"dark": True})
        two.set("settings", {"large": True}, replace=True)
        two.unset("settings.large")
        two.tree("notes").delete("a")
        two.caught_up(WAIT_S)
        assert two.view() == {
            "notes": {"items": {"b": {"text": "y"}}, "tree": [{"id": "b", "children": []}]},
            "settings": {},
        }
        assert one.pending() == []
        with pytest.raises(InvalidEvent):
            one.tree("notes").update("nobody", {})
        one.add_partition(f"{part}-b")
        one.caught_up(WAIT_S)
        assert one.view(f"{part}-b") == {}
        one.remove_partition(f"{part}-b")
        assert one.status.cursors.keys() == {part}
        assert list(one.changes(timeout=0.05)) == []


def test_pause_resume_retry_discard(server: Server, part: str, who: str) -> None:
    with blocking(server, who, part, token=server.token(who, partitions=[part])) as one:
        one.caught_up(WAIT_S)
        statuses = one.statuses(timeout=WAIT_S)
        one.pause()
        assert any(status.phase is Phase.OFFLINE for status in statuses)
        draft = one.submit([f"{part}-forbidden"], {"type": "unset", "payload": {"target": "a"}})
        with pytest.raises(TimeoutError):
            draft.settled(0.01)
        with pytest.raises(TimeoutError):
            one.caught_up(0.01)
        one.resume()
        draft.settled(WAIT_S)
        assert [each.id for each in one.rejected()] == [draft.id]
        one.retry(draft.id).settled(WAIT_S)
        one.discard(draft.id)
        assert one.rejected() == ()


def test_errors_are_raised_where_the_client_is_opened(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    with blocking(server, who, part, store=path) as one:
        second = blocking(server, who, part, store=path)
        with pytest.raises(StoreInUse):
            second.__enter__()
    with pytest.raises(StoreForeign), blocking(server, f"{who}-2", part, store=path):
        pass
    with pytest.raises(ClientClosed):
        one.set("a", 1)


def test_within_a_running_event_loop_as_in_a_notebook(server: Server, part: str, who: str) -> None:
    async def cell() -> None:
        with blocking(server, who, part) as one:
            one.set("a", 1)
            one.caught_up(WAIT_S)
            assert one.view() == {"a": 1}

    asyncio.run(cell())


def test_an_async_token_function_needs_no_loop_of_the_program(server: Server, part: str, who: str) -> None:
    async def token() -> str:
        return server.token(who)

    with blocking(server, who, part, token=token) as one:
        one.caught_up(WAIT_S)
