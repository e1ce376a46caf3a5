"""A log put back from a backup: clients that have seen more than it holds start over, and say so."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.behaviour.server.harness import Server, running, set_event
from tests.client.proxy import Proxy
from tests.client.running import WAIT_S, asynchronous, of, until
from tests.commands import unisono
from unisono.client import SyncClient
from unisono.vocabulary import LogIdentity

SERVE = ("--access-default", "allow")


def back_up(data: Path, backup: Path) -> None:
    """Beside a running server: by the command, and as a plain file."""
    done = unisono("backup", str(backup.with_name("target")), "--data", str(data))
    assert done.exit_code == 0, done.output
    backup.mkdir()
    connection = apsw.Connection(str(data / "log.db"), flags=apsw.SQLITE_OPEN_READONLY)
    connection.execute("VACUUM INTO ?", (str(backup / "log.db"),))
    connection.close()


def by_backups(backup: Path, data: Path) -> None:
    done = unisono("restore", "--from", str(backup.with_name("target")), "--data", str(data))
    assert done.exit_code == 0, done.output


def by_command(backup: Path, data: Path) -> None:
    done = unisono("restore", "--from", str(backup), "--data", str(data))
    assert done.exit_code == 0, done.output


def by_hand(backup: Path, data: Path) -> None:
    data.mkdir()
    shutil.copy(backup / "log.db", data)


def behind_our_back(backup: Path, data: Path) -> None:
    """A whole directory is the same log, whoever put it there; somebody has to say that it is older."""
    done = unisono("restore", "--from", str(backup), "--data", str(data.with_name("aside")))
    assert done.exit_code == 0, done.output
    shutil.copytree(data.with_name("aside"), data)
    done = unisono("db", "new-epoch", "--data", str(data))
    assert done.exit_code == 0, done.output
    assert "clients start over" in done.output


def identity_of(server: Server) -> LogIdentity:
    with server.peer() as peer:
        told = peer.connect("looker", server.token("looker"), supported_profiles=["compatibility"])
        page = peer.sync(["nothing"])
    assert (page["log_id"], page["log_epoch"]) == (told["log_id"], told["log_epoch"])
    return LogIdentity(told["log_id"], told["log_epoch"])


def put(server: Server, part: str, **values: int) -> None:
    with server.client("writer") as writer:
        for target, value in values.items():
            writer.commit([part], set_event(target, value))


async def expect_as_fresh(server: Server, one: SyncClient, part: str) -> None:
    await one.caught_up(WAIT_S)
    async with of(server, "fresh", part) as fresh:
        await fresh.caught_up(WAIT_S)
        assert one.view() == fresh.view()
        assert one.status.cursor == fresh.status.cursor


@pytest.mark.req("DUR-08", "CLIENT-11")
@pytest.mark.parametrize("restore", [by_backups, by_command, by_hand, behind_our_back])
@asynchronous
async def test_a_client_starts_over_after_a_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, restore: Callable[[Path, Path], None]
) -> None:
    """Its cursor lies below the new head, and the view would be nobody else's."""
    part, store = "p", tmp_path / "c.db"
    with Proxy("ws://127.0.0.1:9/sync") as proxy:
        with running(tmp_path / "first", *SERVE) as first:
            before = identity_of(first)
            put(first, part, a=1, b=2)
            back_up(first.data, tmp_path / "backup")
            proxy.aim(first.url)
            async with of(first, "me", part, url=proxy.url, store=store) as one:
                await one.set("mine", 3)
                await one.caught_up(WAIT_S)
                put(first, part, theirs=4)
                await until(lambda: one.status.cursor == 4)
        restore(tmp_path / "backup", tmp_path / "second")
        with running(tmp_path / "second", *SERVE) as second:
            assert identity_of(second) != before
            put(second, part, other=3, and_more=4, past=5)
            async with of(second, "me", part, url="ws://127.0.0.1:9/sync", store=store) as offline:
                draft = await offline.set("draft", 1)
                assert offline.view() == {"a": 1, "b": 2, "mine": 3, "theirs": 4, "draft": 1}
            proxy.aim(second.url)
            with caplog.at_level(logging.WARNING, "unisono.client"):
                async with of(second, "me", part, url=proxy.url, store=store) as one:
                    await expect_as_fresh(second, one, part)
                    assert one.view() == {"a": 1, "b": 2, "other": 3, "and_more": 4, "past": 5, "draft": 1}
                    assert one.status.last_error is not None
                    assert one.status.last_error.code == "log_changed"
            assert "1 events of this client were confirmed in the former log" in caplog.text
            assert draft.id in {event["id"] for event in second.client("reader").history([part])}
            async with of(second, "me", part, url=proxy.url, store=store) as again:
                await expect_as_fresh(second, again, part)
                assert again.status.last_error is None, "once is enough"


@pytest.mark.req("DUR-08")
@asynchronous
async def test_a_connected_client_finds_out_when_it_reconnects(tmp_path: Path) -> None:
    part = "p"
    with Proxy("ws://127.0.0.1:9/sync") as proxy, running(tmp_path / "first", *SERVE) as first:
        put(first, part, a=1)
        back_up(first.data, tmp_path / "backup")
        proxy.aim(first.url)
        async with of(first, "me", part, url=proxy.url) as one:
            put(first, part, b=2)
            await until(lambda: one.status.cursor == 2)
            by_command(tmp_path / "backup", tmp_path / "second")
            with running(tmp_path / "second", *SERVE) as second:
                put(second, part, c=2, d=3)
                proxy.aim(second.url)
                first.kill()
                await until(lambda: one.view() == {"a": 1, "c": 2, "d": 3})
                await expect_as_fresh(second, one, part)


@pytest.mark.req("DUR-08")
@asynchronous
async def test_a_directory_that_was_copied_as_a_whole_is_the_same_log(tmp_path: Path) -> None:
    store = tmp_path / "c.db"
    with running(tmp_path / "first", *SERVE) as first:
        before = identity_of(first)
        async with of(first, "me", "p", store=store) as one:
            await one.set("a", 1)
            await one.caught_up(WAIT_S)
        first.stop()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    with running(tmp_path / "second", *SERVE) as second:
        assert identity_of(second) == before
        put(second, "p", b=2)
        async with of(second, "me", "p", store=store) as one:
            await one.caught_up(WAIT_S)
            assert one.view() == {"a": 1, "b": 2}
            assert one.status.last_error is None


@pytest.mark.req("DUR-08")
@asynchronous
async def test_a_store_that_knows_no_log_notes_the_first_one_it_hears_of(tmp_path: Path) -> None:
    """As one written by an earlier version of this library."""
    store = tmp_path / "c.db"
    with running(tmp_path / "data", *SERVE) as server:
        async with of(server, "me", "p", store=store) as one:
            await one.set("a", 1)
            await one.caught_up(WAIT_S)
        connection = apsw.Connection(str(store))
        connection.execute("DELETE FROM meta WHERE key IN ('log_id', 'log_epoch', 'model_digest')")
        connection.close()
        for _ in range(2):
            async with of(server, "me", "p", store=store) as one:
                await one.caught_up(WAIT_S)
                assert (one.view(), one.status.last_error) == ({"a": 1}, None)
        connection = apsw.Connection(str(store))
        noted: dict[Any, Any] = {key: value for key, value in connection.execute("SELECT * FROM meta")}  # noqa: C416
        connection.close()
        assert LogIdentity(noted["log_id"], noted["log_epoch"]) == identity_of(server)
