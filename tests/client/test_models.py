"""Models: canonical events in the view, and what happens when the server's model changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, running
from tests.client.running import QUICK, WAIT_S, asynchronous, until
from tests.forking import run
from unisono.client import Committed, InvalidEvent, ModelMissing, SyncClient, connect, open_model
from unisono.vocabulary import Json

RULES = """
from unisono.model.rules import Event, Rules, refuse

rules = Rules()


@rules.check("note.added")
def new(state, event):
    if event.data["id"] in state.get("notes", {{}}):
        yield refuse("id", "there is already a note of this id")


@rules.reduce("note.added")
def added(state, event):
    state.setdefault("notes", {{}})[event.data["id"]] = {value}
"""


def write(directory: Path, version: int, value: str) -> Path:
    (directory / "schemas").mkdir(parents=True, exist_ok=True)
    (directory / "model.toml").write_text(f'name = "notes"\nmodel_version = {version}\nrules = "rules.py"\n')
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    (directory / "schemas" / "note.added.json").write_text(json.dumps(schema))
    (directory / "rules.py").write_text(RULES.format(value=value))
    return directory


def canonical(
    server: Server,
    client_id: str,
    model: Path | None,
    store: Path | str = ":memory:",
    profile: str = "canonical",
) -> SyncClient:
    return SyncClient(
        server.url,
        token=server.token(client_id),
        client_id=client_id,
        store=store,
        partitions=["p"],
        model=model or open_model(),
        profile=profile,
        options=QUICK,
    )


def tree_client(server: Server, client_id: str) -> SyncClient:
    return canonical(server, client_id, None, profile="compatibility")


def reload(server: Server) -> None:
    run("model", "reload", "--data", server.data).check_returncode()


def notes(client: SyncClient) -> Json:
    view = client.view()
    assert isinstance(view, dict)
    return view.get("notes")


@pytest.mark.parametrize("kind", [SyncClient, connect])
def test_a_canonical_client_without_a_model_warns_that_its_views_stay_empty(kind: type[SyncClient]) -> None:
    with pytest.warns(ModelMissing, match="its views stay empty") as told:
        kind("ws://x", token="t", client_id="c")
    assert told[0].filename == __file__, "it points to the line that made the client"
    kind("ws://x", token="t", client_id="c", model=open_model())
    kind("ws://x", token="t", client_id="c", profile="compatibility")


@pytest.mark.req("CLIENT-02", "CLIENT-03")
@asynchronous
async def test_a_model_gives_canonical_events_their_meaning(tmp_path: Path) -> None:
    model = write(tmp_path / "model", 1, "event.data")
    with running(tmp_path / "d", "--model", str(model), "--access-default", "allow") as server:
        async with canonical(server, "a", model) as one, canonical(server, "b", None) as plain:
            payload = {"schema": "note.added", "data": {"id": "n1"}, "meta": {"why": "test"}, "other": [1]}
            draft = await one.submit(["p"], {"type": "event", "payload": payload})
            assert notes(one) == {"n1": {"id": "n1"}}
            for data, field in (
                ({"id": 1}, "event.payload.data.id"),
                ({"id": "n1"}, "event.payload.data.id"),
            ):
                with pytest.raises(InvalidEvent) as refused:
                    await one.event("note.added", data)
                assert [error.field for error in refused.value.errors] == [field]
            with pytest.raises(InvalidEvent, match="not a schema of this model"):
                await one.event("note.lost", {})
            assert isinstance(await draft.settled(WAIT_S), Committed)
            await until(lambda: plain.status.cursor == 1)
            assert plain.view() == {}, "without the model an event has no meaning"


@pytest.mark.req("CLIENT-02", "TREE-03", "TREE-04", "TREE-11")
@asynchronous
async def test_init_with_ids_and_null_positions_mean_the_same_here_and_there(tmp_path: Path) -> None:
    nodes = [{"id": id, "children": []} for id in "AB"]
    tree = {"items": {"A": {"id": "A", "n": 1}, "B": {"id": "B"}}, "tree": nodes}
    push = {"target": "t", "value": {"id": "C"}, "options": {"parent": None, "position": None}}
    with running(tmp_path / "d", "--access-default", "allow") as server:
        async with tree_client(server, "a") as one, tree_client(server, "b") as other:
            drafts = [
                await one.submit(["p"], {"type": "init", "payload": {"value": {"t": tree}}}),
                await one.submit(["p"], {"type": "treePush", "payload": push}),
            ]
            wrong = {
                "type": "init",
                "payload": {"value": {"t": {**tree, "items": {"A": {"id": "B"}, "B": {}}}}},
            }
            with pytest.raises(InvalidEvent) as refused:
                await one.submit(["p"], wrong)
            assert [error.field for error in refused.value.errors] == ["event.payload.value.t.items.A.id"]
            view: Json = {
                "t": {
                    "items": {"A": {"n": 1}, "B": {}, "C": {}},
                    "tree": [{"id": id, "children": []} for id in "CAB"],
                }
            }
            assert one.view() == view
            for draft in drafts:
                assert isinstance(await draft.settled(WAIT_S), Committed)
            await until(lambda: other.status.cursor == 2)
            assert one.view() == other.view() == view


@pytest.mark.req("CLIENT-10")
@asynchronous
async def test_version_changed_reads_the_model_anew_and_keeps_drafts(tmp_path: Path) -> None:
    model = write(tmp_path / "model", 1, "'old'")
    with running(tmp_path / "d", "--model", str(model), "--access-default", "allow") as server:
        store = tmp_path / "c.db"
        async with canonical(server, "a", model, store) as one:
            await one.event("note.added", {"id": "n1"})
            await one.caught_up(WAIT_S)
            assert notes(one) == {"n1": "old"}
            write(model, 2, "'new'")
            reload(server)
            await until(lambda: one.status.model_version == 2)
            await one.event("note.added", {"id": "n2"})
            await one.caught_up(WAIT_S)
            assert notes(one) == {"n1": "new", "n2": "new"}
        write(model, 3, "'newest'")
        async with canonical(server, "a", model, store) as one:
            assert notes(one) == {"n1": "newest", "n2": "newest"}, "a snapshot of another model is not used"
            await until(lambda: one.status.last_error is not None)
            assert one.status.last_error is not None
            assert one.status.last_error.code == "model_mismatch"
            await one.pause()
            draft = await one.event("note.added", {"id": "n3"})
            reload(server)
            await one.resume()
            assert isinstance(await draft.settled(WAIT_S), Committed)
            assert one.status.model_version == 3
            await one.caught_up(WAIT_S)
            assert notes(one) == {"n1": "newest", "n2": "newest", "n3": "newest"}
            assert one.status.cursor == 3


@pytest.mark.req("CLIENT-10")
@asynchronous
async def test_a_client_whose_model_stays_behind_is_told(tmp_path: Path) -> None:
    model = write(tmp_path / "model", 1, "'old'")
    own = write(tmp_path / "own", 1, "'own'")
    with running(tmp_path / "d", "--model", str(model), "--access-default", "allow") as server:
        async with canonical(server, "a", own) as one:
            await one.event("note.added", {"id": "n1"})
            await one.caught_up(WAIT_S)
            write(model, 2, "'new'")
            reload(server)
            await until(lambda: one.status.model_version == 2)
            await one.caught_up(WAIT_S)
            assert one.status.last_error is not None
            assert one.status.last_error.code == "model_mismatch"
            assert notes(one) == {"n1": "own"}
