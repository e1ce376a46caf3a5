"""A node stops in the middle of a group, with the head of the log locked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.nodes.cluster import client_again, cluster, expect_let_go, head_of, ids
from tests.behaviour.server.harness import Closed, Peer, Server, item
from tests.store.postgres.server import shared_server
from tests.waiting import PATIENCE_S, until

HOLD_S = 8.0
"""How long a node may keep others waiting; then PostgreSQL ends its group."""

TOO_LONG = "due to idle-in-transaction timeout"
"""What PostgreSQL says when it does."""

RULES = """
import time
from pathlib import Path
from unisono.model.rules import Event, Rules

rules = Rules()
FOLDER = Path({folder!r})

@rules.check("note")
def take_time(state, event: Event):
    if event.data == "slow" and (FOLDER / "slow").exists():
        (FOLDER / "judging").touch()
        while (FOLDER / "slow").exists():
            time.sleep(0.01)
    return ()
"""


class Holding:
    """Two nodes whose model keeps the head locked as long as a file is there."""

    def __init__(self, folder: Path, a: Server, b: Server) -> None:
        self.a, self.b = a, b
        self._slow, self._judging = folder / "slow", folder / "judging"
        self.draft: dict[str, Any] = {}
        self.head = 0
        self.held_since = 0.0
        self._stopped: int | None = None

    def start(self, part: str, *, standing: bool = False) -> tuple[Peer, Peer]:
        """A client of a whose draft is being judged under the lock, and one of b whose draft waits for that.

        `standing`: the process that judges is stopped; a rule alone would be stopped before the group is ended.
        """
        self.draft = item([part], note("slow"))
        holder, waiting = self.a.client("holder", "canonical"), self.b.client("waiting", "canonical")
        self.head = head_of(waiting)
        self._judging.unlink(missing_ok=True)
        self._slow.touch()
        self.held_since = time.monotonic()
        holder.send("submit_events", {"events": [self.draft]})
        until(self._judging.exists, "the rule does not run")
        if standing:
            self._stopped = next(iter(self.a.children()))
            os.kill(self._stopped, signal.SIGSTOP)
        waiting.send("submit_events", {"events": [item(["q"], note("quick"))]})
        waiting.expect_quiet()
        return holder, waiting

    def end(self) -> None:
        self._slow.unlink(missing_ok=True)
        if self._stopped is not None:
            os.kill(self._stopped, signal.SIGCONT)
            self._stopped = None


def note(text: str) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": "note", "data": text}}


@pytest.fixture(scope="module")
def holding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holding]:
    folder, postgres = tmp_path_factory.mktemp("holding"), shared_server()
    model = folder / "model"
    (model / "schemas").mkdir(parents=True)
    (model / "schemas" / "note.json").write_text('{"type": "string"}')
    (model / "rules.py").write_text(RULES.format(folder=str(folder)))
    (model / "model.toml").write_text('name = "notes"\nmodel_version = 1\nrules = "rules.py"\n')
    dsn = postgres.create()
    limits = ("--store-group-timeout-s", f"{HOLD_S:g}", "--rule-timeout-s", f"{HOLD_S / 4:g}")
    with cluster(folder, dsn, "ab", "--model", str(model), *limits) as (a, b):
        held = Holding(folder, a, b)
        yield held
        held.end()
    postgres.drop(dsn)


def result_of(peer: Peer) -> dict[str, Any]:
    result: dict[str, Any]
    (result,) = peer.expect("submit_events_result")["results"]
    assert result["status"] == "committed", result
    return result


@pytest.mark.req("DUR-04", "ORD-02", "ORD-03")
def test_a_node_that_stands_still_keeps_the_others_waiting_for_a_while_only(
    holding: Holding, part: str
) -> None:
    """Its group is ended by the database. When it moves again it finds that out, and commits nothing of it."""
    holder, waiting = holding.start(part, standing=True)
    assert result_of(waiting)["committed_id"] == holding.head + 1
    assert time.monotonic() - holding.held_since > HOLD_S, "the lock was not held at all"
    holder.expect_quiet()
    holding.end()
    expect_let_go(holder)
    with client_again(holding.a, "holder", "canonical") as again:
        (result,) = again.submit(holding.draft)
        assert result["committed_id"] == holding.head + 2
        assert ids(again.sync([part])["events"]) == [holding.draft["id"]]


@pytest.mark.req("CONN-05", "ORD-02")
def test_a_client_leaves_a_node_that_hangs(holding: Holding, part: str) -> None:
    """It is not told `connected` elsewhere while a draft of its earlier connection may still be committed."""
    holder, waiting = holding.start(part)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(holding.b.client, "holder", "canonical")
        time.sleep(0.3)
        assert not coming.done()
        holding.end()
        with coming.result(timeout=PATIENCE_S) as successor:
            assert ids(successor.sync([part])["events"]) == [holding.draft["id"]]
            assert result_of(holder)["committed_id"] == holding.head + 1
            holder.expect_close(4003)
            assert result_of(waiting)["committed_id"] == holding.head + 2
            successor.commit([part], note("more"))


@pytest.mark.req("DUR-02", "DUR-04", "ORD-02")
def test_a_node_is_killed_with_the_head_locked(holding: Holding, part: str) -> None:
    """The last test: node a is gone afterwards."""
    ended = shared_server().log().count(TOO_LONG)
    holder, waiting = holding.start(part)
    os.killpg(holding.a.process.pid, signal.SIGKILL)
    assert result_of(waiting)["committed_id"] == holding.head + 1
    assert shared_server().log().count(TOO_LONG) == ended, "its end was not noticed"
    with pytest.raises(Closed):
        holder.receive()
    holding.end()
    with holding.b.client("holder", "canonical") as again:
        (result,) = again.submit(holding.draft)
        assert result["committed_id"] == holding.head + 2, "it was not committed before"
