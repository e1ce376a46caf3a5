"""Who may touch which partition, as a client meets it: on submit, on sync, and before anything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, new_id, running, set_event

EVENT = set_event("title", "Hello")
INVALID = {"type": "treePush", "payload": {"target": "", "value": 7}}

ACL = """
[everyone]
partitions = ["lobby"]

[clients.named]
partitions = ["from-acl", "cafe\u0301"]
prefixes = ["team/"]
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Nothing said about access: no ACL, the default of the default."""
    with running(tmp_path_factory.mktemp("strict") / "data", "--model", "open") as started:
        yield started


@pytest.fixture(scope="module")
def with_acl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("acl")
    (directory / "acl.toml").write_text(ACL, encoding="utf-8")
    with running(directory / "data", "--model", "open", "--acl", str(directory / "acl.toml")) as started:
        yield started


def enter(server: Server, client_id: str, **claims: Any) -> Peer:
    """A connected client whose token carries these claims."""
    peer = server.peer()
    peer.connect(client_id, server.token(client_id, **claims), supported_profiles=["compatibility"])
    return peer


def may(peer: Peer, partition: str) -> bool:
    """Whether submit and sync allow a partition; they must agree."""
    (result,) = peer.submit(item([partition], set_event("seen", new_id())))
    peer.send("sync", {"partitions": [partition], "since_committed_id": 0})
    answer = peer.receive()
    if answer["type"] == "error":
        assert answer["payload"]["code"] == "forbidden"
        assert result["status"] == "rejected"
        assert result["reason"] == "forbidden"
        return False
    assert answer["type"] == "sync_response"
    assert result["status"] == "committed"
    return True


# -- where a right comes from --------------------------------------------------------------------------------


@pytest.mark.req("AUTHZ-01")
def test_claims_allow_by_name_and_by_prefix(strict: Server, who: str) -> None:
    claims = {"partitions": ["alpha", "caf\u00e9"], "prefixes": ["team/", "A\u030a"]}
    with enter(strict, who, **claims) as peer:
        allowed = ["alpha", "cafe\u0301", "caf\u00e9", "team/", "team/1", "team/1/2", "\u00c5x", "A\u030ax"]
        denied = ["Alpha", "alph", "alphas", " alpha", "cafe", "team", "Team/1", "steam/1", "Ax"]
        assert [name for name in allowed + denied if may(peer, name)] == allowed


@pytest.mark.req("AUTHZ-01")
def test_an_acl_allows_a_client_and_everyone(with_acl: Server, who: str) -> None:
    asked = ["from-acl", "caf\u00e9", "team/9", "lobby", "elsewhere", "from-acl2"]
    with enter(with_acl, "named") as peer:
        assert [name for name in asked if may(peer, name)] == asked[:4]
    with enter(with_acl, who) as peer:
        assert [name for name in asked if may(peer, name)] == ["lobby"]


@pytest.mark.req("AUTHZ-01")
def test_either_source_is_enough_also_within_one_event(with_acl: Server) -> None:
    with enter(with_acl, "named", partitions=["from-claim"]) as peer:
        for name in ("from-acl", "from-claim", "lobby", "team/x"):
            assert may(peer, name)
        assert not may(peer, "neither")
        peer.commit(["from-claim", "from-acl", "team/x"], EVENT)
        page = peer.sync(["from-claim", "from-acl"], subscription_partitions=["lobby", "from-claim"])
        assert page["effective_subscriptions"] == ["from-claim", "lobby"]


@pytest.mark.req("AUTHZ-02")
def test_without_claim_and_acl_nothing_is_allowed_by_default(strict: Server, who: str, part: str) -> None:
    with enter(strict, who) as peer:
        assert not may(peer, part)


@pytest.mark.req("AUTHZ-02")
def test_the_configured_default_is_only_for_those_nobody_speaks_of(
    server: Server, who: str, part: str
) -> None:
    """On a server that allows by default, a token with a claim is held to it, an empty one too."""
    with enter(server, who) as peer:
        assert may(peer, part)
    with enter(server, who, partitions=[]) as peer:
        assert not may(peer, part)
    with enter(server, who, prefixes=[f"{part}-"]) as peer:
        assert not may(peer, part)
        assert may(peer, f"{part}-1")


# -- submit --------------------------------------------------------------------------------------------------


@pytest.mark.req("AUTHZ-03", "SUBMIT-03")
def test_every_partition_of_an_event_must_be_allowed(strict: Server, part: str) -> None:
    mine, other, third = f"{part}-mine", f"{part}-other", f"{part}-third"
    with (
        enter(strict, f"{part}-1", partitions=[mine]) as peer,
        enter(strict, f"{part}-2", partitions=[mine, other, third]) as watcher,
    ):
        watcher.subscribe(mine, other, third)
        before, mixed, all_of, after = peer.submit(
            item([mine], EVENT), item([mine, third, other], EVENT), item([other], EVENT), item([mine], EVENT)
        )
        assert (before["status"], after["status"]) == ("committed", "committed")
        assert after["committed_id"] == before["committed_id"] + 1
        for result, denied in ((mixed, [other, third]), (all_of, [other])):
            assert result["status"] == "rejected"
            assert result["reason"] == "forbidden"
            assert {error["field"] for error in result["errors"]} == {"partitions"}
            told = " ".join(error["message"] for error in result["errors"])
            assert [name for name in (mine, other, third) if name in told] == denied
            assert len(result["errors"]) == len(denied)
        heard = [watcher.expect("event_broadcast")["id"] for _ in range(2)]
        assert heard == [before["id"], after["id"]]
        watcher.expect_quiet()
        assert [event["id"] for event in watcher.history([mine, other, third])] == heard


@pytest.mark.req("AUTHZ-03", "SUBMIT-06")
def test_a_single_event_is_rejected_as_forbidden_and_the_connection_stays(
    strict: Server, who: str, part: str
) -> None:
    with enter(strict, who, partitions=[part]) as peer:
        denied = item([part, f"{part}-other"], EVENT)
        peer.send("submit_event", denied)
        told = peer.expect("event_rejected")
        assert told["reason"] == "forbidden"
        assert told["partitions"] == [part, f"{part}-other"]
        assert [f"{part}-other" in error["message"] for error in told["errors"]] == [True]
        assert peer.commit([part], EVENT, denied["id"])


# -- sync ----------------------------------------------------------------------------------------------------


@pytest.mark.req("AUTHZ-04")
@pytest.mark.parametrize("field", ["partitions", "subscription_partitions", "both"])
def test_one_unauthorised_name_refuses_the_whole_sync(strict: Server, part: str, field: str) -> None:
    mine, second, other = f"{part}-1", f"{part}-2", f"{part}-3"
    with (
        enter(strict, f"{part}-a", partitions=[mine, second]) as peer,
        enter(strict, f"{part}-b", partitions=[mine, second, other]) as writer,
    ):
        writer.commit([mine, other], EVENT)
        peer.subscribe(mine)
        request = {"since_committed_id": 0, "partitions": [second], "subscription_partitions": [second]}
        for name in ("partitions", "subscription_partitions") if field == "both" else (field,):
            request[name] = [second, other]
        peer.send("sync", request)
        error = peer.expect_error("forbidden")
        assert error["details"]["partitions"] == [other]
        assert "events" not in error
        # Subscriptions are as they were: the first set still delivers and the asked-for one does not.
        writer.commit([second], EVENT)
        committed_id = writer.commit([mine], EVENT)
        assert peer.expect("event_broadcast")["committed_id"] == committed_id
        assert peer.sync([mine])["effective_subscriptions"] == [mine]


@pytest.mark.req("AUTHZ-04")
def test_a_refused_sync_does_not_clear_subscriptions(strict: Server, who: str, part: str) -> None:
    with enter(strict, who, partitions=[part]) as peer:
        peer.subscribe(part)
        peer.send(
            "sync",
            {"since_committed_id": 0, "partitions": [part, f"{part}-x"], "subscription_partitions": []},
        )
        peer.expect_error("forbidden")
        assert peer.sync([part])["effective_subscriptions"] == [part]


# -- subscriptions are no rights -----------------------------------------------------------------------------


@pytest.mark.req("AUTHZ-05")
def test_submitting_outside_the_subscription_works(strict: Server, who: str, part: str) -> None:
    with enter(strict, who, prefixes=[part]) as peer:
        peer.commit([part], EVENT)  # none at all yet
        peer.subscribe(f"{part}-subscribed")
        peer.commit([part], EVENT)
        peer.commit([part, f"{part}-subscribed"], EVENT)
        assert len(peer.history([part])) == 3


@pytest.mark.req("AUTHZ-05", "CONN-08")
def test_a_subscription_gives_no_right_to_submit(strict: Server, who: str, part: str) -> None:
    """A right that a token gave, and the subscription set under it, are gone with a narrower token."""
    with enter(strict, who, prefixes=[part]) as peer:
        peer.subscribe(part)
    with enter(strict, who, partitions=[f"{part}-2"]) as peer:
        assert peer.sync([f"{part}-2"])["effective_subscriptions"] == []
        (result,) = peer.submit(item([part], EVENT))
        assert result["reason"] == "forbidden"


@pytest.mark.req("AUTHZ-05", "AUTHZ-07")
def test_hearing_of_an_event_gives_no_right_to_its_other_partitions(strict: Server, part: str) -> None:
    shared, private = f"{part}-shared", f"{part}-private"
    with (
        enter(strict, f"{part}-a", partitions=[shared]) as listener,
        enter(strict, f"{part}-b", partitions=[shared, private]) as writer,
    ):
        listener.subscribe(shared)
        writer.commit([private], set_event("secret", 1))
        committed_id = writer.commit([shared, private], set_event("open", 2))
        told = listener.expect("event_broadcast")
        assert told["committed_id"] == committed_id
        assert told["partitions"] == [private, shared]  # whole, as 000 says
        assert told["event"] == set_event("open", 2)
        assert listener.history([shared]) == [told]
        (result,) = listener.submit(item([shared, private], EVENT))
        assert result["reason"] == "forbidden"
        listener.send("sync", {"partitions": [private], "since_committed_id": 0})
        listener.expect_error("forbidden")


# -- before anything else ------------------------------------------------------------------------------------


@pytest.mark.req("AUTHZ-06")
def test_a_refusal_tells_nothing_about_what_exists(strict: Server, part: str) -> None:
    mine, hidden = f"{part}-mine", f"{part}-hidden"
    taken = new_id()
    with (
        enter(strict, f"{part}-a", partitions=[mine]) as stranger,
        enter(strict, f"{part}-b", partitions=[hidden]) as owner,
    ):
        owner.commit([hidden], EVENT, taken)
        events = {
            "a new event": item([hidden], EVENT),
            "an existing id": item([hidden], EVENT, taken),
            "an existing id with another payload": item([hidden], set_event("title", "other"), taken),
            "an existing id with more partitions": item([hidden, mine], EVENT, taken),
            "an invalid event": item([hidden], INVALID),
            "an event of the other profile": item([hidden], {"type": "event", "payload": {}}),
            "an event beyond IEEE": item([hidden], set_event("n", 2**53 + 1)),
        }
        answers = {}
        for name, event in events.items():
            (result,) = stranger.submit(event)
            assert result.pop("id") == event["id"]
            del result["status_updated_at"]
            answers[name] = result
            stranger.send("submit_event", event)
            single = stranger.expect("event_rejected")
            assert (single["reason"], single["errors"]) == (result["reason"], result["errors"]), name
        expected = answers["a new event"]
        assert expected["reason"] == "forbidden"
        assert [name for name, answer in answers.items() if answer != expected] == []
        assert len(owner.history([hidden])) == 1


@pytest.mark.req("AUTHZ-06")
def test_an_id_taken_elsewhere_is_told_only_to_those_who_may_write(strict: Server, part: str) -> None:
    """In a partition of one's own an id that exists elsewhere is a conflict, whoever asks (ORD-04)."""
    taken = new_id()
    with (
        enter(strict, f"{part}-a", partitions=[f"{part}-1"]) as first,
        enter(strict, f"{part}-b", partitions=[f"{part}-2"]) as second,
    ):
        first.commit([f"{part}-1"], EVENT, taken)
        (result,) = second.submit(item([f"{part}-2"], EVENT, taken))
        assert result["reason"] == "validation_failed"
        (result,) = second.submit(item([f"{part}-1"], EVENT, taken))
        assert result["reason"] == "forbidden"


