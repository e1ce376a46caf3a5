"""The replay process from the node's side: a stuck one is killed, an idle one ends, a full queue refuses."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.store.records import append
from tests.waiting import until
from unisono.config import Settings
from unisono.console import process_client
from unisono.console.errors import ConsoleBusy, ConsoleRefused
from unisono.console.process_client import WAITING_MAX, ProcessClient
from unisono.console.process_requests import AskPartitionHistory, AskState, StartReplays
from unisono.store.sqlite.log import SqliteLog

HISTORY = AskPartitionHistory("p")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    log = SqliteLog.open(tmp_path)
    append(log, [["p"], ["q"], ["p"]])
    log.close()
    return Settings(data=str(tmp_path))


def replays(settings: Settings) -> ProcessClient:
    return ProcessClient("replay", "unisono.console.replay_process", StartReplays(settings))


def pid(client: ProcessClient) -> int:
    assert client._process is not None
    return client._process.pid


def test_a_stuck_process_is_killed_and_replaced(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = replays(settings)
        history = await client.ask(HISTORY)
        assert isinstance(history, dict)
        assert history["ids"] == [1, 3]
        stuck = pid(client)
        os.kill(stuck, signal.SIGSTOP)
        monkeypatch.setattr(process_client, "ANSWER_S", 0.2)
        with pytest.raises(ConsoleRefused, match="longer than"):
            await client.ask(HISTORY)
        monkeypatch.undo()
        with pytest.raises(ProcessLookupError):
            os.kill(stuck, 0)
        assert await client.ask(HISTORY) == history
        assert pid(client) != stuck
        await client.close()
        with pytest.raises(ConsoleBusy):
            await client.ask(HISTORY)

    asyncio.run(scenario())


def test_an_idle_process_ends_and_the_next_request_starts_another(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        client = replays(settings)
        monkeypatch.setattr(process_client, "IDLE_S", 0.05)
        await client.ask(HISTORY)
        idle = pid(client)
        await asyncio.to_thread(until, lambda: not Path(f"/proc/{idle}").exists(), "the process runs on")
        monkeypatch.undo()
        assert await client.ask(AskState("p", 3)) == {
            "value": {"tree": {}, "data": {}},
            "left_out": [],
            "skipped": 2,
        }
        await client.close()

    asyncio.run(scenario())


def test_requests_beyond_the_queue_are_refused(settings: Settings) -> None:
    async def scenario() -> None:
        client = replays(settings)
        asked = [asyncio.create_task(client.ask(HISTORY)) for _ in range(WAITING_MAX + 3)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, ConsoleBusy) for each in answers].count(True) == 3
        assert [each for each in answers if isinstance(each, dict)] == [answers[0]] * WAITING_MAX
        await client.close()

    asyncio.run(scenario())
