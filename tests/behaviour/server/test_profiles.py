"""Profiles over a real socket: what is offered, what is chosen, and what is then accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import SECRET, Peer, Server, item, running, set_event, tree_event
from tests.forking import run

TREE_TYPES = {"set", "unset", "init", "treePush", "treeDelete", "treeUpdate", "treeMove"}
CANONICAL = {"type": "event", "payload": {"schema": "anything", "data": {"x": 1}}}
INIT = {"type": "init", "payload": {"value": {"x": 1}}}


def asked(server: Server, who: str, **fields: Any) -> Peer:
    """A socket that has sent its connect, with exactly these profile fields."""
    peer = server.peer()
    peer.send("connect", {"token": server.token(who), "client_id": who, **fields})
    return peer


def capabilities(server: Server, who: str, **fields: Any) -> dict[str, Any]:
    with asked(server, who, **fields) as peer:
        told: dict[str, Any] = peer.expect("connected")["capabilities"]
        return told


def unsupported(server: Server, who: str, offered: list[str], **fields: Any) -> None:
    with asked(server, who, **fields) as peer:
        error = peer.expect_error("profile_unsupported")
        assert error["details"]["supported_profiles"] == offered
        peer.expect_close(4002)


BOTH = ["canonical", "compatibility"]


@pytest.mark.req("PROF-01", "PROF-02", "PROF-03")
@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, "canonical"),
        ({"supported_profiles": ["canonical"]}, "canonical"),
        ({"supported_profiles": ["compatibility"]}, "compatibility"),
        ({"supported_profiles": ["canonical", "compatibility"]}, "canonical"),
        ({"supported_profiles": ["compatibility", "canonical"]}, "compatibility"),
        ({"supported_profiles": ["telepathy", "compatibility"]}, "compatibility"),
        ({"required_profile": "canonical"}, "canonical"),
        ({"supported_profiles": BOTH, "required_profile": "compatibility"}, "compatibility"),
        ({"supported_profiles": BOTH, "required_profile": "canonical"}, "canonical"),
        ({"required_tree_policy": "strict"}, "canonical"),
        ({"supported_profiles": ["compatibility"], "required_tree_policy": "strict"}, "compatibility"),
        ({"supported_profiles": ["canonical"], "required_tree_policy": "lenient"}, "canonical"),
    ],
)
def test_the_first_profile_both_can_use_is_chosen(
    server: Server, who: str, fields: dict[str, Any], chosen: str
) -> None:
    assert capabilities(server, who, **fields)["profile"] == chosen


@pytest.mark.req("PROF-03", "PROF-04", "ERR-01", "CONN-10")
@pytest.mark.parametrize(
    "fields",
    [
        {"supported_profiles": []},
        {"supported_profiles": ["telepathy"]},
        {"supported_profiles": ["Canonical"]},
        {"required_profile": "telepathy"},
        {"required_profile": "compatibility"},
        {"supported_profiles": ["canonical"], "required_profile": "compatibility"},
        {"supported_profiles": ["compatibility"], "required_tree_policy": "lenient"},
        {"supported_profiles": ["compatibility"], "required_tree_policy": ""},
        {"required_profile": "compatibility", "required_tree_policy": "Strict"},
    ],
)
def test_without_a_common_profile_or_tree_policy_the_connection_ends(
    server: Server, who: str, fields: dict[str, Any]
) -> None:
    unsupported(server, who, BOTH, **fields)


@pytest.mark.req("PROF-04", "ERR-01")
@pytest.mark.parametrize(
    "fields", [{"supported_profiles": "canonical"}, {"supported_profiles": [1]}, {"required_profile": 1}]
)
def test_profile_fields_of_the_wrong_type_are_bad_request(
    server: Server, who: str, fields: dict[str, Any]
) -> None:
    with asked(server, who, **fields) as peer:
        peer.expect_error("bad_request")
        peer.connect(who, server.token(who))


@pytest.mark.req("PROF-05", "PROF-08")
def test_capabilities_say_exactly_what_is_accepted(server: Server, who: str) -> None:
    canonical = capabilities(server, who, supported_profiles=["canonical"])
    assert canonical == {"profile": "canonical", "accepted_event_types": ["event"], "ordered_delivery": True}
    compatibility = capabilities(server, who, supported_profiles=["compatibility"])
    assert compatibility["tree_policy"] == "strict"
    assert len(compatibility["accepted_event_types"]) == len(TREE_TYPES)
    assert set(compatibility["accepted_event_types"]) == TREE_TYPES


@pytest.mark.req("PROF-01", "PROF-07")
@pytest.mark.parametrize(
    ("profile", "event"),
    [
        ("canonical", set_event("x", 1)),
        ("canonical", tree_event("A")),
        ("canonical", INIT),
        ("canonical", {"type": "Event", "payload": CANONICAL["payload"]}),
        ("compatibility", CANONICAL),
        ("compatibility", {"type": "treepush", "payload": {}}),
        ("compatibility", {"type": "", "payload": {}}),
        ("compatibility", {"type": None, "payload": {}}),
        ("compatibility", {"type": ["set"], "payload": {}}),
        ("compatibility", {"payload": {}}),
        ("canonical", {"payload": CANONICAL["payload"]}),
    ],
)
def test_an_event_of_another_type_is_refused_by_its_type(
    server: Server, who: str, part: str, profile: str, event: dict[str, Any]
) -> None:
    good = CANONICAL if profile == "canonical" else set_event("x", 1)
    with server.client(who, profile) as peer:
        first, second = peer.submit(item([part], event), item([part], good))
        assert (first["status"], first["reason"]) == ("rejected", "validation_failed")
        assert [error["field"] for error in first["errors"]] == ["event.type"]
        assert second["status"] == "committed"
        peer.send("submit_event", item([part], event))
        assert [error["field"] for error in peer.expect("event_rejected")["errors"]] == ["event.type"]
        assert [held["event"] for held in peer.history([part])] == [good]


@pytest.mark.req("PROF-06")
def test_the_profile_stays_for_the_life_of_the_connection(server: Server, who: str, part: str) -> None:
    with server.client(who, "compatibility") as peer:
        peer.send(
            "connect",
            {"token": server.token(who), "client_id": who, "required_profile": "canonical"},
        )
        peer.expect_error("bad_request")
        (refused,) = peer.submit(item([part], CANONICAL))
        assert refused["status"] == "rejected"
        peer.commit([part], tree_event("A"))
    with server.client(who, "canonical") as peer:
        peer.commit([part], CANONICAL)


@pytest.mark.req("PROF-01", "PROF-07")
def test_both_profiles_see_one_history(server: Server, part: str) -> None:
    with server.client(f"{part}-a", "compatibility") as old, server.client(f"{part}-b", "canonical") as new:
        old.subscribe(part)
        new.commit([part], CANONICAL)
        assert old.expect("event_broadcast")["event"] == CANONICAL
        old.commit([part], tree_event("A"))
        assert [held["event"] for held in new.history([part])] == [CANONICAL, tree_event("A")]


# -- other offers --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Compatibility only, because canonical needs a model; and without init."""
    data = tmp_path_factory.mktemp("trees") / "data"
    with running(data, "--access-default", "allow", "--no-accept-init") as started:
        yield started