# -- reading and writing apart -------------------------------------------------------------------------------

READERS = """
[everyone]
readable_partitions = ["news"]

[clients.reader]
partitions = ["own"]
readable_partition_prefixes = ["team/"]
"""


def rights(peer: Peer, partition: str) -> str:
    """What a client may do with a partition: `rw`, `r` or nothing."""
    (result,) = peer.submit(item([partition], set_event("seen", new_id())))
    assert result["status"] == "committed" or result["reason"] == "forbidden"
    peer.send("sync", {"partitions": [partition], "since_committed_id": 0})
    answer = peer.receive()
    reads = answer["type"] == "sync_response"
    assert reads or answer["payload"]["code"] == "forbidden"
    return ("r" if reads else "") + ("w" if result["status"] == "committed" else "")


@pytest.mark.req("AUTHZ-08")
def test_claims_can_allow_reading_only(strict: Server, part: str) -> None:
    claims = {
        "partitions": [f"{part}/own"],
        "readable_partitions": [f"{part}/caf\u00e9", f"{part}/own"],
        "readable_prefixes": [f"{part}/team/"],
    }
    with enter(strict, f"{part}-a", **claims) as peer:
        asked = {"own": "rw", "cafe\u0301": "r", "team/1": "r", "team": "", "other": ""}
        assert {name: rights(peer, f"{part}/{name}") for name in asked} == asked
    with enter(strict, f"{part}-b", readable_prefixes=[""]) as peer:
        assert rights(peer, f"{part}/own") == "r"


