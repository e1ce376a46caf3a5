"""What the node sees of the authority's rules, and what it remembers of them."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from unisono.authority.stuck_rules import (
    GRACE_S,
    STUCK_FILE,
    STUCK_MAX,
    CallWatch,
    RunningCall,
    StuckFile,
    is_standing,
)

HASH = bytes(range(32))
TIMEOUT_S = 1.0
LATE_S = TIMEOUT_S + GRACE_S + 1


def watched(tmp_path: Path) -> tuple[RunningCall, StuckFile, CallWatch]:
    running, file = RunningCall(), StuckFile(tmp_path)
    return running, file, CallWatch(running, file, TIMEOUT_S)


def test_another_process_sees_which_rule_runs(tmp_path: Path) -> None:
    running, _, _ = watched(tmp_path)
    pid = os.fork()
    if pid == 0:
        running.judge("evt \u00e9", HASH, "digest")
        running.begin("task.done/exists", True)
        os._exit(0)
    os.waitpid(pid, 0)
    call = running.read()
    assert call is not None
    assert (call.rule, call.event_id, call.hash, call.digest, call.judging) == (
        "task.done/exists",
        "evt \u00e9",
        HASH.hex(),
        "digest",
        True,
    )
    running.end()
    assert running.read() is None


def test_one_event_after_another_is_told_apart() -> None:
    running = RunningCall()
    for number, (event_id, digest) in enumerate(
        [("a" * 300, "m1"), ("b", "m1"), ("c", "longer"), ("d", "m")]
    ):
        hash = bytes([number]) * 32
        running.judge(event_id, hash, digest)
        running.begin(f"s/{'r' * (4 - number)}", True)
        call = running.read()
        assert call is not None
        assert (call.event_id, call.hash, call.digest) == (event_id[:255], hash.hex(), digest)
        assert call.rule == f"s/{'r' * (4 - number)}"
    running.replay("old")
    running.begin("s/rr", False)
    call = running.read()
    assert call is not None
    assert (call.event_id, call.rule, call.judging) == ("old", "s/rr", False)


@pytest.mark.req("LIM-07")
def test_an_event_whose_rule_cannot_be_stopped_is_refused_from_then_on(tmp_path: Path) -> None:
    running, file, watch = watched(tmp_path)
    assert running.judge("one", HASH, "m1") is None
    running.begin("s/loops", True)
    now = time.monotonic()
    assert not watch.look(now, 1), "it has only begun"
    assert watch.look(now + LATE_S, 2)
    watch.ended(now + LATE_S + 1, 3)
    (stuck,) = file.load().values()
    assert (stuck.event_id, stuck.rule, stuck.model, stuck.at_ms) == ("one", "s/loops", "m1", 2)
    again = RunningCall(file.load())
    refusal = again.judge("one", HASH, "m1")
    assert refusal is not None
    assert "s/loops" in refusal.message
    assert again.judge("one", HASH, "m2") is None, "another model may have mended the rule"
    assert again.judge("two", HASH[::-1], "m1") is None


@pytest.mark.req("LIM-07")
def test_replay_is_never_ended_and_never_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running, file, watch = watched(tmp_path)
    running.replay("committed-7")
    running.begin("s/loops", False)
    with caplog.at_level(logging.CRITICAL):
        assert not watch.look(time.monotonic() + 100 * LATE_S, 1)
    assert "s/loops" in caplog.text
    assert "'committed-7'" in caplog.text
    watch.ended(time.monotonic() + 100 * LATE_S, 2)
    assert file.load() == {}


def test_a_process_that_somebody_stopped_is_not_blamed(tmp_path: Path) -> None:
    running, file, watch = watched(tmp_path)
    running.judge("one", HASH, "m1")
    running.begin("s/quick", True)
    late = time.monotonic() + LATE_S
    assert not watch.look(late, 1, standing=True)
    assert not watch.look(late + 0.5, 2), "it goes on now, and its limit with it"
    watch.ended(late + 0.6, 3)
    assert file.load() == {}
    assert not is_standing(os.getpid())


def test_an_authority_that_ends_within_the_limit_blames_no_rule(tmp_path: Path) -> None:
    running, file, watch = watched(tmp_path)
    running.judge("one", HASH, "m1")
    running.begin("s/quick", True)
    watch.ended(time.monotonic() + TIMEOUT_S / 2, 1)
    assert file.load() == {}
    watch.ended(time.monotonic() + TIMEOUT_S * 2, 1)
    assert len(file.load()) == 1, "it may have taken all memory"


def test_the_file_is_bounded_and_a_damaged_line_counts_for_nothing(tmp_path: Path) -> None:
    running, file, _ = watched(tmp_path)
    for number in (1, 2):
        running.judge(f"e{number}", HASH[number:] + HASH[:number], "m")
        running.begin("s/loops", True)
        call = running.read()
        assert call is not None
        file.add(call, number)
    path = tmp_path / STUCK_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0]] * (2 * STUCK_MAX)) + b"not a line\n" + lines[1])
    assert {stuck.event_id for stuck in file.load().values()} == {"e1", "e2"}
    assert call is not None
    file.add(call, 3)
    assert len(path.read_bytes().splitlines()) == STUCK_MAX
