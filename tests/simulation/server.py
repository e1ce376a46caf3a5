"""One life of a server: the real front, authority, reader and log, with simulated loops and channels between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tests.simulation.disk import abandon
from tests.simulation.loops import SimulatedLoop, simulated_loop
from unisono.authority.admin_commands import AdminCommands
from unisono.authority.clock import Clock
from unisono.authority.loop import Authority
from unisono.authority.states.resident import States
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.sources import SharedSecret
from unisono.front.auth.verify import Verifier
from unisono.front.connection import ClientConnection
from unisono.front.server import Front
from unisono.ipc.channel import Channel, socket_pair
from unisono.ipc.link import Link
from unisono.model.model import Model
from unisono.reader.process import Reader
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.reader import SqliteReader

SECRET = b"a secret of the simulation that is long enough to sign with"
STATES_BYTES = 16 << 20


class ChannelTransport:
    """The front's end of a channel: what its link writes waits for delivery."""

    def __init__(self, outgoing: deque[bytes]) -> None:
        self._outgoing = outgoing

    def write(self, data: bytes) -> None:
        self._outgoing.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    abort = close


class Wire:
    """A channel between a link of the front and a process without an event loop.

    The other process has one end of a real socket pair. Bytes cross when the scheduler delivers them.
    """

    def __init__(self, name: str, loop: SimulatedLoop, receive: Callable[[Any], None]) -> None:
        self.name = name
        self._loop = loop
        self._near, self.far = socket_pair()
        self._near.setblocking(False)
        self.to_process: deque[bytes] = deque()
        self.to_front: deque[bytes] = deque()
        self.link: Link = loop.run(lambda: Link(name, receive, lambda: None))
        self.link.connection_made(cast(Any, ChannelTransport(self.to_process)))

    def deliver_to_process(self) -> None:
        self._near.sendall(self.to_process.popleft())

    def collect(self) -> None:
        """Put what the process has sent in line for the front."""
        try:
            while data := self._near.recv(1 << 20):
                self.to_front.append(data)
        except (BlockingIOError, OSError):
            return

    def deliver_to_front(self) -> None:
        data = self.to_front.popleft()
        self._loop.run(lambda: self.link.data_received(data))

    def close(self) -> None:
        self._near.close()
        self.far.close()


class ServerLife:
    """From a start to a crash or an end."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        model: Model,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        *,
        asks_claims: bool,
    ) -> None:
        """`asks_claims`: the front asks the authority for claims, as one of several fronts does."""
        self.log = SqliteLog.open(directory)
        self.loop = simulated_loop(now)
        self.settings = settings
        verifier = Verifier(SharedSecret(SECRET))
        self.front: Front = self.loop.run(lambda: Front(0, settings, verifier, Access()))
        self.authority_wire = Wire("authority", self.loop, self.front._from_authority)
        self.reader_wire = Wire("reader", self.loop, self.front._from_reader)
        self.node_wire = Wire("node", self.loop, self.front._from_node)
        self.front._node = self.node_wire.link
        if (wait := self.front._requests._answer_wait) is not None:
            wait._now = now  # by the real one, no run would be like the one before
        self.front._requests.connect(self.authority_wire.link, self.reader_wire.link)
        states = States(model, self.log, bytes_max=STATES_BYTES, snapshot_every=4, now_ms=now_ms)
        node_near, node_far = socket_pair()
        reader_node_near, reader_node_far = socket_pair()
        self._sockets = (node_near, node_far, reader_node_near, reader_node_far)
        self.authority = Authority(
            self.log,
            states,
            node=Channel(node_far, "node"),
            fronts=[Channel(self.authority_wire.far, "front 0")],
            clock=Clock(now_ms, self.log.last_status_updated_at()),
            perf=now,
            execute=AdminCommands(settings).execute,
        )
        self.authority._replica.sole_front = not asks_claims
        self._reader_channel = Channel(self.reader_wire.far, "front 0")
        self.reader = Reader(
            SqliteReader(self.log._connection), Channel(reader_node_far, "node"), [self._reader_channel]
        )
        self.authority_has_mail = False
        self.reader_has_mail = False
        self.ended = False
        self.authority.start()
        self.authority_wire.collect()

    # -- steps -----------------------------------------------------------------------------------------------

    def deliver_to_authority(self) -> None:
        self.authority_wire.deliver_to_process()
        self.authority_has_mail = True

    def deliver_to_reader(self) -> None:
        self.reader_wire.deliver_to_process()
        self.reader_has_mail = True

    def step_authority(self) -> None:
        """One pass of the group loop; StorageError ends the life."""
        self.authority.step()
        self.authority_has_mail = self.authority.busy
        self.authority_wire.collect()

    def step_reader(self) -> None:
        self.reader_has_mail = False
        self.reader._receive(self._reader_channel)
        self.reader_wire.collect()

    def accept(self) -> ClientConnection | None:
        if self.ended or not self.front._accepting:
            return None
        return self.front._new_connection()

    def end(self) -> None:
        """The processes are gone, with everything they had in memory."""
        self.ended = True
        for wire in (self.authority_wire, self.reader_wire, self.node_wire):
            wire.close()
        for sock in self._sockets:
            sock.close()
        self.authority._inbox._selector.close()
        self.reader._selector.close()
        for task in list(self.front._tasks):
            coroutine = task.get_coro()
            if coroutine is not None:
                coroutine.close()

    def close_log(self) -> None:
        abandon(self.log)
