from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.front.access import Access, Acl, AclError, Grant
from unisono.front.auth.verify import Identity

MARKS = "\u0315\u0300" * 50_000


def identity(
    partitions: list[str] | None = None, prefixes: list[str] | None = None, client_id: str = "alice"
) -> Identity:
    has_scope = partitions is not None or prefixes is not None
    return Identity(client_id, 0.0, frozenset(partitions or []), tuple(prefixes or []), has_scope)


def acl_file(tmp_path: Path, text: str, name: str = "acl.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.req("AUTHZ-01")
def test_claims_allow_by_name_and_by_prefix() -> None:
    access = Access()
    alice = identity(["p"], ["team/", "x"])
    assert access.denied(alice, ["p", "team/1", "team/", "x"]) == []
    assert access.denied(alice, ["q", "p", "team", "P", "pp", "xylo"]) == ["q", "team", "P", "pp"]


@pytest.mark.req("AUTHZ-01")
def test_an_acl_allows_a_client_and_everyone() -> None:
    access = Access(Acl({"alice": Grant.of(["p"], ["team/"])}, Grant.of(["lobby"])))
    asked = ["p", "team/1", "lobby", "other"]
    assert access.denied(identity(), asked) == ["other"]
    assert access.denied(identity(client_id="bob"), asked) == ["p", "team/1", "other"]


@pytest.mark.req("AUTHZ-01")
def test_either_source_is_enough() -> None:
    access = Access(Acl({"alice": Grant.of(["from acl"])}))
    assert access.denied(identity(["from claim"]), ["from acl", "from claim", "neither"]) == ["neither"]


@pytest.mark.req("AUTHZ-01")
def test_an_acl_is_compared_in_nfc(tmp_path: Path) -> None:
    text = '[clients."alice"]\npartitions = ["cafe\u0301"]\nprefixes = ["A\u030a/"]\n'
    access = Access(Acl.load(acl_file(tmp_path, text)))
    assert access.denied(identity(), ["caf\u00e9", "\u00c5/1"]) == []
    assert access.denied(identity(), ["cafe", "A/1"]) == ["cafe", "A/1"]


@pytest.mark.req("AUTHZ-02")
def test_without_claim_and_acl_the_default_answers_and_is_deny() -> None:
    assert Access().denied(identity(), ["p", "q"]) == ["p", "q"]
    assert Access(None, "deny").denied(identity(), ["p"]) == ["p"]
    assert Access(None, "allow").denied(identity(), ["p", "q"]) == []


@pytest.mark.req("AUTHZ-02")
def test_an_acl_that_does_not_speak_of_the_client_leaves_it_to_the_default() -> None:
    acl = Acl({"bob": Grant.of(["p"])})
    assert Access(acl, "deny").denied(identity(), ["p"]) == ["p"]
    assert Access(acl, "allow").denied(identity(), ["p"]) == []
    assert Access(acl, "allow").denied(identity(client_id="bob"), ["p", "q"]) == ["q"]
    assert Access(Acl({}, Grant.of()), "allow").denied(identity(), ["p"]) == ["p"]


@pytest.mark.req("AUTHZ-02")
def test_a_claim_that_grants_nothing_is_not_silence() -> None:
    access = Access(None, "allow")
    assert access.denied(identity(partitions=[]), ["p"]) == ["p"]
    assert access.denied(identity(prefixes=[]), ["p"]) == ["p"]


names = st.text("ab/", max_size=4)
grants = st.builds(Grant.of, st.lists(names, max_size=3), st.lists(names.filter(bool), max_size=2))
scopes = st.none() | st.lists(names, max_size=3)


@pytest.mark.req("AUTHZ-01", "AUTHZ-02")
@given(
    scope=scopes,
    prefixes=scopes,
    own=st.none() | grants,
    everyone=st.none() | grants,
    allow=st.booleans(),
    asked=st.lists(names, max_size=6),
)
def test_denied_is_what_no_source_allows(
    scope: list[str] | None,
    prefixes: list[str] | None,
    own: Grant | None,
    everyone: Grant | None,
    allow: bool,
    asked: list[str],
) -> None:
    access = Access(Acl({} if own is None else {"alice": own}, everyone), "allow" if allow else "deny")
    sources = [
        (set(grant.partitions), list(grant.prefixes)) for grant in (own, everyone) if grant is not None
    ]
    if scope is not None or prefixes is not None:
        sources.append((set(scope or []), prefixes or []))

    def allowed(name: str) -> bool:
        if not sources:
            return allow
        return any(name in exact or any(name[: len(p)] == p for p in starts) for exact, starts in sources)

    assert access.denied(identity(scope, prefixes), asked) == [name for name in asked if not allowed(name)]


@pytest.mark.req("AUTHZ-01")
@given(st.lists(st.text(max_size=6), max_size=4))
def test_a_grant_is_always_normalised(drawn: list[str]) -> None:
    grant = Grant.of(drawn, drawn)
    expected = {unicodedata.normalize("NFC", name) for name in drawn}
    assert grant.partitions == expected
    assert set(grant.prefixes) == expected


@pytest.mark.req("AUTHZ-01")
def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml = acl_file(
        tmp_path,
        '[clients."alice@example.org"]\npartitions = ["p"]\nprefixes = ["team/"]\n'
        '[clients.root]\nprefixes = [""]\n[everyone]\npartitions = ["lobby"]\n',
    )
    document = {
        "clients": {
            "alice@example.org": {"partitions": ["p"], "prefixes": ["team/"]},
            "root": {"prefixes": [""]},
        },
        "everyone": {"partitions": ["lobby"]},
    }
    as_json = acl_file(tmp_path, json.dumps(document), "acl.JSON")
    for path in (toml, as_json):
        access = Access(Acl.load(path))
        asked = ["p", "team/1", "lobby", "secret"]
        assert access.denied(identity(client_id="alice@example.org"), asked) == ["secret"]
        assert access.denied(identity(client_id="root"), asked) == []
        assert access.denied(identity(client_id="stranger"), asked) == ["p", "team/1", "secret"]


@pytest.mark.req("AUTHZ-02")
def test_an_empty_acl_speaks_of_nobody(tmp_path: Path) -> None:
    assert Acl.load(acl_file(tmp_path, "")).grant("alice") is None
    assert Acl.load(acl_file(tmp_path, "{}", "acl.json")).grant("alice") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("client = {}", "unknown key 'client'; known are clients, everyone"),
        ("clients = []", "clients: must be a table"),
        ("clients.alice = 7", 'clients."alice": must be a table'),
        ("clients.alice.partition = []", "clients.\"alice\": unknown key 'partition'"),
        ('clients.alice.partitions = "p"', 'clients."alice".partitions: must be an array of strings'),
        ('clients.alice.prefixes = ["p", 7]', 'clients."alice".prefixes[1]: must be a string'),
        ('clients.alice.partitions = [""]', 'clients."alice".partitions: a partition is never empty'),
        ('[clients.""]', "clients: a client_id is never empty"),
        ("everyone.prefixes = [1979-05-27]", "everyone.prefixes[0]: must be a string"),
        (f'everyone.partitions = ["p", "{"x" * 129}"]', "everyone.partitions[1]: no partition is called so"),
        (f'everyone.prefixes = ["{MARKS}"]', "everyone.prefixes[0]: no partition is called so"),
        ("everyone = true", "everyone: must be a table"),
        ("[everyone]\n[everyone]", "cannot be parsed"),
        ("[everyone", "cannot be parsed"),
    ],
)
def test_a_wrong_acl_names_file_and_key(text: str, complaint: str, tmp_path: Path) -> None:
    path = acl_file(tmp_path, text)
    with pytest.raises(AclError) as caught:
        Acl.load(path)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "must be a table"),
        ("null", "must be a table"),
        ('{"everyone": {"partitions": ["\\ud800"]}}', "no partition is called so"),
        ("{", "cannot be parsed"),
        ("[" * 100_000, "cannot be parsed"),
        ('{"everyone": {"prefixes": ["a"], "prefixes": ["b"]}}', "the key 'prefixes' comes twice"),
    ],
)
def test_wrong_json_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(AclError, match=complaint):
        Acl.load(acl_file(tmp_path, text, "acl.json"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AclError, match="No such file"):
        Acl.load(tmp_path / "missing.toml")
    with pytest.raises(AclError, match=r"ends in \.toml or \.json"):
        Acl.load(acl_file(tmp_path, "", "acl.yaml"))
    binary = tmp_path / "acl.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(AclError, match="not UTF-8"):
        Acl.load(binary)


@pytest.mark.req("AUTHZ-08")
@given(
    both=scopes,
    reading=scopes,
    own=st.none() | grants,
    everyone=st.none() | grants,
    asked=st.lists(names, max_size=6),
)
def test_reading_is_allowed_where_writing_is_and_where_only_reading_is(
    both: list[str] | None,
    reading: list[str] | None,
    own: Grant | None,
    everyone: Grant | None,
    asked: list[str],
) -> None:
    """`own` and `everyone` grant reading only."""

    def read_only(grant: Grant) -> Grant:
        return Grant.of(readable_partitions=grant.partitions, readable_prefixes=grant.prefixes)

    acl = Acl(
        {} if own is None else {"alice": read_only(own)}, None if everyone is None else read_only(everyone)
    )
    has_scope = both is not None or reading is not None
    alice = Identity("alice", 0.0, frozenset(both or []), (), has_scope, frozenset(), tuple(reading or []))
    readable = [grant for grant in (own, everyone) if grant is not None]

    def may_read(name: str) -> bool:
        return (
            name in (both or [])
            or any(name.startswith(start) for start in reading or [])
            or any(name in grant.partitions or name.startswith(grant.prefixes) for grant in readable)
        )

    access = Access(acl)
    assert access.denied_reading(alice, asked) == [name for name in asked if not may_read(name)]
    assert access.denied(alice, asked) == [name for name in asked if name not in (both or [])]


@pytest.mark.req("AUTHZ-08")
def test_the_keys_for_reading_are_checked_like_the_others(tmp_path: Path) -> None:
    for key, value in (("readable_partitions", '[""]'), ("readable_partition_prefixes", '"team/"')):
        with pytest.raises(AclError, match=key):
            Acl.load(acl_file(tmp_path, f"[everyone]\n{key} = {value}\n"))
