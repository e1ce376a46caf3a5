"""`unisono model check` as the author of a model runs it: several processes, and none of them for ever."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.behaviour.server.harness import running
from tests.behaviour.server.planting import plant, record
from tests.forking import run
from tests.waiting import PATIENCE_S
from unisono.node import model_review as reviewing

RULES = """
import datetime
import random
import time

from unisono.model.rules import Rules, refuse

rules = Rules()
REMEMBERED = []

@rules.check("note")
def checked(state, event):
    {check}

@rules.reduce("note")
def kept(state, event):
    {reduce}
"""


def write_model(path: Path, reduce: str = "pass", check: str = "return []", version: int = 1) -> Path:
    (path / "schemas").mkdir(parents=True, exist_ok=True)
    (path / "schemas" / "note.json").write_text("{}")
    (path / "model.toml").write_text(f'name = "n"\nmodel_version = {version}\nrules = "rules.py"\n')
    (path / "rules.py").write_text(RULES.format(reduce=reduce, check=check))
    return path


def note(data: Any = None) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": "note", "data": data}}


def write_events(path: Path, *events: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def check(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return run("model", "check", *arguments, stdin=stdin or "")


@pytest.mark.req("VAL-05")
@pytest.mark.parametrize(
    ("reduce", "told"),
    [
        ("state[str(len(state))] = random.random() if len(state) > 1 else 1", "at default.data.2: 0."),
        ("state['at'] = int(time.time()) // 86400", "at default.data.at: "),
        ("state['day'] = datetime.date.today().isoformat()", "at default.data.day: "),
        ("state['year'] = datetime.datetime.now(datetime.UTC).year", "at default.data.year: "),
        ("state['hour'] = time.localtime(0).tm_hour", "at default.data.hour: "),
        (
            "[state.setdefault(each, 1) for each in {'a', 'b', 'c', 'd', 'e', 'f'}]",
            "at default.data.(keys): ",
        ),
        ("state['hash'] = hash('text')", "at default.data.hash: "),
        ("state['cwd'] = __import__('os').getcwd()", "at default.data.cwd: "),
    ],
)
def test_a_reducer_that_does_not_always_do_the_same_is_found(tmp_path: Path, reduce: str, told: str) -> None:
    model = write_model(tmp_path / "model", reduce)
    write_events(model / "examples" / "some.jsonl", *[note()] * 5)
    done = check(model)
    assert done.returncode == 1
    line = 3 if "random" in reduce else 1
    expected = (
        f"examples/some.jsonl: line {line}: is not deterministic: kept (note) came to different states in "
    )
    assert f"{expected}two runs, {told}" in done.stdout, done.stdout


@pytest.mark.req("VAL-05")
def test_a_check_that_does_not_always_say_the_same_is_found(tmp_path: Path) -> None:
    """Here by what is refused: no state ever changes."""
    model = write_model(tmp_path / "model", check="return [refuse('', str(time.time()))]")
    done = check(model, "--events", write_events(tmp_path / "e.jsonl", note()))
    assert done.returncode == 1
    assert "line 1: is not deterministic: checked or kept (note) came to different judgements" in done.stdout


@pytest.mark.req("VAL-05")
def test_the_first_of_many_lines_that_differs_is_found(tmp_path: Path) -> None:
    reduce = (
        "state['n'] = state.get('n', 0) + 1; state.update(r=random.random()) if state['n'] == 2345 else None"
    )
    model = write_model(tmp_path / "model", reduce)
    done = check(model, "--events", write_events(tmp_path / "e.jsonl", *[note()] * 3_000))
    assert "e.jsonl: line 2345: is not deterministic" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("reduce", "check_body", "named"),
    [
        ("while True: pass", "return []", "the rule note/kept"),
        ("pass", "while True: time.sleep(0.01)", "the rule note/checked"),
    ],
)
def test_a_rule_that_never_returns_is_named(tmp_path: Path, reduce: str, check_body: str, named: str) -> None:
    model = write_model(tmp_path / "model", reduce, check_body)
    events = write_events(tmp_path / "e.jsonl", note())
    done = check(model, "--events", events, "--rule-timeout-s", "0.5")
    assert done.returncode == 1
    assert f"Error: {named} did not return within 0.5 s on line 1 of {events}" in done.stderr


def test_a_module_that_never_returns_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: the time that loading may take is long."""
    monkeypatch.setattr(reviewing, "LOAD_TIMEOUT_S", 0.2)
    said: SimpleQueue[str] = SimpleQueue()
    watch = reviewing.ReviewWatch(said.put, 0.1)
    watch.start_loading()
    assert said.get(timeout=PATIENCE_S) == "the model could not be loaded within 0.2 s"
    watch.idle()


def test_a_rule_may_print_and_events_may_come_by_a_pipe(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "print('hello'); state['n'] = event.data")
    done = check(model, "--events", "-", "--show-state", "default", stdin=json.dumps(note(7)))
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stderr
    assert done.stdout.endswith('\nstdin: default\n{\n  "data": {\n    "n": 7\n  }\n}\n')


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    for arguments, says in (
        (("--events", tmp_path / "none.jsonl"), "none.jsonl is no file of events"),
        (("--show-state",), "there are no events"),
        (("--data", tmp_path, "--store", "postgresql://x"), "give one of"),
        (("--data", tmp_path / "nowhere"), "nowhere"),
        (("--archive", "x"), "--archive belongs to a log"),
    ):
        done = check(model, *arguments)
        assert done.returncode != 0
        assert says in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.req("VAL-05", "MODEL-02")
def test_a_model_is_tried_on_a_log_beside_its_server(tmp_path: Path) -> None:
    plant(
        tmp_path / "data",
        [record(n, ["p"] if n % 3 else ["p", "q"], note({"n": n})) for n in range(1, 1_001)],
    )
    old = write_model(tmp_path / "old", "state[str(event.data['n'] % 10)] = event.data['n']")
    new = write_model(tmp_path / "new", "state[str(10 // (event.data['n'] % 100))] = 1", version=2)
    chance = write_model(
        tmp_path / "chance", "state['x'] = random.random() if event.data['n'] > 700 else 1", version=2
    )
    with running(tmp_path / "data", "--model", str(old), "--access-default", "allow"):
        done = check(new, "--data", tmp_path / "data", "--show-state", "q", "--quiet")
        assert done.returncode == 0, done.stderr
        assert "history up to 1000: 1,000 events in 2 partitions\n  10 no longer apply" in done.stdout
        assert "event 100 in 'p': the reducer 'kept' of 'note' failed: ZeroDivisionError" in done.stdout
        assert '\nq\n{\n  "data": {\n    "3": 1,' in done.stdout
        done = check(chance, "--data", tmp_path / "data", "--quiet")
        assert done.returncode == 1
        assert (
            "log: event 701 in 'p': is not deterministic: the state came to different states" in done.stdout
        )
        assert "at p.data.x: " in done.stdout
