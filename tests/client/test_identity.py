"""Rules that know who submitted an event: a client's view is the server's, before and after the commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.boards import BOARD
from tests.behaviour.server.harness import Server, running
from tests.client.running import NOWHERE, WAIT_S, asynchronous, client, of, until
from tests.client.store.opening import held, opened
from tests.client.sync.driving import event as committed
from unisono.client import InvalidEvent, SyncClient
from unisono.client.store.outbox import DraftRecord
from unisono.client.sync.inputs_effects import Accepted
from unisono.samples import sample_model


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("boards") / "data"
    with running(data, *BOARD, "--access-default", "allow") as started:
        yield started


def person(server: Server, user: str, partition: str, **more: Any) -> SyncClient:
    client_id = f"{user}-{partition}"
    given: dict[str, Any] = {
        "model": sample_model("roles"),
        "profile": "canonical",
        "token": lambda: server.token(client_id, user_id=user, claims={"name": user.title()}),
    }
    return of(server, client_id, partition, **given | more)


def event(schema: str, **data: Any) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


async def does(who: SyncClient, part: str, schema: str, **data: Any) -> str:
    draft = await who.submit([part], event(schema, **data))
    outcome = await draft.settled(WAIT_S)
    return type(outcome).__name__


def cards(who: SyncClient, part: str) -> dict[str, Any]:
    shown: Any = who.view(part)
    return shown.get("cards", {}) if shown else {}


@pytest.mark.req("VAL-06", "EXT-03", "TREE-11")
@asynchronous
async def test_views_of_two_people_are_the_same_and_have_the_servers_times(boards: Server, part: str) -> None:
    async with person(boards, "ann", part) as ann, person(boards, "ben", part) as ben:
        await ann.caught_up(WAIT_S)
        assert await does(ann, part, "member.set", user_id="ann", role="owner") == "Committed"
        assert await does(ann, part, "member.set", user_id="ben", role="editor") == "Committed"
        assert await does(ann, part, "card.added", id="c1", list="todo", text="milk") == "Committed"
        await until(lambda: "c1" in cards(ben, part))
        with pytest.raises(InvalidEvent, match="only its author"):
            await ben.submit([part], event("card.edited", id="c1", text="tea"))
        assert await does(ben, part, "card.added", id="c2", list="todo", text="tea") == "Committed"
        await ben.caught_up(WAIT_S)
        seen: Any = ben.view(part)
        with boards.client("reader") as reader:
            times = {
                each["event"]["payload"]["data"].get("id"): each["status_updated_at"]
                for each in reader.history([part])
            }
        assert seen["cards"]["c1"] == {
            "list": "todo", "text": "milk", "by": "ann", "name": "Ann", "at": times["c1"],
        }  # fmt: skip
        # The draft of c2 had the time of ben's clock; the event has the server's.
        assert seen["cards"]["c2"]["at"] == times["c2"]
        assert seen["cards"]["c2"]["name"] == "Ben"


@pytest.mark.req("VAL-06", "CLIENT-13")
@asynchronous
async def test_offline_a_client_knows_who_it_is(boards: Server, part: str, tmp_path: Path) -> None:
    store = tmp_path / "ann.db"
    async with person(boards, "ann", part, store=store) as ann:
        await ann.caught_up(WAIT_S)
        assert await does(ann, part, "member.set", user_id="ann", role="owner") == "Committed"
        before = ann.view(part)
    again = client(
        NOWHERE, f"ann-{part}", part, store=store, model=sample_model("roles"), profile="canonical"
    )
    async with again as ann:
        assert ann.view(part) == before
        await ann.submit([part], event("card.added", id="c1", list="todo", text="milk"))
        shown: Any = ann.view(part)
        assert (shown["cards"]["c1"]["by"], shown["cards"]["c1"]["name"]) == ("ann", "Ann")
        with pytest.raises(InvalidEvent, match="at least one owner"):
            await ann.submit([part], event("member.removed", user_id="ann"))


@pytest.mark.req("VAL-06", "CLIENT-13")
@asynchronous
async def test_before_its_first_connection_a_client_is_who_its_token_says(boards: Server, part: str) -> None:
    token = boards.token("new", user_id="ann", claims={"name": "Ann", "other": 1})
    new = client(NOWHERE, "new", part, model=sample_model("roles"), profile="canonical", token=token)
    async with new as ann:
        with pytest.raises(InvalidEvent, match="its owner, by itself"):
            await ann.submit([part], event("member.set", user_id="ben", role="owner"))
        await ann.submit([part], event("member.set", user_id="ann", role="owner"))
        assert ann.view(part) == {"members": {"ann": "owner"}}


# -- the store -----------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "client.db"


def test_an_author_is_stored_with_its_event(path: Path) -> None:
    store = opened(path)
    store.note_author('{"user_id":"me too"}')
    theirs = committed(1)
    store.apply([type(theirs)(**{**as_dict(theirs), "user_id": "ann", "claims": {"name": "Ann"}})])
    store.outbox.add([drafted(store)])
    store.apply([], [Accepted("d", 2, 77)])
    store.close()
    store = opened(path)
    by = [each.by for each in store.events("p", 0)]
    assert [(one.user_id, one.claims) for one in by] == [("ann", {"name": "Ann"}), ("me too", {})]
    assert (by[1].client_id, by[1].committed_at, store.author) == ("me", 77, '{"user_id":"me too"}')


def test_an_author_that_becomes_known_later_is_filled_in(path: Path) -> None:
    """Events of a library that did not ask for authors are fetched again when the server's model changes."""
    store = opened(path)
    plain = committed(1)
    assert store.apply([plain]).started == []
    full = type(plain)(**{**as_dict(plain), "user_id": "ann"})
    applied = store.apply([full])
    assert (applied.started, applied.events) == (["p"], {})
    assert [each.by.user_id for each in store.events("p", 0)] == ["ann"]
    assert store.apply([plain]).started == []  # and it is not lost again
    assert [each.by.user_id for each in store.events("p", 0)] == ["ann"]
    assert held(store) == [1]


def as_dict(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def drafted(store: Any) -> Any:

    return DraftRecord(store.outbox.next_clock(), "d", ("p",), b'{"type":"unset"}', created_at=5)
