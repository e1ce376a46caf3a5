"""Transactions, undo and history of Python clients on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.nodes.cluster import cluster
from tests.client.running import WAIT_S, asynchronous, of, until
from unisono.client import UndoRefused


@pytest.mark.req("CLIENT-17", "CLIENT-20", "CLIENT-22", "EXT-10", "EXT-20")
def test_what_one_takes_back_is_seen_on_the_other_node(tmp_path: Path, database: str) -> None:
    with cluster(tmp_path, database, "ab", "--model", "open", "--access-default", "allow") as (one, other):

        @asynchronous
        async def play() -> None:
            async with of(one, "ann", "p") as ann, of(other, "ben", "p") as ben:
                await ann.caught_up(WAIT_S)
                await ben.caught_up(WAIT_S)
                async with ann.transaction() as both:
                    await ann.tree("outline").push({"id": "a", "title": "A"})
                    await ann.set("theme", "dark")
                await both.settled(WAIT_S)
                await until(lambda: ben.view("p") == ann.view("p"))
                await ann.undo()
                await until(lambda: ben.view("p") == ann.view("p"))
                draft = await ben.tree("outline").update("a", {"title": "B"})
                await draft.settled(WAIT_S)  # Ann may hear of it before Ben has his answer
                await until(lambda: ben.view("p") == ann.view("p"))
                with pytest.raises(UndoRefused) as refused:
                    await ann.undo()  # it would take away what Ben has done since
                assert refused.value.reason == "changed"
                page = await ben.history("p")
                assert [entry.client_id for entry in page.entries] == ["ben", "ann", "ann", "ann"]

        play()
