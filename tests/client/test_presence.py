"""Presence in the Python client: who is there, across reconnects, and never in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server
from tests.client.running import NOWHERE, WAIT_S, asynchronous, client, of, until
from unisono.client import InvalidEvent, Options, SyncClient, connect


def values(who: SyncClient) -> dict[str, Any]:
    return {each.client_id: each.value for each in who.presence().others}


@pytest.mark.req("EXT-05", "EXT-06")
@asynchronous
async def test_clients_see_each_other(server: Server, part: str, tmp_path: Path) -> None:
    a, b = f"{part}-a", f"{part}-b"
    token = server.token(a, user_id="ann")
    async with of(server, a, part, token=token, store=tmp_path / "a.db") as ann, of(server, b, part) as ben:
        await ann.caught_up(WAIT_S)
        await ben.caught_up(WAIT_S)
        news = ben.presence().changes()
        await ann.presence().set({"pointer": 0})
        for place in range(1, 50):  # as a pointer moves: the last one counts
            await ann.presence().set({"pointer": place})
        await until(lambda: values(ben) == {a: {"pointer": 49}})
        assert [each.user_id for each in ben.presence().others] == ["ann"]
        assert (await anext(news)).others[0].client_id == a
        assert values(ann) == {}  # oneself is not among the others
        await ann.pause()
        await until(lambda: values(ben) == {})
        await ann.presence().set("offline")
        await ann.resume()
        await until(lambda: values(ben) == {a: "offline"})
        await ben.presence().set(1)
        await until(lambda: values(ann) == {b: 1})
        await ann.presence().clear()
        await until(lambda: values(ben) == {})
        await ben.pause()
        assert values(ben) == {}
    assert b"pointer" not in (tmp_path / "a.db").read_bytes()


@pytest.mark.req("EXT-06")
@asynchronous
async def test_it_is_said_again_before_it_expires(server: Server, part: str) -> None:
    """The server here keeps a value for 30 s; with a quick heartbeat it is said again well before."""
    a = f"{part}-a"
    quick = Options(heartbeat_interval_s=0.05, backoff_base_s=0.02)
    async with of(server, a, part, options=quick) as ann, of(server, f"{part}-b", part) as ben:
        await ann.caught_up(WAIT_S)
        await ben.caught_up(WAIT_S)
        await ann.presence().set(1)
        await until(lambda: values(ben) == {a: 1})
        await ann.pause()
        await until(lambda: values(ben) == {})
        await ann.resume()
        await until(lambda: values(ben) == {a: 1})


@asynchronous
async def test_what_cannot_be_said(part: str) -> None:
    async with client(NOWHERE, "me", part) as one:
        for value in ("x" * 5000, 2**53 + 1, float("nan")):
            with pytest.raises(InvalidEvent):
                await one.presence(part).set(value)
        await one.presence(part).set("said when there is a connection")
        assert one.presence(part).others == ()


def test_the_blocking_client_has_it_too(server: Server, part: str) -> None:
    more: dict[str, Any] = {"profile": "compatibility", "partitions": [part]}
    a, b = f"{part}-a", f"{part}-b"
    with (
        connect(server.url, token=server.token(a), client_id=a, **more) as ann,
        connect(server.url, token=server.token(b), client_id=b, **more) as ben,
    ):
        ben.caught_up(WAIT_S)
        news = ben.presence().changes(timeout=WAIT_S)
        ann.caught_up(WAIT_S)
        ann.presence().set("hello")
        assert [each.value for each in next(news).others] == ["hello"]
        assert [each.client_id for each in ben.presence().others] == [a]
        ann.presence().clear()
        assert next(news).others == ()
