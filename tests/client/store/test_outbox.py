"""Drafts in the client's file: there before anything is sent, until they are settled, and after a power loss."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.client.store.opening import draft, held, opened
from tests.client.sync.driving import event
from tests.simulation.disk import restore, simulated_disk
from unisono.client.store.outbox import DraftRecord
from unisono.client.sync.inputs_effects import Accepted, DraftRejected
from unisono.vocabulary import FieldError

# -- drafts ------------------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-01")
def test_drafts_survive_and_their_clock_never_goes_back(path: Path) -> None:
    store = opened(path)
    first, second = draft(store, "a"), draft(store, "b")
    assert first.draft_clock < second.draft_clock
    store.apply([], [Accepted("a", 1, 1), Accepted("b", 2, 1)])
    store.close()
    store = opened(path)
    assert not store.outbox.pending
    assert draft(store, "c").draft_clock > second.draft_clock
    store.close()
    assert list(opened(path).outbox.pending) == ["c"]


@pytest.mark.req("CLIENT-04")
def test_a_result_stores_the_drafts_event_under_its_committed_id(path: Path) -> None:
    store = opened(path)
    made = draft(store, "a")
    applied = store.apply([], [Accepted("a", 7, 1000)], cursors={"p": 7})
    assert [(each.draft, each.committed_id) for each in applied.settled] == [(made, 7)]
    assert held(store) == [7]
    assert not store.apply([], [Accepted("a", 7, 1000)]).settled, "a second result finds nothing to settle"


@pytest.mark.req("CLIENT-04")
def test_a_draft_that_comes_back_as_an_event_is_settled(path: Path) -> None:
    store = opened(path)
    made = draft(store, "a")
    body = b'{ "type" : "unset" }'
    same = event(7, id="a")

    applied = store.apply([msgspec.structs.replace(same, event=msgspec.Raw(body))])
    assert [each.draft for each in applied.settled] == [made]
    assert not store.outbox.pending


def test_another_event_with_a_drafts_id_does_not_settle_it(path: Path) -> None:
    store = opened(path)
    draft(store, "a")
    assert not store.apply([event(7, id="a")]).settled
    assert "a" in store.outbox.pending


def test_a_draft_elsewhere_is_settled_and_its_event_not_kept(path: Path) -> None:
    store = opened(path)
    draft(store, "a", "elsewhere")
    assert store.apply([], [Accepted("a", 7, 1)]).settled
    assert not store.committed("a")


@pytest.mark.req("CLIENT-03")
def test_a_rejected_draft_is_kept_with_its_reason(path: Path) -> None:
    store = opened(path)
    draft(store, "a")
    store.apply([], refused=[DraftRejected("a", "forbidden", (FieldError("partitions", "no"),))])
    store.close()
    store = opened(path)
    assert not store.outbox.pending
    kept = store.outbox.rejected["a"]
    assert (kept.reason, kept.errors) == ("forbidden", (FieldError("partitions", "no"),))
    store.outbox.discard("a")
    store.close()
    assert not opened(path).outbox.rejected


def test_a_rejected_draft_tried_again_is_a_new_one_under_its_id(path: Path) -> None:
    store = opened(path)
    old = draft(store, "a")
    store.apply([], refused=[DraftRejected("a", "forbidden", ())])
    new = DraftRecord(store.outbox.next_clock(), "a", old.partitions, old.event, 6)
    store.outbox.add([new], ["a"])
    store.close()
    store = opened(path)
    assert list(store.outbox.pending.values()) == [new]
    assert not store.outbox.rejected
    assert new.draft_clock > old.draft_clock


# -- power loss --------------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-01", "CLIENT-05")
@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_loses_no_draft_and_no_event_below_the_cursor(tmp_path: Path, seed: int) -> None:
    """The disk forgets any part of what was not synced; what was acknowledged holds."""
    chance = random.Random(seed)
    directory = tmp_path / "disk"
    with simulated_disk(directory) as disk:
        store = opened(directory / "client.db")
        acknowledged: list[str] = []
        head = 0
        for number in range(chance.randint(1, 25)):
            if chance.random() < 0.4:
                acknowledged.append(draft(store, f"d{number}").id)
            else:
                page = [event(head + n) for n in range(1, chance.randint(2, 5))]
                head = page[-1].committed_id
                store.apply(page, cursors={"p": head})
        image = disk.image()
        store.close()
    after = tmp_path / "after"
    restore({name: file for name, file in image.items() if "lock" not in name}, after, chance)
    store = opened(after / "client.db")
    assert list(store.outbox.pending) == acknowledged
    cursor = store.followed["p"].cursor
    assert held(store) == list(range(1, cursor + 1))
    assert store._connection.pragma("integrity_check") == "ok"
    store.close()
