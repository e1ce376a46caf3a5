"""Atomic batches: clients that submit them, also while their server is killed, and what must be in the log then."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.behaviour.server.harness import Peer, Server, item, tree_event
from tests.behaviour.server.killing import Gone, answer, until_gone
from tests.waiting import PATIENCE_S
from unisono.store.port import Record


def atomic(server: Server, client_id: str, **more: Any) -> Peer:
    """A client with the extension."""
    return server.client(client_id, **{"extensions": ["atomic"], **more})


def together(peer: Peer, *items: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    peer.send("submit_events", {"events": list(items), "atomic": True, **more})
    results: list[dict[str, Any]] = peer.expect("submit_events_result")["results"]
    return results


def outcomes(results: list[dict[str, Any]]) -> list[Any]:
    """`committed` or the reason of each."""
    return [result.get("reason", result["status"]) for result in results]


def adjacent(results: list[dict[str, Any]]) -> bool:
    ids = [result["committed_id"] for result in results]
    return ids == [*range(ids[0], ids[0] + len(ids))]


class BatchWriter:
    """Submits atomic batches until the server is gone, and sends what was not answered again afterwards."""

    def __init__(self, number: int) -> None:
        self.client_id = f"writer-{number}"
        self.batches: list[list[dict[str, Any]]] = []
        self.answered: dict[int, list[int]] = {}
        self._chance = random.Random(number)

    def work(self, server: Server) -> None:
        with contextlib.suppress(Gone), self._session(server) as peer:
            while True:
                start = len(self.batches)
                for _ in range(3):
                    size = self._chance.randrange(2, 30)
                    name = f"{self.client_id}-{len(self.batches)}"
                    self.batches.append(
                        [
                            item([f"part-{n % 3}"], tree_event(f"{name}-{n}", text="x" * 300))
                            for n in range(size)
                        ]
                    )
                    self._send(peer, len(self.batches) - 1)
                for number in range(start, len(self.batches)):
                    self._read(peer, number)

    def finish(self, server: Server) -> int:
        """Everything unanswered again; how many of those were in the log already."""
        recovered = 0
        with self._session(server) as peer:
            head = self._head
            for number in range(len(self.batches)):
                if number not in self.answered:
                    self._send(peer, number)
                    self._read(peer, number)
                    recovered += self.answered[number][0] <= head
        return recovered

    @contextlib.contextmanager
    def _session(self, server: Server) -> Iterator[Peer]:
        with until_gone():
            peer = server.peer()
        with contextlib.closing(peer):
            with until_gone():
                peer.send_connect(
                    self.client_id, server.token(self.client_id),
                    supported_profiles=["compatibility"], extensions=["atomic"],
                )  # fmt: skip
            self._head = answer(peer, "connected")["server_last_committed_id"]
            yield peer

    def _send(self, peer: Peer, number: int) -> None:
        with until_gone():
            peer.send("submit_events", {"events": self.batches[number], "atomic": True})

    def _read(self, peer: Peer, number: int) -> None:
        results = answer(peer, "submit_events_result")["results"]
        assert outcomes(results) == ["committed"] * len(results), results
        assert adjacent(results)
        self.answered[number] = [result["committed_id"] for result in results]


def kill_while_writing(
    writers: Sequence[BatchWriter],
    servers: Sequence[Server],
    kill: Callable[[], None],
    answered_min: int = 30,
) -> None:
    threads = [
        threading.Thread(target=writer.work, args=[servers[number % len(servers)]])
        for number, writer in enumerate(writers)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_S
    while sum(len(writer.answered) for writer in writers) < answered_min:
        assert time.monotonic() < end
        time.sleep(0.002)
    kill()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def all_or_none(writers: Sequence[BatchWriter], records: Sequence[Record]) -> int:
    """Every batch is in the log in one piece, or not at all; how many are."""
    places = {record.id: record.committed_id for record in records}
    whole = 0
    for writer in writers:
        for number, batch in enumerate(writer.batches):
            found = [places.get(each["id"]) for each in batch]
            assert None not in found or not any(found), (writer.client_id, number, found)
            if found[0] is not None:
                assert found == [*range(found[0], found[0] + len(found))]
                whole += 1
            if number in writer.answered:
                assert found == writer.answered[number]
    return whole