@pytest.mark.req("PROF-01", "PROF-02", "PROF-03", "PROF-04")
def test_a_server_without_a_model_offers_no_canonical(without_model: Server, who: str) -> None:
    trees = ["compatibility"]
    unsupported(without_model, who, trees)
    unsupported(without_model, who, trees, supported_profiles=["canonical"])
    unsupported(without_model, who, trees, supported_profiles=BOTH, required_profile="canonical")
    assert capabilities(without_model, who, supported_profiles=BOTH)["profile"] == "compatibility"


@pytest.mark.req("PROF-08", "PROF-05", "PROF-07")
def test_init_switched_off_is_not_accepted_and_not_claimed(
    without_model: Server, who: str, part: str
) -> None:
    told = capabilities(without_model, who, supported_profiles=["compatibility"])
    assert set(told["accepted_event_types"]) == TREE_TYPES - {"init"}
    with without_model.client(who) as peer:
        (refused,) = peer.submit(item([part], INIT))
        assert [error["field"] for error in refused["errors"]] == ["event.type"]
        assert peer.history([part]) == []


@pytest.mark.req("PROF-08", "TREE-03")
def test_init_is_accepted_in_compatibility_unless_switched_off(server: Server, who: str, part: str) -> None:
    with server.client(who, "compatibility") as peer:
        peer.commit([part], INIT)


@pytest.fixture(scope="module")
def for_the_draft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Both profiles, and clients that name none write trees."""
    data = tmp_path_factory.mktemp("draft") / "data"
    options = ("--model", "open", "--access-default", "allow", "--default-profile", "compatibility")
    with running(data, *options) as started:
        yield started


@pytest.mark.req("PROF-02")
def test_another_default_applies_only_to_clients_that_name_no_profile(
    for_the_draft: Server, who: str, part: str
) -> None:
    with asked(for_the_draft, who) as peer:
        assert peer.expect("connected")["capabilities"]["profile"] == "compatibility"
        peer.commit([part], tree_event("A"))
    assert capabilities(for_the_draft, who, supported_profiles=BOTH)["profile"] == "canonical"
    assert capabilities(for_the_draft, who, supported_profiles=["canonical"])["profile"] == "canonical"
    assert capabilities(for_the_draft, who, required_profile="canonical")["profile"] == "canonical"
    unsupported(for_the_draft, who, BOTH, supported_profiles=[])
    unsupported(for_the_draft, who, BOTH, required_profile="compatibility")
    unsupported(for_the_draft, who, BOTH, required_tree_policy="lenient")


@pytest.mark.req("PROF-01")
def test_an_operator_may_offer_canonical_alone(tmp_path: Path, who: str) -> None:
    with running(tmp_path / "data", "--model", "open", "--profiles", "canonical") as server:
        assert capabilities(server, who)["profile"] == "canonical"
        unsupported(server, who, ["canonical"], supported_profiles=["compatibility"])


@pytest.mark.req("PROF-01")
def test_canonical_alone_without_a_model_does_not_start(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    ended = run(
        "serve", "--data", tmp_path / "data", "--port", "0", "--admin-port", "0",
        "--jwt-secret-file", secret, "--profiles", "canonical",
    )  # fmt: skip
    assert ended.returncode != 0
    assert "canonical needs a model" in ended.stderr
