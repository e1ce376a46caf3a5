"""The workloads of a whole run, in the order of their importance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from benchmarks.comparison import works
from benchmarks.comparison.fill_log import fill_log
from benchmarks.comparison.measure import Sample, holding
from benchmarks.comparison.results import Table
from benchmarks.comparison.rounds import Contender, play, say
from benchmarks.generators.order import Work
from benchmarks.peers.native_peers import Nats, UmaDB
from benchmarks.peers.node_peers import DurableStreams, Hocuspocus, Insieme
from benchmarks.peers.ours import Unisono
from benchmarks.peers.system import NotStarted, System

OPEN, JUDGING = "Unisono, open model", "Unisono, judging"
FLOOR = "one fdatasync and one echo"

Systems = dict[str, System]


class Scale(msgspec.Struct, frozen=True):
    """How much of everything."""

    rounds: int = 3
    seconds: float = 2.0
    connections: tuple[int, ...] = (1, 10, 50, 200)
    fill_events: int = 100_000
    subscribers: int = 500
    idle: int = 2000
    unrelated: int = 5000
    log_sizes: tuple[int, ...] = (10_000, 1_000_000)


QUICK = Scale(1, 0.5, (1, 50), 5_000, 50, 100, 100, (1_000, 10_000))
"""To see that everything runs; its figures mean nothing."""


def all_systems() -> Systems:
    peers: list[System] = [UmaDB(), Nats(), Insieme(), DurableStreams(), Hocuspocus()]
    return {OPEN: Unisono(), JUDGING: Unisono(judging=True)} | {peer.name: peer for peer in peers}


@contextmanager
def running(systems: Systems, folder: Path, notes: list[str]) -> Iterator[Systems]:
    """Those that can be started, all up at once; those not measured are idle. The others are named in the notes."""
    with ExitStack() as stack:
        up: Systems = {}
        for number, (name, system) in enumerate(systems.items()):
            lacking = system.missing()
            if lacking is None:
                stack.callback(system.stop)
                try:
                    system.start(folder / f"{number}")
                    up[name] = system
                    continue
                except (NotStarted, OSError, ValueError) as error:
                    lacking = str(error)
            notes.append(f"{name} was left out: {lacking}")
            say(notes[-1])
        yield up


class Plan:
    """Workloads by key, so that some of them can be chosen."""

    def __init__(self, systems: Systems, scale: Scale, floor: Callable[[float], Sample]) -> None:
        """`floor` measures what a lone durable submit cannot be faster than."""
        self._systems = systems
        self._floor = floor
        self._scale = scale
        self._filled: set[str] = set()

    def workloads(self) -> dict[str, Callable[[], Table]]:
        scale = self._scale
        found: dict[str, Callable[[], Table]] = {}
        for connections in scale.connections:
            found[f"submit-{connections}"] = lambda n=connections: self._submit(n)  # type: ignore[misc]
        found["batch-100"] = self._batch
        for connections in (1, 4):
            found[f"catchup-dense-{connections}"] = lambda n=connections: self._dense(n)  # type: ignore[misc]
        for connections in (1, 4):
            found[f"catchup-sparse-{connections}"] = lambda n=connections: self._spread(n, 1)  # type: ignore[misc]
            found[f"catchup-20-{connections}"] = lambda n=connections: self._spread(n, 20)  # type: ignore[misc]
        found["fan-out"] = self._fan_out
        found["connect"] = self._connect
        found["mixed"] = self._mixed
        return found

    def _offering(self, work: Work, *, but: Sequence[str] = ()) -> Systems:
        return {
            name: system for name, system in self._systems.items() if work in system.works and name not in but
        }

    def _play(
        self, key: str, title: str, systems: Systems, run: Callable[[System], Sample], unit: str = "events/s"
    ) -> Table:
        contenders = [
            Contender(name, lambda _, system=system: run(system))  # type: ignore[misc]
            for name, system in systems.items()
        ]
        return play(key, title, unit, contenders, self._scale.rounds)  # type: ignore[arg-type]

    def _submit(self, connections: int) -> Table:
        title = f"Durable single submits, {connections} connection{'s' * (connections > 1)}"
        seconds = self._scale.seconds
        contenders = [
            Contender(name, lambda _, system=system: works.submit(system, connections, 1, seconds))  # type: ignore[misc]
            for name, system in self._offering("submit").items()
        ]
        if connections == 1:
            contenders.append(Contender(FLOOR, lambda _: self._floor(seconds / 2)))
        return play(f"submit-{connections}", title, "events/s", contenders, self._scale.rounds)

    def _batch(self) -> Table:
        seconds = self._scale.seconds
        return self._play(
            "batch-100", "Batches of 100, 10 connections", self._offering("submit"),
            lambda system: works.submit(system, 10, 100, seconds),
        )  # fmt: skip

    def _fill(self, systems: Systems, topics: Sequence[str]) -> None:
        for name, system in systems.items():
            if (key := f"{name} {topics[0]}") not in self._filled:
                self._filled.add(key)
                say(f"  filling {name}")
                works.fill(system, topics, self._scale.fill_events)

    def _dense(self, connections: int) -> Table:
        systems = self._offering("read", but=[JUDGING])
        self._fill(systems, [works.DENSE_TOPIC])
        title = f"Catch-up of one large partition, {connections} connection{'s' * (connections > 1)}"
        return self._play(
            f"catchup-dense-{connections}", title, systems,
            lambda system: works.read(
                system, system.whole(works.DENSE_TOPIC), connections, self._scale.seconds
            ),
        )  # fmt: skip

    def _spread(self, connections: int, topics: int) -> Table:
        """Only where one log has several topics, and a reader names some of them."""
        systems = {name: self._systems[name] for name in (OPEN, UmaDB.name) if name in self._systems}
        self._fill(systems, works.SPREAD_TOPICS)
        what = "1 partition in 100" if topics == 1 else f"{topics} partitions of 100"
        title = f"Catch-up of {what}, {connections} connection{'s' * (connections > 1)}"
        return self._play(
            f"catchup-{'sparse' if topics == 1 else topics}-{connections}", title, systems,
            lambda system: works.read(
                system, works.SPREAD_TOPICS[:topics], connections, self._scale.seconds
            ),
        )  # fmt: skip

    def _fan_out(self) -> Table:
        subscribers = self._scale.subscribers
        return self._play(
            "fan-out", f"Fan-out to {subscribers}", self._offering("listen", but=[JUDGING]),
            lambda system: works.fan_out(system, subscribers, self._scale.seconds), "deliveries/s",
        )  # fmt: skip

    def _connect(self) -> Table:
        return self._play(
            "connect", "Connections opened and closed", self._offering("connect", but=[JUDGING]),
            lambda system: works.opening(system, self._scale.seconds), "connections/s",
        )  # fmt: skip

    def _mixed(self) -> Table:
        systems = self._offering("listen", but=[JUDGING, Hocuspocus.name])
        self._fill(systems, [works.DENSE_TOPIC])
        title = f"{works.MIXED_WRITERS} writers beside {works.MIXED_LISTENERS} subscribers and 2 readers"
        return self._play("mixed", title, systems, lambda system: works.mixed(system, self._scale.seconds))


def idle(folder: Path, scale: Scale, systems: Systems) -> Table:
    """Servers of their own, each for one round: what was measured before would have grown their memory."""
    holding_ones = {
        name: system
        for name, system in systems.items()
        if "hold" in system.works and name != JUDGING and system.missing() is None
    }
    contenders = [
        Contender(
            name,
            lambda number, system=system, place=place: works.idle_bytes(  # type: ignore[misc]
                system, folder / f"{place}-{number}", scale.idle
            ),
        )
        for place, (name, system) in enumerate(holding_ones.items())
    ]
    return play("idle", "Memory of an idle connection", "bytes", contenders, scale.rounds)


def growth(folder: Path, scale: Scale, notes: list[str]) -> list[Table]:
    """Servers with logs of several sizes beside each other, and one with many unrelated connections."""
    tables = []
    sized: Systems = {}
    for size in scale.log_sizes:
        name = f"{size:,} events in the log"
        sized[name] = Unisono()
        say(f"  writing {size:,} events")
        fill_log(folder / f"{len(sized) - 1}" / "data", size)
    with running(sized, folder, notes) as up:
        contenders = [
            Contender(name, lambda _, system=system: works.submit(system, 50, 1, scale.seconds))  # type: ignore[misc]
            for name, system in up.items()
        ]
        title = "Submits of 50 connections by the size of the log"
        tables.append(play("grow-events", title, "events/s", contenders, scale.rounds))
    quiet, crowded = "no other connections", f"{scale.unrelated:,} other connections"
    with running({quiet: Unisono(), crowded: Unisono()}, folder / "crowd", notes) as up, ExitStack() as stack:
        if crowded in up:
            names = [f"other-{number}" for number in range(scale.unrelated)]
            stack.enter_context(holding(up[crowded], names, "other"))
        contenders = [
            Contender(name, lambda _, system=system: works.submit(system, 50, 1, scale.seconds))  # type: ignore[misc]
            for name, system in up.items()
        ]
        title = "Submits of 50 connections by other connections"
        tables.append(play("grow-connections", title, "events/s", contenders, scale.rounds))
    return tables