@pytest.mark.req("AUTHZ-08", "AUTHZ-03")
def test_a_reader_hears_what_it_may_not_write(strict: Server, part: str) -> None:
    with (
        enter(strict, f"{part}-r", readable_partitions=[part], partitions=[f"{part}-own"]) as reader,
        enter(strict, f"{part}-w", partitions=[part]) as writer,
    ):
        reader.subscribe(part)
        committed_id = writer.commit([part], EVENT)
        assert reader.expect("event_broadcast")["committed_id"] == committed_id
        denied, both, own = reader.submit(
            item([part], EVENT), item([part, f"{part}-own"], EVENT), item([f"{part}-own"], EVENT)
        )
        assert [r.get("reason") for r in (denied, both, own)] == ["forbidden", "forbidden", None]
        assert [error["message"] for error in both["errors"]] == [f"not authorised for {part!r}"]
        assert len(writer.history([part])) == 1


@pytest.mark.req("AUTHZ-08", "AUTHZ-02")
def test_a_claim_about_reading_is_a_claim(server: Server, who: str, part: str) -> None:
    """On a server that allows by default, a token that speaks of reading alone is held to it."""
    with enter(server, who, readable_partitions=[part]) as peer:
        assert (rights(peer, part), rights(peer, f"{part}-other")) == ("r", "")


@pytest.mark.req("AUTHZ-08")
def test_an_acl_can_allow_reading_only(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text(READERS, encoding="utf-8")
    with running(tmp_path / "data", "--model", "open", "--acl", str(tmp_path / "acl.toml")) as server:
        asked = {"own": "rw", "team/1": "r", "news": "r", "other": ""}
        with enter(server, "reader") as peer:
            assert {name: rights(peer, name) for name in asked} == asked
        with enter(server, "stranger", partitions=["news"]) as peer:  # either source is enough
            assert [rights(peer, name) for name in ("news", "own", "team/1")] == ["rw", "", ""]
