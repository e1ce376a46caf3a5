"""Bits that turn on the disk: every wrong answer is an error of the client, and no error is anything else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec
import pytest

from tests.client.running import NOWHERE
from unisono.client import Options, StoreDamaged, StoreError, connect
from unisono.client.store.outbox import DraftRecord
from unisono.client.store.store import Store
from unisono.client.sync.inputs_effects import DraftRejected, StartState
from unisono.protocol.client_codec import CommittedEvent
from unisono.vocabulary import FieldError

FLIPS = 30

SOME = 40
"""Events of each partition; the file has some 20 pages."""


def body(number: int) -> bytes:
    value = {"type": "set", "payload": {"target": f"k{number}", "value": "x" * 100 + str(number)}}
    return json.dumps(value).encode()


def committed(number: int, *partitions: str) -> CommittedEvent:
    return CommittedEvent(f"e{number}", number, partitions, msgspec.Raw(body(number)), "other", number)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with events, a snapshot, a base, drafts and a rejection; two partitions share some events."""
    path = tmp_path_factory.mktemp("sound") / "c.db"
    store = Store(str(path), "me")
    state = json.dumps({"tree": {"old": "y" * 300}, "data": {}}).encode()
    for name in ("p", "q", "r"):
        store.follow(name)
    store.apply(
        [committed(number, *(["p"] if number % 3 else ["p", "q"])) for number in range(1, SOME)],
        cursors={"p": SOME - 1, "q": SOME - 1},
    )
    store.apply(
        [committed(60, "r")], starts={"r": StartState(50, state)}, cursors={"r": 60}, model_version="tree"
    )
    drafts = [
        DraftRecord(store.outbox.next_clock(), f"d{n}", ("p",), body(1000 + n), 1_700_000_000_000 + n)
        for n in range(8)
    ]
    store.outbox.add(drafts)
    error = FieldError("event.payload", "no" * 20)
    store.apply([], refused=[DraftRejected("d3", "validation_failed", (error,), 1_700_000_000_009)])
    store.close()
    seen(path)
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT count(*) FROM snapshots").get, "one is made when a client closes"
    connection.execute("DELETE FROM snapshots WHERE partition = 1")
    connection.execute("VACUUM")
    connection.close()
    return path


def opened(path: Path) -> Any:
    return connect(
        NOWHERE,
        token="t",
        client_id="me",
        store=path,
        profile="compatibility",
        options=Options(backoff_base_s=30.0),
    )


def seen(path: Path) -> dict[str, Any]:
    """Everything a program can see of a store, and one thing that it writes."""
    with opened(path) as one:
        answer = {
            "views": {name: one.view(name) for name in sorted(one.status.cursors)},
            "cursors": one.status.cursors,
            "pending": [(draft.id, draft.event, draft.draft_clock) for draft in one.pending()],
            "rejected": one.rejected(),
        }
        one.set("new", 1, partition="p")
        one.add_partition("later")
        one.remove_partition("later")
    return answer


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    path = tmp_path / "c.db"
    shutil.copy(sound, path)
    return path


def flip(path: Path, chance: Random) -> str:
    data = bytearray(path.read_bytes())
    place, bit = chance.randrange(len(data)), chance.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place}"


@pytest.mark.parametrize("seed", range(3))
def test_a_turned_bit_is_an_error_of_the_client_or_changes_nothing(
    sound: Path, tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    path = tmp_path / "c.db"
    shutil.copy(sound, path)
    expected = seen(path)
    found = 0
    for _ in range(FLIPS):
        for rest in path.parent.glob("c.db*"):
            rest.unlink()
        shutil.copy(sound, path)
        where = flip(path, chance)
        try:
            answer = seen(path)
        except StoreError:
            found += 1
        else:
            assert answer == expected, where
    assert found, "some of them are found"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET event = CAST('{}' AS BLOB) WHERE committed_id = 7",
        "UPDATE events SET partitions = '[\"q\"]' WHERE committed_id = 7",
        "DELETE FROM events WHERE committed_id = 7",
        "UPDATE partitions SET cursor = cursor + 5 WHERE name = 'p'",
        "UPDATE drafts SET event = CAST('{}' AS BLOB) WHERE draft_clock = 2",
        "UPDATE bases SET state = CAST('{}' AS BLOB)",
    ],
)
def test_a_row_that_is_not_what_was_stored_is_found(copy: Path, change: str) -> None:
    connection = apsw.Connection(str(copy))
    connection.execute("DELETE FROM snapshots")
    for table in ("drafts", "partitions"):
        connection.execute(f"DROP TRIGGER {table}_updated")
    connection.execute(change)
    connection.close()
    with pytest.raises(StoreDamaged, match="Move it away and open a new store"), opened(copy) as one:
        one.view("p")


def test_a_snapshot_that_is_not_what_was_stored_costs_a_fold_and_nothing_else(
    copy: Path, sound: Path
) -> None:
    connection = apsw.Connection(str(copy))
    count = connection.execute("SELECT count(*) FROM snapshots").get
    assert count, "the store has one"
    connection.execute("UPDATE snapshots SET state = CAST('{}' AS BLOB)")
    connection.close()
    other = copy.with_name("other.db")
    shutil.copy(sound, other)
    assert seen(copy) == seen(other)


def test_a_draft_clock_is_above_all_that_were_given_whatever_the_counter_says(copy: Path) -> None:
    connection = apsw.Connection(str(copy))
    connection.execute("UPDATE sqlite_sequence SET seq = 1")
    connection.close()
    with opened(copy) as one:
        highest = max(draft.draft_clock for draft in one.pending())
        assert one.set("a", 1, partition="p").draft_clock > highest
