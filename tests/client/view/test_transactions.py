"""Views with transactions: each is shown in all of its partitions or in none, as a fold of everything shows it."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from tests.client.view.test_partition import push, put
from unisono.client.store.outbox import DraftRecord
from unisono.client.store.store import Store
from unisono.client.sync.inputs_effects import DraftRejected
from unisono.client.view.views import Views
from unisono.model.model import COMPATIBILITY, open_model
from unisono.model.partition import PartitionState
from unisono.protocol.canonical import canonical
from unisono.protocol.client_codec import CommittedEvent
from unisono.vocabulary import JsonObject

NAMES = ("p", "q", "r")


class World:
    """A store and its views, and the same by the plain rule: committed events, then drafts, transactions whole."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Store(":memory:", "ann")
        for name in NAMES:
            self.store.follow(name)
        self.views = Views(self.store, open_model(), 1_000_000, COMPATIBILITY)
        for name in NAMES:
            self.views.open(name)
        self.committed: list[tuple[tuple[str, ...], JsonObject]] = []

    def event(self) -> tuple[tuple[str, ...], JsonObject]:
        names = tuple(sorted(self.random.sample(NAMES, self.random.choice([1, 1, 1, 2]))))
        kind = self.random.random()
        if kind < 0.6:
            parent = self.random.choice([None, *"abcdef"])
            return names, push(self.random.choice("abcdef"), parent)
        if kind < 0.8:
            id = self.random.choice("abcdef")
            return names, {"type": "treeDelete", "payload": {"target": "t", "options": {"id": id}}}
        return names, put(self.random.choice("xyz"), self.random.randrange(9))

    def commit(self, names: tuple[str, ...], event: JsonObject, id: str) -> None:
        self.committed.append((names, event))
        number = len(self.committed)
        raw = msgspec.Raw(canonical(event))
        committed = CommittedEvent(id, number, names, raw, "somebody", 1)
        self.views.note(self.store.apply([committed], cursors=dict.fromkeys(NAMES, number)))
        self.views.refresh()

    def draft(self, count: int) -> None:
        """What does not fit is drafted all the same: as if it had fitted when it was made."""
        outbox = self.store.outbox
        drafts: list[DraftRecord] = []
        for _ in range(count):
            names, event = self.event()
            clock = outbox.next_clock()
            batch = None if count == 1 else drafts[0].draft_clock if drafts else clock
            text = canonical(event)
            drafts.append(DraftRecord(clock, f"d{clock}", names, text, 1, batch=batch))
        outbox.add(drafts)
        for draft in drafts:
            self.views.draft(draft)

    def settle(self) -> None:
        """The oldest draft, or transaction, is committed or rejected; events of one come one by one at times."""
        outbox = self.store.outbox
        first = next(iter(outbox.pending.values()), None)
        if first is None:
            return
        drafts = outbox.transaction(first)
        if self.random.random() < 0.5:
            refused = [DraftRejected(draft.id, "no", ()) for draft in drafts]
            self.views.note(self.store.apply([], refused=refused))
            self.views.refresh()
            return
        for draft in drafts:
            self.commit(draft.partitions, msgspec.json.decode(draft.event), draft.id)

    def expected(self) -> dict[str, Any]:
        model, states = open_model(), {name: PartitionState() for name in NAMES}
        for names, event in self.committed:
            for name in names:
                model.apply_committed(states[name], event)
        done: set[str] = set()
        for draft in self.store.outbox.pending.values():
            drafts = [each for each in self.store.outbox.transaction(draft) if each.id not in done]
            done.update(each.id for each in drafts)
            self._show(model, states, drafts, together=draft.batch is not None)
        return {name: states[name].tree.dump() for name in NAMES}

    def _show(self, model: Any, states: dict[str, PartitionState], drafts: list[Any], together: bool) -> None:
        marks = {name: state.mark() for name, state in states.items()}
        for draft in drafts:
            event = msgspec.json.decode(draft.event)
            for name in draft.partitions:
                if not model.refusals(COMPATIBILITY, states[name], event):
                    model.apply(COMPATIBILITY, states[name], event)
                elif together:
                    for every, mark in marks.items():
                        states[every].rollback(mark)
                    return

    def shown(self) -> dict[str, Any]:
        return {name: self.views.dump(name, COMPATIBILITY) for name in NAMES}


@pytest.mark.req("CLIENT-17", "CLIENT-03")
@pytest.mark.parametrize("seed", range(40))
def test_views_are_the_fold_of_committed_events_and_whole_transactions(seed: int) -> None:
    world = World(seed)
    for step in range(60):
        kind = world.random.random()
        if kind < 0.35:
            world.commit(*world.event(), f"e{step}")
        elif kind < 0.75:
            world.draft(world.random.choice([1, 2, 2, 3]))
        elif kind < 0.95:
            world.settle()
        else:
            world.views.reopen_all()
        assert world.shown() == world.expected(), step
    world.store.close()


@pytest.mark.req("CLIENT-17")
def test_a_partition_that_is_left_hides_nothing_any_more() -> None:
    world = World(0)
    outbox = world.store.outbox
    clocks = outbox.next_clock(), outbox.next_clock()
    texts = msgspec.json.encode(push("a", "nobody")), msgspec.json.encode(put("x", 1))
    drafts = [
        DraftRecord(clock, f"d{clock}", (name,), text, 1, batch=clocks[0])
        for clock, name, text in zip(clocks, "pq", texts, strict=True)
    ]
    outbox.add(drafts)
    for draft in drafts:
        world.views.draft(draft)
    assert world.shown() == {"p": {}, "q": {}, "r": {}}
    world.views.drop("p")
    world.store.leave("p")
    assert world.views.dump("q", COMPATIBILITY) == {"x": 1}
    world.store.close()
