"""The real client's core in a simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

import apsw
import orjson

from tests.simulation.clients import ClientWorld, SimulatedClient, random_event
from tests.simulation.disk import SimulatedDisk
from unisono.client.config import configure
from unisono.client.core import Core
from unisono.client.errors import ClientError, InvalidEvent, TransactionRefused
from unisono.client.options import Options
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.sync.inputs_effects import Dialing, Lost, Opened, Received, TimerFired
from unisono.client.sync.state import Phase
from unisono.history.records import AccessScope, ClientCursor, ClientStore, ConnectionClosed, Operation
from unisono.protocol.client_codec import connect_payload, decode
from unisono.protocol.extensions import ATOMIC

STORE_FILE = "client.db"


class CoreClient(SimulatedClient):
    """The real client but for its thread and socket, on a disk of its own; also its core's connection."""

    def __init__(
        self,
        world: ClientWorld,
        client_id: str,
        scope: AccessScope,
        partitions: Sequence[str],
        disk: SimulatedDisk,
    ) -> None:
        super().__init__(world, client_id, scope)
        self.partitions = tuple(partitions)
        self.disk = disk
        self.wake: float | None = None
        self.eager = 1.0
        """How likely it dials."""
        self._number = 0
        self._cursor = -1
        self.core = self._start()

    def _start(self) -> Core:
        config = configure(
            "ws://nowhere",
            token="t",
            client_id=self.client_id,
            store=str(self.disk.directory / STORE_FILE),
            partitions=self.partitions,
            model=None,
            profile="compatibility",
            options=Options(buffer_events_max=8, snapshot_every=5, page_limit=3, snapshots=True),
        )
        return Core(config, self, lambda: self.world.now, lambda: int(self.world.now * 1000))

    # -- its core's connection -------------------------------------------------------------------------------

    def connect(self, last_committed_id: int, *, snapshots: bool) -> None:
        payload = connect_payload(
            token=self.token,
            client_id=self.client_id,
            profile="compatibility",
            last_committed_id=last_committed_id,
            snapshots=snapshots,
            extensions=(ATOMIC,),
        )
        self.send("connect", payload)

    def drop_connection(self) -> None:
        if self.line is not None:
            self.line.break_off()

    def retry(self, new_token: bool) -> None:
        pass

    def stop(self, reason: str) -> None:
        raise AssertionError(f"{self.client_id} stops: {reason}")

    def wake_at(self, at: float) -> None:
        if self.wake is None or at < self.wake:
            self.wake = at

    # -- what may happen -------------------------------------------------------------------------------------

    def dial(self) -> None:
        if self.open_line():
            self.core.feed(Dialing())
            self.core.feed(Opened())
            self._note_cursor()

    def fire(self) -> None:
        self.wake = None
        self.core.feed(TimerFired())

    def draft(self) -> None:
        """One event, or a transaction."""
        if self.world.random.random() < 0.25:
            requests = [self._request() for _ in range(self.world.random.randint(2, 3))]
            with suppress(InvalidEvent, TransactionRefused):
                self._invoked(self.core.submit_together(requests))
        else:
            self._invoked(self.core.submit([self._request()]))

    def _request(self) -> SubmitRequest:
        random = self.world.random
        self._number += 1
        partitions = tuple(sorted(random.sample(self.partitions, random.randint(1, len(self.partitions)))))
        return SubmitRequest(
            f"{self.client_id}-{self._number}", partitions, random_event(random, self._number)
        )

    def _invoked(self, answers: Sequence[Ticket | ClientError]) -> None:
        for answer in answers:
            if isinstance(answer, Ticket):
                self.world.record(Operation(self.world.now, self.client_id, answer.draft.id, "invoked"))

    def received(self, data: bytes) -> None:
        message = decode(data)
        if message is not None:
            self.core.feed(Received(message))
            self._note_cursor()

    def lost(self, code: int | None) -> None:
        self.core.feed(Lost(code))

    def _note_cursor(self) -> None:
        """The cursor of the partition that is furthest behind."""
        cursor = min(self.core.state.cursors.values(), default=0)
        if cursor > self._cursor:
            self._cursor = cursor
            self.world.record(ClientCursor(self.world.now, self.client_id, cursor))

    def crash(self, random: Random | None) -> None:
        """The program dies, or its machine loses power; it starts again from its store."""
        if self.line is not None:
            self.line.break_off()
            self.line.client_knows = True
            self.world.record(ConnectionClosed(self.world.now, self.line.name))
            self.line = None
        self.wake = None
        core = self.core

        def close() -> None:
            with suppress(apsw.Error):  # in the middle of a transaction
                core.store.close(failed=True)

        self.disk.crash(close, random)
        self.core = self._start()

    @property
    def settled(self) -> bool:
        return self.core.state.phase is Phase.LIVE and not self.core.pending()

    def final_stores(self) -> Iterator[ClientStore]:
        """What its store has in the end, partition by partition."""
        core = self.core
        ids = dict(core.store._connection.execute("SELECT committed_id, id FROM events"))
        for name in self.partitions:
            row = core.store.followed[name]
            view = orjson.dumps(core.views.dump(name, "compatibility"), option=orjson.OPT_SORT_KEYS)
            yield ClientStore(
                f"{self.client_id}/{name}",
                (name,),
                core.state.cursors[name],
                committed=tuple(
                    (event.committed_id, ids[event.committed_id]) for event in core.store.events(name, 0)
                ),
                drafts=tuple(ticket.draft.id for ticket in core.pending()),
                snapshot_starts={name: row.floor},
                state=hashlib.sha256(view).hexdigest(),
            )
