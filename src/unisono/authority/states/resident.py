"""Current state per partition: loaded on demand, changed with each group, rolled back exactly when a group fails.

This node commits no event of a partition while it is loaded (`load.py`), because judging one needs the state. What
other nodes commit meanwhile is part of the log that is loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from unisono.authority.one_shot_thread import OneShotThread
from unisono.authority.states.load import Load, Loads, decode_event, record_authorship
from unisono.authority.states.rule_counts import rule_counts
from unisono.authority.states.staged import BatchChange, Resident
from unisono.authority.stuck_rules import RunningCall
from unisono.ipc.messages import Candidate
from unisono.ipc.stats import Counters
from unisono.lake.cold.archive import Archive
from unisono.model.authorship import UNKNOWN, Authorship, authorship_of
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.pack import pack
from unisono.model.rules import RuleFailed
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import CommitLog, Record, Snapshot
from unisono.vocabulary import FieldError, JsonObject

SNAPSHOT_WEIGHT_MAX: Final = 4 * 1024 * 1024
"""States up to this size are written as snapshots between two groups, in some ten milliseconds. Snapshots of larger
ones are written by an admin command or by the pipeline."""


class States:
    """The states of one model.

    Invariants between groups: every resident state is the fold of the log's events of its partition, up to the
    head; `_weight` is the sum of the weights of all residents, at most `bytes_max` unless one request needs more.
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
        """`running`: shared memory in which the node sees the rule being called, and for which event."""
        self.model = model
        self._has_rules = model.canonical is not None and bool(model.canonical.rules.schemas)
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
        self._loading = Loads(model, store, self._archive, self.snapshot_version, running)
        self._staged: dict[str, Resident] = {}
        self._batch: dict[str, BatchChange] | None = None
        self._writing: dict[str, tuple[int, OneShotThread[bytes]]] = {}
        self._due: dict[str, None] = {}
        self._pinned: frozenset[str] = frozenset()
        self._weight = 0
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
        """The content of that version; empty when there is no model."""
        return self.model.digest

    @property
    def profiles(self) -> dict[str, tuple[str, ...]]:
        """The profiles this model can judge, with the event types each accepts."""
        profiles = {COMPATIBILITY: self.model.compatibility.accepted_event_types}
        if self.model.canonical is not None:
            profiles[CANONICAL] = self.model.canonical.accepted_event_types
        return profiles

    def stateful(self, profile: str) -> bool:
        """Whether events of a profile change states; canonical ones do only if the model has rules for them."""
        return profile == COMPATIBILITY or self._has_rules

    # -- loading -------------------------------------------------------------------------------------------

    def reset_fold_budget(self) -> None:
        """Reset the budget for first slices; called before the requests of a pass are looked at."""
        self._loading.reset_budget()

    def ready(self, partitions: Iterable[str]) -> bool:
        """Whether all partitions are in memory; begins to load the first that is not."""
        for partition in partitions:
            if partition in self._writing:
                return False  # a thread reads it for a snapshot; it must not change meanwhile
            if partition in self._resident:
                self._resident.move_to_end(partition)
            elif not self.load(partition):
                return False
        return True

    def pin(self, partitions: Iterable[str]) -> None:
        """Evict none of these until the next call: the request that waits longest needs all its states at once."""
        self._pinned = frozenset(partitions)

    def load(self, partition: str) -> bool:
        """Whether the partition is in memory; a first slice is folded at once, the others by `advance`."""
        if partition in self._resident:
            return True
        loaded = self._loading.begin(partition)
        if loaded is None:
            return False
        self._add(partition, loaded)
        return True

    def advance(self) -> None:
        """Write some of the due snapshots, and fold one more slice of a partition that is being loaded."""
        self._write_due()
        completed = self._loading.advance()
        if completed is not None:
            self._add(*completed)

    @property
    def only_waits(self) -> bool:
        """Whether the next steps of all loads and snapshots depend on threads that have not finished."""
        pending = self._loading.pending_threads()
        return all(pending) and bool(pending or self._writing)

    def _add(self, partition: str, loaded: Load) -> None:
        weight = loaded.state.weight()
        self._resident[partition] = Resident(loaded.state, weight, loaded.upto, loaded.folded)
        self._weight += weight
        self._loads += 1

    # -- judging -------------------------------------------------------------------------------------------

    def authorship(self, client_id: str, author: str, now: int) -> Authorship:
        """Who submits a request, as the model's rules see it; nobody where there are no rules."""
        return authorship_of(client_id, author, now) if self._has_rules else UNKNOWN

    def stage(
        self, profile: str, candidate: Candidate, authorship: Authorship = UNKNOWN
    ) -> tuple[FieldError, ...]:
        """Check the shape, then the preconditions in every partition; then change every partition, or none at all."""
        event: JsonObject = decode_event(candidate.event)
        errors = self.model.shape(profile, event)
        if errors or not self.stateful(profile):
            return tuple(errors)
        if self._running is not None:
            refusal = self._running.judge(candidate.id, candidate.hash, self.model.digest)
            if refusal is not None:
                return (refusal,)
        if len(candidate.partitions) == 1 and profile == CANONICAL and self._batch is None:
            return self._judge_alone(candidate.partitions[0], event, authorship)
        touched = [self._resident[name] for name in candidate.partitions]
        for resident in touched:
            errors = self.model.refusals(profile, resident.state, event, authorship)
            if errors:
                return tuple(errors)
        return self._change(profile, candidate, event, touched, authorship)

    def _judge_alone(self, name: str, event: JsonObject, authorship: Authorship) -> tuple[FieldError, ...]:
        """As for any event. What fails leaves its partition as it was, so only the group needs a mark."""
        assert self.model.canonical is not None, "its shape was checked"
        resident = self._resident[name]
        data = resident.state.data
        mark = resident.state.mark() if resident.mark is None else resident.mark
        try:
            errors = self.model.canonical.judge(data, event, authorship)
        except RuleFailed as failure:
            return (failure.error,)
        if errors:
            return tuple(errors)
        if resident.mark is None:
            resident.mark = mark
            self._staged[name] = resident
        resident.since_snapshot += 1
        return ()

    def _change(
        self,
        profile: str,
        candidate: Candidate,
        event: JsonObject,
        touched: list[Resident],
        authorship: Authorship,
    ) -> tuple[FieldError, ...]:
        marks = [resident.state.mark() for resident in touched]
        try:
            for resident in touched:
                self.model.apply(profile, resident.state, event, authorship)
        except RuleFailed as failure:
            for resident, mark in zip(touched, marks, strict=True):
                resident.state.rollback(mark)
            return (failure.error,)
        for name, resident, mark in zip(candidate.partitions, touched, marks, strict=True):
            if self._batch is not None and name not in self._batch:
                self._batch[name] = BatchChange(mark, resident.since_snapshot, resident.mark is not None)
            if resident.mark is None:
                resident.mark = mark
                self._staged[name] = resident
            resident.since_snapshot += 1
        return ()

    def judged(self) -> None:
        """All requests of a group are judged: no alarm of a rule interrupts what writes it."""
        if self._has_rules and self.model.canonical is not None:
            self.model.canonical.rest_rules()

    def begin_batch(self) -> None:
        """From here on remember how to undo what is staged, until `keep_batch` or `undo_batch` (EXT-10)."""
        self._batch = {}

    def keep_batch(self) -> None:
        """The batch is accepted: its changes are the group's."""
        self._batch = None

    def undo_batch(self) -> None:
        """Undo what was staged since `begin_batch`; what the group staged before stays."""
        for name, change in (self._batch or {}).items():
            resident = self._staged[name]
            resident.state.rollback(change.mark)
            resident.since_snapshot = change.since_snapshot
            if not change.was_staged:
                resident.mark = None
                del self._staged[name]
        self._batch = None

    def settle(self) -> None:
        """The group is durable: keep its changes, write due snapshots and evict states above the memory limit."""
        staged, self._staged = self._staged, {}
        for name, resident in staged.items():
            state = resident.state
            state.settle()
            resident.mark = None
            weight = state.weight()
            self._weight += weight - resident.weight
            resident.weight = weight
            if resident.since_snapshot >= self._snapshot_every > 0 and weight <= SNAPSHOT_WEIGHT_MAX:
                self._due[name] = None
        if self._due:
            self._write_due()
        while self._weight > self._bytes_max and len(self._resident) > 1:
            oldest = next((name for name in self._resident if name not in self._pinned), None)
            if oldest is None:
                break
            self._weight -= self._resident.pop(oldest).weight
            self._evictions += 1

    def follow(self, records: Sequence[Record]) -> None:
        """Apply events of other nodes; never while a group has staged changes."""
        assert not self._staged, "events of other nodes come before the group's own changes"
        for record in records:
            event: JsonObject | None = None
            for name in record.partitions:
                if name in self._writing:
                    self._forget(name)
                resident = self._resident.get(name)
                if resident is None or record.committed_id <= resident.upto:
                    continue  # not in memory, or loaded from a snapshot that was ahead of this node's head
                event = event or decode_event(record.event)
                if self._running is not None:
                    self._running.replay(record.id)
                self.model.apply_committed(resident.state, event, record_authorship(record))
                resident.state.settle()
                resident.upto = record.committed_id
                resident.since_snapshot += 1
                self._reweigh(resident)

    def with_model(self, model: Model) -> States:
        """Empty states of a model with the same limits and counters.

        They are loaded from the newest version of the lake: text may have been erased there.
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
        fresh._rules_before = (
            self._rules_before if model is self.model else rule_counts(self.model, self._rules_before)
        )
        return fresh

    def forget(self, partitions: Iterable[str]) -> None:
        """Text of these partitions was erased: drop their states, loads and unfinished snapshots."""
        self._archive.refresh()
        for partition in partitions:
            self._forget(partition)
            self._loading.cancel(partition)
            self._writing.pop(partition, None)

    def _forget(self, partition: str) -> None:
        """Drop a state; a thread that reads it keeps its unchanged copy, and the next request loads it again."""
        resident = self._resident.pop(partition, None)
        if resident is not None:
            self._weight -= resident.weight

    def _reweigh(self, resident: Resident) -> None:
        weight = resident.state.weight()
        self._weight += weight - resident.weight
        resident.weight = weight

    def rollback(self) -> None:
        """The group failed: restore every state to what it was before."""
        for resident in self._staged.values():
            assert resident.mark is not None
            resident.state.rollback(resident.mark)
            resident.mark = None
        self._staged = {}
        self._batch = None

    # -- snapshots -----------------------------------------------------------------------------------------

    def _write_due(self) -> None:
        """Write due snapshots up to SNAPSHOT_WEIGHT_MAX: one event in many partitions can make many due at once."""
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
        """Store a snapshot of one partition; None: not finished, call again.

        The state is packed in a thread. Only requests that need this partition wait for it.
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
        for name, times in rule_counts(self.model, self._rules_before).items():
            counters.reset(name, times)
