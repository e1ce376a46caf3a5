"""Who submitted an event: known to rules, stored with the event, told to clients that ask for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.boards import BOARD, does, event, person
from tests.behaviour.server.harness import Server, item, running, set_event
from tests.behaviour.server.reloading import post
from unisono.front.auth.verify import MAX_AUTHOR_BYTES
from unisono.store.sqlite.reader import SqliteReader


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("boards") / "data"
    with running(data, *BOARD, "--access-default", "allow") as started:
        yield started


@pytest.mark.req("VAL-06", "AUTH-10")
def test_roles_are_kept_by_rules_that_know_who_submits(boards: Server, part: str) -> None:
    with person(boards, "ann") as ann, person(boards, "ben") as ben, person(boards, "cat") as cat:
        assert does(ben, part, "member.set", user_id="ann", role="owner") != "committed"  # not by itself
        assert does(ann, part, "member.set", user_id="ann", role="owner") == "committed"
        assert "only an owner" in does(ben, part, "member.set", user_id="ben", role="owner")
        assert "only members" in does(ben, part, "card.added", id="c1", list="todo", text="milk")
        for user, role in (("ben", "editor"), ("cat", "viewer")):
            assert does(ann, part, "member.set", user_id=user, role=role) == "committed"
        assert does(ben, part, "card.added", id="c1", list="todo", text="milk") == "committed"
        assert "a viewer may not" in does(cat, part, "card.added", id="c2", list="todo", text="tea")
        assert does(ann, part, "card.added", id="c2", list="todo", text="bread") == "committed"
        assert "only its author" in does(ben, part, "card.edited", id="c2", text="cake")
        assert does(ben, part, "card.edited", id="c1", text="oat milk") == "committed"
        assert "at least one owner" in does(ann, part, "member.set", user_id="ann", role="viewer")
        assert does(ann, part, "member.removed", user_id="ben") == "committed"
        assert "only members" in does(ben, part, "card.moved", id="c1", list="done")
        # Another device of the same person is the same person.
        with person(boards, "ann", "laptop") as laptop:
            assert does(laptop, part, "card.edited", id="c1", text="milk") == "committed"


@pytest.mark.req("AUTH-10", "AUTH-06")
def test_the_author_is_the_tokens_whatever_an_item_says(boards: Server, part: str) -> None:
    with person(boards, "ann", extensions=["identity"]) as ann, person(boards, "ben") as ben:
        ann.subscribe(part)
        forged = item([part], event("member.set", user_id="ben", role="owner"), user_id="ann", author="ann")
        assert ben.submit(forged | {"claims": {"name": "Ann"}})[0]["status"] == "committed"
        told = ann.expect("event_broadcast")
        assert (told["user_id"], told["claims"]) == ("ben", {"name": "Ben"})
        assert "author" not in told


@pytest.mark.req("EXT-03", "EXT-02", "EXT-04", "BCAST-05")
def test_only_those_who_ask_are_told_who_it_was(boards: Server, part: str) -> None:
    with (
        person(boards, "ann") as ann,
        person(boards, "ben", extensions=["identity"]) as ben,
        person(boards, "cat") as cat,
    ):
        ben.subscribe(part)
        cat.subscribe(part)
        made = item([part], event("member.set", user_id="ann", role="owner"))
        assert ann.submit(made)[0].keys() == {"id", "status", "status_updated_at", "committed_id"}
        shape = {"id", "client_id", "partitions", "committed_id", "event", "status_updated_at"}
        plain, full = cat.expect("event_broadcast"), ben.expect("event_broadcast")
        assert plain.keys() == shape
        assert full == plain | {"user_id": "ann", "claims": {"name": "Ann"}}
        assert cat.sync([part])["events"] == [plain]
        assert ben.sync([part])["events"] == [full]
        many = [part, *(f"{part}-{n}" for n in range(40))]  # read by another statement
        assert cat.sync(many)["events"] == [plain]
        assert ben.sync(many)["events"] == [full]
        ben.send("submit_event", item([part], event("member.removed", user_id="ann")))
        assert ben.expect("event_rejected").keys() == shape - {"event", "committed_id"} | {"reason", "errors"}


@pytest.mark.req("EXT-03")
def test_a_connection_is_told_what_its_events_are_stored_with(boards: Server) -> None:
    with boards.peer() as peer:
        token = boards.token("eve", user_id="eve", claims={"name": "Eve", "other": 1})
        told = peer.connect("eve", token, extensions=["identity"])
        assert (told["user_id"], told["claims"]) == ("eve", {"name": "Eve"})
        assert told["capabilities"]["extensions"] == ["identity"]
    with boards.peer() as peer:
        told = peer.connect("eve", boards.token("eve"), extensions=["identity"])
        assert told.keys().isdisjoint({"user_id", "claims"})
    with boards.peer() as peer:
        assert peer.connect("eve", token).keys().isdisjoint({"user_id", "claims"})
    with boards.peer() as peer:  # some issuers number their users
        numbered = boards.token("eve", claims={"sub": 42, "jti": 7})
        assert peer.connect("eve", numbered, extensions=["identity"])["user_id"] == "42"


@pytest.mark.req("AUTH-10")
def test_what_is_stored_and_survives_a_restart(tmp_path: Path) -> None:
    with running(tmp_path / "data", *BOARD, "--access-default", "allow") as server:
        with person(server, "ann") as ann:
            assert does(ann, "p", "member.set", user_id="ann", role="owner") == "committed"
            assert does(ann, "p", "card.added", id="c1", list="todo", text="milk") == "committed"
        with server.client("tree") as tree:
            tree.commit(["p"], set_event("title", "no author"))
        server.stop()
        with closing(SqliteReader.open(server.data)) as log:
            authors = [record.author for record in log.scan(0, 10, limit=10)]
        assert authors == ['{"claims":{"name":"Ann"},"user_id":"ann"}'] * 2 + [""]
        server.start()
        with person(server, "ben", extensions=["identity"]) as ben:
            assert "only members" in does(ben, "p", "card.moved", id="c1", list="done")
            assert [each.get("user_id") for each in ben.sync(["p"])["events"]] == ["ann", "ann", None]


@pytest.mark.req("AUTH-10")
@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"sub": True}, "must be a string"),
        ({"sub": ["ann"]}, "must be a string"),
        ({"jti": {}}, "must be a string"),
        ({"sub": ""}, "must not be empty"),
        ({"sub": "x" * 257}, "more than 256 bytes"),
        ({"sub": "ann", "name": "x" * MAX_AUTHOR_BYTES}, "more than 4096 bytes"),
        ({"name": 2**53 + 1}, "canonical JSON"),
    ],
)
def test_a_token_whose_author_cannot_be_stored_is_refused(
    boards: Server, who: str, claims: dict[str, Any], says: str
) -> None:
    with boards.peer() as peer:
        peer.send_connect(who, boards.token(who, claims=claims))
        assert says in peer.expect_error("auth_failed")["message"]
        peer.expect_close(4001)


@pytest.mark.req("AUTH-10")
def test_the_operator_names_the_claim_of_the_user(tmp_path: Path) -> None:
    options = ("--access-default", "allow", "--jwt-user-claim", "email")
    with running(tmp_path / "data", *BOARD, *options) as server, server.peer() as peer:
        token = server.token("c", user_id="x", claims={"email": "ann@example.org"})
        told = peer.connect("c", token, extensions=["identity"])
        assert told["user_id"] == "ann@example.org"


def reload(server: Server) -> None:
    token = json.loads((server.data / "admin.json").read_text())["token"]
    status, body = post(server, "/orders/reload", Authorization=f"Bearer {token}")
    assert status == 200, body


@pytest.mark.req("VAL-06", "MODEL-02")
def test_a_model_that_asks_for_more_claims_has_clients_connect_again(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "schemas").mkdir(parents=True)
    (model / "schemas" / "note.json").write_text("{}")
    (model / "model.toml").write_text('name = "n"\nmodel_version = 1\n')
    with running(tmp_path / "data", "--model", str(model), "--access-default", "allow") as server:
        with person(server, "ann", extensions=["identity"]) as ann:
            (model / "model.toml").write_text('name = "n"\nmodel_version = 2\nclaims = ["name"]\n')
            reload(server)
            assert ann.expect("version_changed")["new_model_version"] == 2
            assert "connect again" in ann.expect_close(1001)
        with person(server, "ann", extensions=["identity"]) as ann, person(server, "ben") as ben:
            ann.subscribe("p")
            assert does(ben, "p", "note", text="x") == "committed"
            assert ann.expect("event_broadcast")["claims"] == {"name": "Ben"}
            (model / "model.toml").write_text('name = "n"\nmodel_version = 3\n')
            reload(server)
            assert ann.expect("version_changed")["new_model_version"] == 3
            ann.expect_quiet()  # fewer claims need no new token


# -- derived client ids --------------------------------------------------------------------------------------


@pytest.mark.req("AUTH-09", "AUTH-03")
def test_a_token_that_allows_it_is_used_under_derived_ids(boards: Server, who: str, part: str) -> None:
    token = boards.token(who, derived_client_ids=True, partitions=[part])
    with boards.peer() as first, boards.peer() as second:
        first.connect(who, token, supported_profiles=["compatibility"])
        told = second.connect(f"{who}/tail-1", token, supported_profiles=["compatibility"])
        assert told["client_id"] == f"{who}/tail-1"
        first.subscribe(part)
        second.commit([part], set_event("a", 1))
        assert first.expect("event_broadcast")["client_id"] == f"{who}/tail-1"  # and it is still there
        (result,) = second.submit(item([f"{part}-other"], set_event("a", 1)))
        assert result["reason"] == "forbidden"


@pytest.mark.req("AUTH-09", "AUTH-03")
@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("suffix", ["", "/", "x", "x/y", "/" + "x" * 256])
def test_other_ids_are_refused(boards: Server, who: str, derived: bool, suffix: str) -> None:
    """The token's own id followed by something that is no derived id, or without the claim that allows one."""
    for named in {f"{who}{suffix}", f"/{who}/a", "a"} - {who}:
        with boards.peer() as peer:
            peer.send_connect(named, boards.token(who, derived_client_ids=derived))
            peer.expect_error("auth_failed")
    with boards.peer() as peer:
        claims = {"derived_client_ids": "true"}
        peer.send_connect(f"{who}/a", boards.token(who, claims=claims))
        peer.expect_error("auth_failed")


@pytest.mark.req("AUTH-09", "AUTHZ-01")
def test_an_acl_speaks_of_derived_clients_as_of_the_tokens(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text('[clients.ann]\npartitions = ["own"]\n')
    acl = ("--model", "open", "--acl", str(tmp_path / "acl.toml"))
    with running(tmp_path / "data", *acl) as server, server.peer() as peer:
        token = server.token("ann", derived_client_ids=True)
        peer.connect("ann/x", token, supported_profiles=["compatibility"])
        peer.commit(["own"], set_event("a", 1))


def test_no_token_and_no_claim_is_in_the_log(boards: Server) -> None:
    """AUTH-08: claims that the model does not ask for are nobody's business."""
    assert not re.search("kept out|eyJ", boards.log.read_text())
    assert json.dumps("kept out") not in boards.get("/metrics")
