"""Current state per partition: loaded on demand, staged with its group, rolled back exactly.

A state is the newest snapshot of the model in force plus the partition's events after it. A short history is
folded at once; a long one is folded in slices between groups, and a large snapshot, or what has left the log, is read
in a thread beside them, while requests that need it wait and everybody else's go on. This node commits no event of a
partition while it loads, because judging one needs the state; what other nodes commit is part of the log it loads
from. Long ones take turns, a few at a time; short ones never wait for them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec
import orjson

from unisono.authority.one_shot_thread import OneShotThread
from unisono.authority.states.replay import PartitionReplay
from unisono.authority.stuck_rules import RunningCall
from unisono.ipc.messages import Candidate
from unisono.ipc.stats import Counters
from unisono.lake.cold.archive import Archive
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState
from unisono.model.rules import RuleFailed
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import CommitLog, Record, Snapshot
from unisono.vocabulary import FieldError, JsonObject

log = logging.getLogger("unisono.authority")

FIRST_SLICES_EVENTS: Final = 200
"""Events folded before others get their chance, over all partitions that are wanted for the first time."""

SNAPSHOT_BYTES_PER_EVENT: Final = 100
"""So many bytes of a snapshot take as long to load as an event takes to fold."""

SNAPSHOT_BYTES_AT_ONCE: Final = 64 * 1024
"""Snapshots up to this size are read between two groups, a few milliseconds; larger ones beside them."""

LOADS_AT_ONCE: Final = 4
"""Long loads that take turns: more would only need more memory, and all of them together longer."""

SNAPSHOT_WEIGHT_MAX: Final = 4 * 1024 * 1024
"""States up to this size are written as snapshots between two groups, some ten milliseconds of work. Larger
ones are left to an order or to the pipeline."""

_decode_event = orjson.loads
"""Linear also on texts full of extreme numbers, which the other decoder is not."""


class Loading(msgspec.Struct):
    """A partition on its way into memory; `folded` counts its events after the snapshot.

    `reading` is set while the snapshot is being read; the state is what comes of it. `history` is what comes after.
    """

    state: PartitionState
    upto: int
    folded: int = 0
    reading: OneShotThread[PartitionState] | None = None
    history: PartitionReplay | None = None

    @property
    def only_waits(self) -> bool:
        """Whether all that is left to do for now is done in a thread."""
        if self.reading is not None:
            return not self.reading.done
        return self.history is not None and self.history.only_waits


class Resident(msgspec.Struct):
    """A partition in memory. `mark` is set while a group that may still fail has changed it."""

    state: PartitionState
    weight: int
    upto: int
    since_snapshot: int = 0
    mark: int | None = None


class States:
    """The states of one model.

    Invariants between groups: every resident state is the fold of the log's events of its partition, up to
    the head; the weights of all residents add up to `_weight`, at most `bytes_max` unless one request needs more.
    """

    def __init__(
        self,
        model: Model,
        store: CommitLog,
        *,
        bytes_max: int,
        snapshot_every: int,
        now_ms: Callable[[], int],
        archive: Archive | None = None,
        rule_timeout_s: float | None = None,
        running: RunningCall | None = None,
    ) -> None:
        """`running`: where it is noted which rule runs for which event, for who may have to end this process."""
        self.model = model
        self._rule_timeout_s = rule_timeout_s
        self._running = running
        if model.canonical is not None and rule_timeout_s is not None:
            model.canonical.limit_rules(rule_timeout_s, running)
        self._store = store
        self._archive = archive or Archive()
        self._bytes_max = bytes_max
        self._snapshot_every = snapshot_every
        self._now_ms = now_ms
        self._resident: OrderedDict[str, Resident] = OrderedDict()
        self._loading: dict[str, Loading] = {}
        self._slices = 0
        self._staged: dict[str, Resident] = {}
        self._writing: dict[str, tuple[int, OneShotThread[bytes]]] = {}
        self._due: dict[str, None] = {}
        self._held: frozenset[str] = frozenset()
        self._weight = 0
        self._foldable = FIRST_SLICES_EVENTS
        self._loads = 0
        self._evictions = 0
        self._rules_before: dict[str, int] = {}

    @property
    def model_version(self) -> int | None:
        return self.model.version

    @property
    def snapshot_version(self) -> int:
        return self.model.version if self.model.version is not None else NO_MODEL_VERSION

    @property
    def model_digest(self) -> str:
        """Which content of that version; empty where there is no model."""
        return self.model.digest

    @property
    def profiles(self) -> dict[str, tuple[str, ...]]:
        """The profiles this model can judge, with the event types each accepts."""
        told = {COMPATIBILITY: self.model.compatibility.accepted_event_types}
        if self.model.canonical is not None:
            told[CANONICAL] = self.model.canonical.accepted_event_types
        return told

    def _stateful(self, profile: str) -> bool:
        """Canonical events change nothing here unless the model has rules for them."""
        if profile == COMPATIBILITY:
            return True
        return self.model.canonical is not None and bool(self.model.canonical.rules.schemas)

    # -- loading -------------------------------------------------------------------------------------------

    def refill(self) -> None:
        """So many events more may be folded for first slices."""
        self._foldable = FIRST_SLICES_EVENTS

    def ready(self, profile: str, partitions: Iterable[str]) -> bool:
        """Whether all are in memory; the first that is not is on its way afterwards."""
        if not self._stateful(profile):
            return True
        for partition in partitions:
            if partition in self._writing:
                return False  # being read for a snapshot; it must not change meanwhile
            if partition in self._resident:
                self._resident.move_to_end(partition)
            elif not self.load(partition):
                return False
        return True

    def hold(self, partitions: Iterable[str]) -> None:
        """Evict none of these, and any other again: whoever waited longest must find all it needs at once."""
        self._held = frozenset(partitions)

    def load(self, partition: str) -> bool:
        """True when the partition is in memory; a first slice is folded at once, the others by `advance`."""
        if partition in self._resident:
            return True
        if partition in self._loading or self._foldable <= 0:
            return False
        self._loading[partition] = self._start(partition)
        return self._load_slice(partition)

    def advance(self) -> None:
        """A slice more of one of the partitions that have waited longest, each in its turn; a few snapshots."""
        self._write_due()
        if self._loading:
            turns = list(islice(self._loading, LOADS_AT_ONCE))
            self._slices += 1
            self._load_slice(turns[self._slices % len(turns)], beside=True)

    @property
    def only_waits(self) -> bool:
        """Whether all that is left to do for those who wait is done in threads."""
        turns = islice(self._loading.values(), LOADS_AT_ONCE)
        pending = [loading.only_waits for loading in turns]
        return all(pending) and bool(pending or self._writing)

    def _load_slice(self, partition: str, *, beside: bool = False) -> bool:
        loading = self._loading[partition]
        if loading.reading is not None:
            if not loading.reading.done:
                return False
            loading = self._built(partition, loading.upto, loading.reading.result)
            self._loading[partition] = loading
        if loading.history is None:
            loading.history = PartitionReplay(self._store, self._archive, partition, loading.upto)
        page = loading.history.take(beside=beside)
        if page is None:
            self._foldable -= 1
            return False
        for record in page.records:
            if self._running is not None:
                self._running.replay(record.id)
            self.model.apply_committed(loading.state, _decode_event(record.event))
            loading.upto = record.committed_id
        loading.folded += len(page.records)
        loading.state.settle()
        self._foldable -= len(page.records) + 1
        if page.has_more:
            return False
        del self._loading[partition]
        weight = loading.state.weight()
        self._resident[partition] = Resident(loading.state, weight, loading.upto, loading.folded)
        self._weight += weight
        self._loads += 1
        return True

    def _start(self, partition: str) -> Loading:
        snapshot = self._store.snapshot(partition, self.snapshot_version, self.model_digest)
        if snapshot is None:
            return Loading(PartitionState(), 0)
        self._foldable -= len(snapshot.state) // SNAPSHOT_BYTES_PER_EVENT
        build = partial(_build, snapshot)
        if len(snapshot.state) <= SNAPSHOT_BYTES_AT_ONCE:
            return self._built(snapshot.partition, snapshot.committed_id, build)
        return Loading(PartitionState(), snapshot.committed_id, reading=OneShotThread(build))

    def _built(self, partition: str, upto: int, build: Callable[[], PartitionState]) -> Loading:
        """What came of a snapshot; one that cannot be read is as good as none."""
        try:
            return Loading(build(), upto)
        except ValueError as error:
            log.error("the snapshot of %r at %d cannot be used: %s", partition, upto, error)
            return Loading(PartitionState(), 0)

    # -- judging (the Meaning of a judge) ------------------------------------------------------------------

    def take(self, profile: str, candidate: Candidate) -> tuple[FieldError, ...]:
        """Shape, then preconditions in every partition, then the change in every partition, or none at all."""
        event: JsonObject = _decode_event(candidate.event)
        errors = self.model.shape(profile, event)
        if errors or not self._stateful(profile):
            return tuple(errors)
        if self._running is not None:
            refusal = self._running.judge(candidate.id, candidate.hash, self.model.digest)
            if refusal is not None:
                return (refusal,)
        touched = [self._resident[name] for name in candidate.partitions]
        for resident in touched:
            errors = self.model.refusals(profile, resident.state, event)
            if errors:
                return tuple(errors)
        return self._change(profile, candidate, event, touched)

    def _change(
        self, profile: str, candidate: Candidate, event: JsonObject, touched: list[Resident]
    ) -> tuple[FieldError, ...]:
        marks = [resident.state.mark() for resident in touched]
        try:
            for resident in touched:
                self.model.apply(profile, resident.state, event)
        except RuleFailed as failure:
            for resident, mark in zip(touched, marks, strict=True):
                resident.state.rollback(mark)
            return (failure.error,)
        for name, resident, mark in zip(candidate.partitions, touched, marks, strict=True):
            if resident.mark is None:
                resident.mark = mark
                self._staged[name] = resident
            resident.since_snapshot += 1
        return ()

    def settle(self) -> None:
        """The group is durable: its changes are no longer undone, and memory is brought within its bound."""
        for resident in self._staged.values():
            resident.state.settle()
            resident.mark = None
            self._reweigh(resident)
        staged, self._staged = self._staged, {}
        if self._snapshot_every:
            self._write_snapshots(staged)
        while self._weight > self._bytes_max and len(self._resident) > 1:
            oldest = next((name for name in self._resident if name not in self._held), None)
            if oldest is None:
                break
            self._weight -= self._resident.pop(oldest).weight
            self._evictions += 1

    def follow(self, records: Sequence[Record]) -> None:
        """Other nodes committed these; never within a group that has changed anything yet."""
        assert not self._staged, "what others did comes before the group's own changes"
        for record in records:
            event: JsonObject | None = None
            for name in record.partitions:
                if name in self._writing:
                    self._forget(name)
                resident = self._resident.get(name)
                if resident is None or record.committed_id <= resident.upto:
                    continue  # not in memory, or loaded from a snapshot that was ahead of this node
                event = event or _decode_event(record.event)
                if self._running is not None:
                    self._running.replay(record.id)
                self.model.apply_committed(resident.state, event)
                resident.state.settle()
                resident.upto = record.committed_id
                resident.since_snapshot += 1
                self._reweigh(resident)

    def renewed(self, model: Model) -> States:
        """Fresh states of a model, with nothing in memory and the same bounds.

        They are folded from the newest version of the lake: text may have been erased there.
        """
        self._archive.refresh()
        fresh = States(
            model,
            self._store,
            bytes_max=self._bytes_max,
            snapshot_every=self._snapshot_every,
            now_ms=self._now_ms,
            archive=self._archive,
            rule_timeout_s=self._rule_timeout_s,
            running=self._running,
        )
        fresh._loads, fresh._evictions = self._loads, self._evictions
        fresh._rules_before = self._rules_before if model is self.model else self._rule_counts()
        return fresh

    def forget(self, partitions: Iterable[str]) -> None:
        """Text of these was erased: nothing folded before stays in memory, or is written as a snapshot."""
        self._archive.refresh()
        for partition in partitions:
            self._forget(partition)
            self._loading.pop(partition, None)
            self._writing.pop(partition, None)

    def _forget(self, partition: str) -> None:
        """Drop a state that is being read; who holds it keeps it as it is, and the next to need it loads it anew."""
        resident = self._resident.pop(partition, None)
        if resident is not None:
            self._weight -= resident.weight

    def _reweigh(self, resident: Resident) -> None:
        weight = resident.state.weight()
        self._weight += weight - resident.weight
        resident.weight = weight

    def rollback(self) -> None:
        """The group failed: every state is as it was before it."""
        for resident in self._staged.values():
            assert resident.mark is not None
            resident.state.rollback(resident.mark)
            resident.mark = None
        self._staged = {}

    # -- snapshots -----------------------------------------------------------------------------------------

    def _write_snapshots(self, candidates: dict[str, Resident]) -> None:
        for name, resident in candidates.items():
            if resident.since_snapshot >= self._snapshot_every and resident.weight <= SNAPSHOT_WEIGHT_MAX:
                self._due[name] = None
        self._write_due()

    def _write_due(self) -> None:
        """As many of the due snapshots as one large one costs: an event in many partitions makes many due at once."""
        chosen: dict[str, Resident] = {}
        weight = 0
        for name in [*self._due]:
            resident = self._resident.get(name)
            if resident is not None and chosen and weight + resident.weight > SNAPSHOT_WEIGHT_MAX:
                break
            del self._due[name]
            if resident is not None and resident.since_snapshot:
                chosen[name] = resident
                weight += resident.weight
        if chosen:
            self._store.put_snapshots([self._snapshot(name, r) for name, r in chosen.items()])

    def write_snapshot(self, partition: str) -> Snapshot | None:
        """A snapshot of one partition, stored; None: not yet, ask again.

        The state is read in a thread, and whoever wants to change it waits so long; others do not.
        """
        if partition not in self._writing:
            if self.load(partition):
                state = self._resident[partition].state
                self._writing[partition] = self._store.head(), OneShotThread(lambda: pack(state.dump()))
            return None
        head, packing = self._writing[partition]
        if not packing.done:
            return None
        del self._writing[partition]
        snapshot = self._snapshot_at(partition, head, packing.result())
        self._store.put_snapshots([snapshot])
        if partition in self._resident:
            self._resident[partition].since_snapshot = 0
        return snapshot

    def _snapshot(self, partition: str, resident: Resident) -> Snapshot:
        resident.since_snapshot = 0
        return self._snapshot_at(partition, self._store.head(), pack(resident.state.dump()))

    def _snapshot_at(self, partition: str, head: int, state: bytes) -> Snapshot:
        return Snapshot(partition, head, self.snapshot_version, state, self._now_ms(), self.model_digest)

    # -- figures -------------------------------------------------------------------------------------------

    def report(self, counters: Counters) -> None:
        counters.set("states_resident", len(self._resident))
        counters.set("states_bytes", self._weight)
        counters.set("states_loading", len(self._loading))
        counters.reset("states_loaded", self._loads)
        counters.reset("states_evicted", self._evictions)
        for name, times in self._rule_counts().items():
            counters.reset(name, times)

    def _rule_counts(self) -> dict[str, int]:
        """What rules did under this model and all before it: a count never goes back."""
        counts = dict(self._rules_before)
        canonical = self.model.canonical
        if canonical is not None:
            kinds = {
                "slow": canonical.slow_rules,
                "failed": canonical.failed_rules,
                "stopped": canonical.stopped_rules,
            }
            for kind, rules in kinds.items():
                for rule, times in rules.items():
                    name = f"rules_{kind}|{rule}"
                    counts[name] = counts.get(name, 0) + times
        return counts


def _build(snapshot: Snapshot) -> PartitionState:
    return PartitionState.load(unpack(snapshot.state))
