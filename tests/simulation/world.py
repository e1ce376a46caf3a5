"""A server, its clients, the lines between them, time and disks, under one chooser."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from msgspec import Raw

from tests.simulation.clients import HandClient, ScriptedClient, SimulatedClient
from tests.simulation.core_client import STORE_FILE, CoreClient
from tests.simulation.disk import (
    InlineCheckpointer,
    SimulatedDisk,
    SimulatedVfs,
    expect_simulated,
    simulated_disks,
)
from tests.simulation.network import Line
from tests.simulation.scheduler import Chooser
from tests.simulation.server import SECRET, ServerLife
from unisono.client.store.store import Store
from unisono.config import Settings
from unisono.front.auth.verify import sign_token
from unisono.history.check import check_history
from unisono.history.final_read import read_log
from unisono.history.findings import Verdict
from unisono.history.records import AccessScope, Fault, Frame, HistoryRecord, HistoryStart, Located
from unisono.model.model import open_model
from unisono.store.port import StorageError, StoreUnusable
from unisono.store.sqlite.log import SqliteLog

EPOCH_S = 1_790_000_000.0
STEP_S = 0.001
QUIET_STEPS_MAX = 20_000
SETTINGS = Settings(
    heartbeat_timeout_s=60.0,
    sync_limit_min=1,
    max_message_bytes=65_536,
    max_subscriptions=64,
    max_send_buffer_bytes=400_000,
    close_grace_s=1.0,
)
EVERYTHING = AccessScope(("p", "q", "r"))


class NotSettled(AssertionError):
    """After the last fault the clients do not get everything."""


class World:
    """One run. `faults`: how many things may break."""

    def __init__(
        self,
        directory: Path,
        chooser: Chooser,
        seed: int,
        vfs: SimulatedVfs,
        *,
        faults: int = 6,
        small: bool = False,
    ) -> None:
        """`small`: two clients with three events in two partitions, for every schedule there is."""
        self.chooser = chooser
        self.random = Random(seed)
        vfs.random = Random(seed)
        self.now = 0.0
        self._wall_offset_s = EPOCH_S
        self.records: list[HistoryRecord] = [HistoryStart(complete=True)]
        self._connections = count(1)
        self._faults = faults
        self.disk = SimulatedDisk(directory / "server")
        shutil.copytree(_empty_log(vfs), self.disk.directory)
        vfs.disks[:] = [self.disk]
        self.lines: list[Line] = []
        self.life: ServerLife | None = None
        self.lives = 0
        self._model = open_model()
        self.hands: list[HandClient] = []
        self.cores: list[CoreClient] = []
        self.scripted: list[ScriptedClient] = []
        if small:
            self.scripted = [
                ScriptedClient(self, "ann", ["p"], ["p"]),
                ScriptedClient(self, "bob", ["p", "q"], ["q", "p"]),
            ]
            return
        self.hands = [
            HandClient(self, "ann", EVERYTHING, ["p", "q"]),
            HandClient(self, "ann", EVERYTHING, ["p", "q"]),
            HandClient(self, "bob", AccessScope((), ("p", "r")), ["p", "r"]),
        ]
        self.hands[1].prefix = "ann-too"
        for name in ("cleo", "dan", "eve"):
            disk = SimulatedDisk(directory / name)
            shutil.copytree(_empty_store(vfs, name), disk.directory)
            vfs.disks.append(disk)
            self.cores.append(CoreClient(self, name, EVERYTHING, ["p", "q"], disk))
        self.cores[-1].eager = 0.01  # comes late, and starts from snapshots

    # -- for clients -----------------------------------------------------------------------------------------

    @property
    def clients(self) -> Sequence[SimulatedClient]:
        return [*self.scripted, *self.hands, *self.cores]

    def now_ms(self) -> int:
        return int((self._wall_offset_s + self.now) * 1000)

    def dial(self) -> Line | None:
        if self.life is None:
            return None
        connection = self.life.accept()
        if connection is None:
            return None
        line = Line(
            f"connection {next(self._connections)}", SETTINGS.max_send_buffer_bytes, self.life.loop.run
        )
        self.lines.append(line)
        line.open(connection)
        return line

    def token(self, client_id: str, scope: AccessScope) -> tuple[str, float]:
        ttl_s = 5.0 if self.random.random() < 0.05 else 3_600.0
        token = sign_token(
            SECRET,
            client_id,
            partitions=scope.partitions,
            prefixes=scope.prefixes,
            ttl_s=ttl_s,
            now_s=self.now_ms() / 1000,
        )
        return token, self.now + ttl_s

    def record(self, record: HistoryRecord) -> None:
        self.records.append(record)

    def record_frame(self, connection: str, direction: str, data: bytes) -> None:
        self.records.append(Frame(self.now, connection, direction, Raw(data)))  # type: ignore[arg-type]

    # -- what may happen -------------------------------------------------------------------------------------

    def steps(self, *, quiet: bool) -> Iterator[tuple[float, Callable[[], None]]]:
        """Everything that may happen next, with its weight; `quiet`: nothing new is begun, nothing breaks."""
        yield from self._server_steps()
        yield from self._line_steps()
        for client in self.scripted:
            if client.line is None:
                yield 1, client.dial
            elif (act := client.act()) is not None:
                yield 1, act
        for hand in self.hands:
            if hand.line is None:
                if not quiet:
                    yield 1, hand.dial
            elif hand.connected and not quiet:
                yield 1.5, hand.submit
                if not hand.syncing:
                    yield 1.5, hand.sync
        for core in self.cores:
            if core.line is None:
                yield 1 if quiet else core.eager, core.dial
            if not quiet:
                yield core.eager, core.draft
        yield from self._time_steps(quiet=quiet)
        if self.scripted:
            if not quiet and self._faults and self.life is not None:
                yield 1, lambda: self._break("power failure of the server", lambda: self.crash(self.random))
        elif not quiet and self._faults:
            yield from self._fault_steps()

    def _server_steps(self) -> Iterator[tuple[float, Callable[[], None]]]:
        life = self.life
        if life is None:
            yield 2, self.start_server
            return
        if life.loop.has_work:
            yield 8, life.loop.run_pass
        if life.authority_wire.to_process:
            yield 6, life.deliver_to_authority
        if life.authority_has_mail:
            yield 6, self._step_authority
        if life.authority_wire.to_front:
            yield 6, life.authority_wire.deliver_to_front
        if life.reader_wire.to_process:
            yield 6, life.deliver_to_reader
        if life.reader_has_mail:
            yield 6, life.step_reader
        if life.reader_wire.to_front:
            yield 6, life.reader_wire.deliver_to_front

    def _line_steps(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for line in self.lines:
            if line.to_server and not line.cut:
                yield 4, line.deliver_to_server
            if line.cut and not line.server_knows:
                yield 1, line.tell_server
        for client in self.clients:
            if client.line is not None and client.line.to_client:
                yield 4, client.deliver
            elif client.line is not None and client.line.cut:
                yield 1, client.lose

    def _time_steps(self, *, quiet: bool) -> Iterator[tuple[float, Callable[[], None]]]:
        for core in self.cores:
            if core.wake is not None and core.wake <= self.now:
                yield 3, core.fire
        times = [core.wake for core in self.cores if core.wake is not None and core.wake > self.now]
        if self.life is not None and (due := self.life.loop.next_timer()) is not None:
            if due <= self.now:
                yield 3, self.life.loop.run_pass
            else:
                times.append(due)
        under_way = any(line.to_client for line in self.lines)
        stalled = self.life is not None and (self.life.loop.next_timer() or self.now + 1) <= self.now
        if times and not under_way and not stalled:
            yield 0.05 if quiet else 0.1, lambda: self._advance(min(times))

    def _advance(self, to: float) -> None:
        self.now = max(self.now, to)
        for client in self.clients:
            if client.line is not None and not client.line.half_open:
                client.send("heartbeat", b"{}")

    def _fault_steps(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for client in self.clients:
            line = client.line
            if line is not None and not line.cut:
                yield 0.04, lambda line=line: self._break(f"{line.name} is cut", line.break_off)  # type: ignore[misc]
                yield (
                    0.01,
                    lambda line=line: self._break(  # type: ignore[misc]
                        f"{line.name} is half open", lambda: setattr(line, "half_open", True)
                    ),
                )
        for core in self.cores:
            yield 0.05, lambda core=core: self._break(f"{core.client_id} dies", lambda: core.crash(None))  # type: ignore[misc]
            yield (
                0.05,
                lambda core=core: self._break(  # type: ignore[misc]
                    f"{core.client_id} loses power", lambda: core.crash(self.random)
                ),
            )
        if self.life is not None:
            yield 0.1, lambda: self._break("kill -9 of the server", lambda: self.crash(None))
            yield 0.1, lambda: self._break("power failure of the server", lambda: self.crash(self.random))
            yield 0.05, lambda: self._break("the disk will fail", self._fail_disk)
            yield 0.02, lambda: self._break("the disk is full", lambda: setattr(self.disk, "full", True))

    def _break(self, what: str, break_it: Callable[[], None]) -> None:
        self._faults -= 1
        self.record(Fault(self.now, what))
        break_it()

    def _fail_disk(self) -> None:
        self.disk.fail_at = self.disk.calls + self.random.randint(1, 12)

    # -- the server's lives ----------------------------------------------------------------------------------

    def start_server(self) -> None:
        try:
            self.life = ServerLife(
                self.disk.directory,
                SETTINGS,
                self._model,
                lambda: self.now,
                self.now_ms,
                asks_claims=self.lives % 2 == 1,
            )
            self.lives += 1
        except (StoreUnusable, StorageError) as error:
            expect_simulated(error)
            self.disk.repair()  # the operator changes the disk

    def _step_authority(self) -> None:
        life = self.life
        assert life is not None
        try:
            life.step_authority()
        except StorageError as error:
            expect_simulated(error)
            self.crash(None)

    def crash(self, random: Random | None) -> None:
        """Every process of the server is gone, and with `random` the power too."""
        life, self.life = self.life, None
        if life is None:
            return
        life.end()
        self.disk.crash(life.close_log, random)
        for line in self.lines:
            line.break_off()
            line.server_knows = True
            line.connection = None

    # -- running ---------------------------------------------------------------------------------------------

    def step(self, *, quiet: bool = False) -> bool:
        """Let one thing happen; False when nothing can."""
        options = list(self.steps(quiet=quiet))
        if not options:
            return False
        self.now += STEP_S
        _, act = options[self.chooser.choose(len(options), [weight for weight, _ in options])]
        act()
        for line in self.lines:
            line.check_backpressure()
        self.lines = [line for line in self.lines if not (line.server_knows and line.client_knows)]
        return True

    def run(self, steps: int) -> Verdict:
        """So many steps, then quiet until everybody has everything, then the verdict on it all."""
        for _ in range(steps):
            if not self.step():
                break
        self.disk.repair()
        for _ in range(QUIET_STEPS_MAX):
            settled = all(core.settled for core in self.cores) and all(each.done for each in self.scripted)
            if settled and not any(line.to_client for line in self.lines):
                break
            self.step(quiet=True)
        else:
            waiting = [
                f"{core.client_id} is {core.core.state.phase}" for core in self.cores if not core.settled
            ]
            raise NotSettled(f"after {QUIET_STEPS_MAX} quiet steps: {', '.join(waiting)}")
        return self.verdict()

    def verdict(self) -> Verdict:
        records = [Located(f"record {number}", each) for number, each in enumerate(self.records, start=1)]
        for core in self.cores:
            records += [Located(core.client_id, each) for each in core.final_stores()]
        if self.life is not None:
            life, self.life = self.life, None
            life.end()
            life.close_log()
        log = SqliteLog.open(self.disk.directory)
        try:
            records += [Located("the log", each) for each in read_log(log)]
        finally:
            log.close()
        return check_history(records)

    def close(self) -> None:
        if self.life is not None:
            self.life.end()
            self.life.close_log()
            self.life = None
        for core in self.cores:
            core.core.store.close(failed=True)


_templates: dict[str, Path] = {}


def _template(vfs: SimulatedVfs, name: str, make: Callable[[Path], None]) -> Path:
    """A directory that was made once, always the same: making it takes longer than a run."""
    if name not in _templates:
        _templates[name] = Path(mkdtemp(prefix=f"simulation-{name}-"))
        atexit.register(shutil.rmtree, _templates[name], ignore_errors=True)
        before, vfs.random = vfs.random, Random(0)
        make(_templates[name])
        vfs.random = before
    return _templates[name]


def _empty_log(vfs: SimulatedVfs) -> Path:
    return _template(vfs, "log", lambda directory: SqliteLog.open(directory).close())


def _empty_store(vfs: SimulatedVfs, client_id: str) -> Path:
    return _template(vfs, client_id, lambda place: Store(str(place / STORE_FILE), client_id).close())


@contextmanager
def simulated_world(directory: Path, chooser: Chooser, seed: int, **more: Any) -> Iterator[World]:
    """A world with the clocks of the product's code in its hands."""
    with simulated_disks() as vfs, patch("unisono.store.sqlite.log.WalCheckpointer", InlineCheckpointer):
        world = World(directory, chooser, seed, vfs, **more)
        with (
            patch("unisono.front.services.now_ms", world.now_ms),
            patch("unisono.front.connection.now_ms", world.now_ms),
            patch("unisono.front.connecting.now_ms", world.now_ms),
            patch("unisono.front.deadlines.now_ms", world.now_ms),
        ):
            try:
                yield world
            finally:
                world.close()
