"""Who submitted an event, as rules see it: only what is stored, and the same in every replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unisono.model.authorship import UNKNOWN, Authorship, authorship_of
from unisono.model.lint import check_model
from unisono.model.load import ModelError, load_model
from unisono.model.partition import PartitionState
from unisono.samples import sample_model
from unisono.vocabulary import JsonObject

RULES = """
from unisono.model.rules import Event, Rules, refuse

rules = Rules()

@rules.check("note")
def only_ann(state, event):
    event.claims.clear()
    if event.user_id != "ann":
        yield refuse("", f"not by {event.user_id}")

@rules.reduce("note")
def note(state, event: Event) -> None:
    state.setdefault("notes", []).append(
        [event.client_id, event.user_id, event.claims.get("role"), event.committed_at]
    )
    event.claims["role"] = "changed"
"""

NOTE: JsonObject = {"type": "event", "payload": {"schema": "note", "data": 1}}
ANN = Authorship("phone", "ann", {"role": "owner"}, 77)


def write(path: Path, rules: str = RULES, manifest: str = 'claims = ["role"]') -> Path:
    (path / "schemas").mkdir(parents=True, exist_ok=True)
    (path / "schemas" / "note.json").write_text("{}")
    (path / "model.toml").write_text(f'name = "n"\nmodel_version = 1\nrules = "rules.py"\n{manifest}\n')
    (path / "rules.py").write_text(rules)
    return path


@pytest.mark.req("VAL-06")
def test_checks_and_reducers_see_who_it_was(tmp_path: Path) -> None:
    model, state = load_model(write(tmp_path)), PartitionState()
    assert model.claims == ("role",)
    assert [error.message for error in model.refusals("canonical", state, NOTE)] == ["not by None"]
    ben = Authorship("phone", "ben")
    assert [error.message for error in model.refusals("canonical", state, NOTE, ben)] == ["not by ben"]
    assert model.refusals("canonical", state, NOTE, ANN) == []
    model.apply("canonical", state, NOTE, ANN)
    model.apply("canonical", state, NOTE, ANN)  # a rule changes its own copy of the claims alone
    replayed = PartitionState()
    for _ in range(2):
        assert model.apply_committed(replayed, NOTE, ANN)
    assert replayed.dump() == state.dump()
    assert state.data.dump() == {"notes": [["phone", "ann", "owner", 77]] * 2}
    assert ANN.claims == {"role": "owner"}


@pytest.mark.req("VAL-06")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x = event.claims['name']", "the claim 'name' is not stored with events"),
        ("x = event.claims.get('name', 1)", "the claim 'name' is not stored with events"),
        ("x = event.claims['role']", None),
        ("x = event.partitions", "event.partitions: an event has schema, data, meta, client_id"),
        ("x = event.token", "event.token"),
        ("x = (event.data, event.meta, event.schema, event.client_id, event.committed_at)", None),
        ("x = event.data.anything", None),
    ],
)
def test_a_rule_that_uses_what_is_not_stored_is_refused(tmp_path: Path, line: str, says: str | None) -> None:
    helper = f"from unisono.model.rules import Rules\n\nrules = Rules()\n\ndef help(event):\n    {line}\n"
    rule = RULES.replace("def only_ann(state, event):", f"def only_ann(state, event):\n    {line}")
    named = (
        RULES + f"\n@rules.check('note')\ndef third(state, what):\n    {line.replace('event.', 'what.')}\n"
    )
    for rules in (rule, helper, named):
        path = write(tmp_path, rules)
        if says is None:
            load_model(path)
            continue
        with pytest.raises(ModelError) as refused:
            load_model(path)
        (problem,) = refused.value.problems
        assert says.replace("event.", "what.") in str(problem) or says in str(problem)
        assert "line " in str(problem)
        assert not check_model(path).ok


@pytest.mark.req("VAL-06")
@pytest.mark.parametrize("claims", ['"role"', "[1]", '[""]', '["a", "a"]', str([f"c{n}" for n in range(17)])])
def test_claims_are_a_short_list_of_names(tmp_path: Path, claims: str) -> None:
    with pytest.raises(ModelError, match="claims"):
        load_model(write(tmp_path, manifest=f"claims = {claims}"))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("", (None, {})),
        (None, (None, {})),
        ('{"user_id":"ann"}', ("ann", {})),
        ('{"claims":{"a":[1]},"user_id":"ann"}', ("ann", {"a": [1]})),
        ("[1]", (None, {})),
        ("not json", (None, {})),
        ('{"user_id":7}', (None, {})),
    ],
)
def test_an_author_is_read_as_it_is_stored(stored: str | None, expected: tuple[Any, ...]) -> None:
    by = authorship_of("c", stored, 5)
    assert (by.user_id, by.claims) == expected
    assert (by.client_id, by.committed_at) == ("c", 5)
    assert UNKNOWN.claims == {}


def test_model_check_takes_authors_from_its_events(tmp_path: Path) -> None:
    path = write(tmp_path)
    line = b'{"event":{"type":"event","payload":{"schema":"note","data":1}},"partitions":["p"]%b}'
    report = check_model(path, [line % b"", line % b',"user_id":"ann","claims":{"role":"x"},"client_id":"c"'])
    assert report.refused == 1
    assert report.stories[0].states["p"]["data"] == {"notes": [["c", "ann", "x", 0]]}
    assert not check_model(path, [line % b',"user_id":5']).ok


def test_the_board_is_sound() -> None:
    examples = sample_model("roles") / "examples" / "board.jsonl"
    report = check_model(sample_model("roles"), examples.read_bytes().splitlines())
    assert report.ok, report.text()
    assert report.warnings == []
    assert report.stories[0].states["board/1"]["data"]["members"] == {"ann": "owner", "ben": "editor"}
