"""Views: always the plain fold of what the store holds, at the price of what changed."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.client.view import partition as module
from unisono.client.view.partition import Entry, PartitionView, committed_key, draft_key
from unisono.model.authorship import UNKNOWN
from unisono.model.model import Model, open_model
from unisono.model.partition import PartitionState
from unisono.vocabulary import Json, JsonObject


def push(id: str, parent: str | None = None) -> JsonObject:
    options: JsonObject = {} if parent is None else {"parent": parent}
    return {"type": "treePush", "payload": {"target": "t", "value": {"id": id}, "options": options}}


def put(key: str, value: Json) -> JsonObject:
    return {"type": "set", "payload": {"target": key, "value": value, "options": {"replace": True}}}


def expected(committed: dict[int, JsonObject], drafts: dict[tuple[int, str], JsonObject]) -> Json:
    """CLIENT-03 word for word."""
    model, state = open_model(), PartitionState()
    for number in sorted(committed):
        model.apply_committed(state, committed[number])
    for place in sorted(drafts):
        if not model.shape("compatibility", drafts[place]) and not model.refusals(
            "compatibility", state, drafts[place]
        ):
            model.apply("compatibility", state, drafts[place])
    return state.tree.dump()


class Counting:
    """A model that counts what it is asked to apply."""

    def __init__(self) -> None:
        self.model = open_model()
        self.applied = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("apply", "apply_committed"):
            self.applied += 1
        return getattr(self.model, name)


def counted() -> tuple[PartitionView, Counting]:
    counting = Counting()
    return PartitionView(counting), counting  # type: ignore[arg-type]


@pytest.mark.req("CLIENT-03", "CLIENT-04")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), settle_every=st.integers(1, 8))
def test_a_view_is_the_fold_of_committed_events_then_drafts(seed: int, settle_every: int) -> None:
    random = Random(seed)
    before, module.SETTLE_EVERY = module.SETTLE_EVERY, settle_every  # type: ignore[misc]
    try:
        _play(random)
    finally:
        module.SETTLE_EVERY = before  # type: ignore[misc]


def _play(random: Random) -> None:
    """Committed events in any order above `known`, drafts that come and go, the base moving up."""
    view = PartitionView(open_model())
    committed: dict[int, JsonObject] = {}
    drafts: dict[tuple[int, str], JsonObject] = {}
    known = 0
    for clock in range(1, 40):
        added: list[Entry] = []
        removed: set[module.Key] = set()
        became: dict[module.Key, module.Key] = {}
        for _ in range(random.randint(0, 3)):
            number = random.randint(known + 1, known + 12)
            if number not in committed:
                committed[number] = _some(random)
                added.append(Entry(committed_key(number), committed[number]))
        if random.random() < 0.5:
            place = (clock, f"d{random.randint(0, 9)}")
            drafts[place] = _some(random)
            added.append(Entry(draft_key(*place), drafts[place]))
        while drafts and random.random() < 0.4:
            gone = min(drafts) if random.random() < 0.5 else random.choice(sorted(drafts))
            if not any(entry.key == draft_key(*gone) for entry in added):
                event = drafts.pop(gone)
                removed.add(draft_key(*gone))
                number = max([known, *committed]) + random.randint(-3, 3)
                if random.random() < 0.6 and number > known and number not in committed:
                    committed[number] = event
                    added.append(Entry(committed_key(number), event))
                    became[draft_key(*gone)] = committed_key(number)
        if random.random() < 0.3:
            known = max([known, *(number for number in committed if random.random() < 0.5)])
        assert view.amend(known, added, removed, became)
        assert view.dump("compatibility") == expected(committed, drafts)
        if random.random() < 0.2:
            taken = view.base(known)
            assert taken is not None
            upto, state = taken
            assert upto <= known
            assert msgspec.json.decode(state)["tree"] == expected(
                {number: event for number, event in committed.items() if number <= known}, {}
            )
            assert view.dump("compatibility") == expected(committed, drafts)


def _some(random: Random) -> JsonObject:
    ids = "abcd"
    match random.randint(0, 4):
        case 0:
            return push(random.choice(ids))
        case 1:
            return push(random.choice(ids), random.choice(ids))
        case 2:
            return {"type": "treeDelete", "payload": {"target": "t", "options": {"id": random.choice(ids)}}}
        case 3:
            return {
                "type": "treeMove",
                "payload": {
                    "target": "t",
                    "options": {"id": random.choice(ids), "parent": random.choice(ids)},
                },
            }
        case _:
            return put(random.choice("xyz"), random.randint(0, 99))


@pytest.mark.req("CLIENT-03")
def test_a_draft_that_no_longer_fits_is_left_out_and_shown_again_when_it_does() -> None:
    view = PartitionView(open_model())
    view.amend(0, [Entry(draft_key(1, "d"), push("child", "parent"))])
    assert view.dump("compatibility") == {}
    view.amend(1, [Entry(committed_key(1), push("parent"))])
    shown = view.dump("compatibility")
    assert isinstance(shown, dict)
    assert shown["t"]["items"] == {"child": {}, "parent": {}}  # type: ignore[index,call-overload]


def test_an_event_below_the_base_asks_for_a_new_view() -> None:
    view = PartitionView(open_model())
    view.fold([(1, b'{"type":"unset","payload":{"target":"a"}}', UNKNOWN), (5, b"{}", UNKNOWN)])
    assert not view.amend(5, [Entry(committed_key(3), put("a", 1))])
    assert view.dump("compatibility") == {}


def test_events_that_mean_nothing_change_nothing() -> None:
    view = PartitionView(open_model())
    events = [b"not json", b"[1]", b'{"type":"set","payload":{"target":"a","value":1}}']
    view.fold((number, event, UNKNOWN) for number, event in enumerate(events, 1))
    assert view.dump("compatibility") == {"a": 1}


def test_a_live_event_costs_itself_and_the_drafts_above_it() -> None:
    view, counting = counted()
    history = [Entry(committed_key(n), put(f"k{n}", n)) for n in range(1, 2001)]
    view.amend(2000, history)
    drafts = [Entry(draft_key(n, f"d{n}"), put("x", n)) for n in range(10)]
    view.amend(2000, drafts)
    counting.applied = 0
    for number in range(2001, 2101):
        view.amend(number, [Entry(committed_key(number), put("y", number))])
    assert counting.applied == 100 * (1 + len(drafts))


def test_an_own_draft_costs_itself_alone() -> None:
    view, counting = counted()
    for clock in range(1000):
        view.amend(0, [Entry(draft_key(clock, "d"), put("x", clock))])
    assert counting.applied == 1000


def test_many_live_events_without_drafts_cost_themselves_alone() -> None:
    view, counting = counted()
    for number in range(1, 3001):
        view.amend(number, [Entry(committed_key(number), put("y", number))])
    assert counting.applied == 3000
    assert view.folded > 3000 - module.SETTLE_EVERY


def test_drafts_that_become_events_in_order_cost_nothing_but_themselves() -> None:
    view, counting = counted()
    drafts = [Entry(draft_key(n, f"d{n}"), put(f"k{n}", n)) for n in range(2000)]
    view.amend(0, drafts)
    counting.applied = 0
    for start in range(0, 2000, 100):
        batch = drafts[start : start + 100]
        numbers = range(start + 1, start + 101)
        became = {entry.key: committed_key(n) for entry, n in zip(batch, numbers, strict=True)}
        added = [Entry(committed_key(n), entry.event) for entry, n in zip(batch, numbers, strict=True)]
        view.amend(numbers[-1], added, list(became), became)
    assert counting.applied < 3 * 2000, "settling applies the rest again, each time for as many as it settles"
    assert view.dump("compatibility") == {f"k{n}": n for n in range(2000)}


def test_a_snapshot_is_due_by_events_and_by_size() -> None:
    view = PartitionView(open_model())
    for number in range(1, 300):
        view.amend(number, [Entry(committed_key(number), put("k", number))])
    assert view.snapshot_due(250)
    assert not view.snapshot_due(1000)
    assert view.worth_storing(299)
    view.base(299)
    assert not view.snapshot_due(250)
    assert not view.worth_storing(299)
    view.amend(300, [Entry(committed_key(300), put("big", "x" * 10_000_000))])
    assert not view.worth_storing(300), "one event is folded faster than ten megabytes are written"


def test_canonical_events_make_the_other_half() -> None:
    model: Model = open_model()
    view = PartitionView(model)
    view.amend(1, [Entry(committed_key(1), {"type": "event", "payload": {"schema": "s", "data": 1}})])
    assert view.dump("canonical") == {}
    assert view.dump("compatibility") == {}
