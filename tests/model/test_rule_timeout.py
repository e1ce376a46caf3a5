"""A rule is stopped wherever it is, and the state is as it was before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.authority.endless import write_endless_model
from unisono.model.load import load_model
from unisono.model.rule_timeout import AlarmLimit, Limit, RuleTimeout, ThreadLimit, ThreadTime
from unisono.model.rules import RuleFailed

# Raised while a callback of the interpreter runs (a weak reference's, the collector's), it is ignored there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ROUNDS = 60


def interrupted_changes(place: str) -> None:
    """Stop a reducer at many moments of its changes; each time everything must be as before."""
    model = load_model(Path(place))
    profile = model.canonical
    assert profile is not None
    profile.silence()
    state = profile.load({"numbers": [{"n": [1]}], "at": {"x": [1, {"y": 2}]}, "z": 0})
    event: Any = {"type": "event", "payload": {"schema": "changes", "data": {}}}
    before, weight, keys = state.dump(), state.weight(), list(state.value)
    for number in range(ROUNDS):
        profile.limit_rules(0.0005 + number * 0.00006)
        mark = state.mark()
        with pytest.raises(RuleFailed, match="was stopped"):
            profile.apply(state, event)
        assert state.mark() == mark
        assert state.dump() == before
        assert state.weight() == weight == profile.load(before).weight()
        assert list(state.value) == keys
    assert profile.stopped_rules == {"changes/changes": ROUNDS}


def in_another_thread(place: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            interrupted_changes(place)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@pytest.mark.req("LIM-07", "VAL-05")
@pytest.mark.parametrize("work", [interrupted_changes, in_another_thread])
def test_an_interruption_never_breaks_a_change_apart(work: Callable[[str], None], tmp_path: Path) -> None:
    """In a process of its own: this one's timer, and the hooks into its garbage collector, are the test runner's."""
    place = write_endless_model(tmp_path / "model")
    code = f"from tests.model.test_rule_timeout import {work.__name__} as work; work({str(place)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def run(limit: Limit, seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` gives, as a rule with so much time."""
    return limit.run(seconds, lambda _state, _event: work(), None, None)


def one_timer_for_many_rules() -> None:
    """In the main thread the timer runs on from rule to rule, and each rule still has its own time."""
    limit = AlarmLimit()

    def busy(seconds: float) -> str:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return "returned"

    def left() -> float:
        return signal.getitimer(signal.ITIMER_REAL)[0]

    assert run(limit, 0.3, lambda: busy(0.01)) == "returned"
    first = left()
    assert 0 < first <= 0.3
    assert run(limit, 0.3, lambda: busy(0.01)) == "returned"
    assert left() <= first - 0.01, "it was set again"
    with pytest.raises(RuleTimeout):  # a rule with less time does not wait for the first ring
        run(limit, 0.02, lambda: busy(0.2))
    time.sleep(0.05)  # a ring outside any rule stops it
    assert left() == 0
    assert run(limit, 0.02, lambda: busy(0.001)) == "returned"
    for _ in range(20):  # rings that come within a rule which has time left do nothing
        assert run(limit, 0.5, lambda: busy(0.005)) == "returned"
    began = time.perf_counter()
    with pytest.raises(RuleTimeout):  # and one that waits is stopped, whoever set the timer
        run(limit, 0.05, lambda: time.sleep(30))
    assert time.perf_counter() - began < 10
    assert run(limit, 0.3, lambda: busy(0.001)) == "returned"
    limit.rest()
    assert left() == 0


@pytest.mark.req("LIM-07")
def test_one_timer_serves_many_rules() -> None:
    code = "from tests.model.test_rule_timeout import one_timer_for_many_rules as work; work()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def in_a_thread(work: Any) -> Any:
    """What `work` gave in a thread that is not the main one."""
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(work()))
    thread.start()
    thread.join()
    return given[0]


def test_what_returns_in_time_is_left_alone_also_at_the_last_moment() -> None:
    """Whether it is stopped or not, nothing is raised after the call."""

    def work() -> set[str]:
        limit, seen = ThreadLimit(), set()
        for number in range(60):
            until = time.perf_counter() + 0.004 + number * 0.0001

            def busy(until: float = until) -> str:
                while time.perf_counter() < until:
                    pass
                return "returned"

            try:
                seen.add(run(limit, 0.005, busy))
            except RuleTimeout:
                seen.add("stopped")
            for _ in range(1_000):
                pass
        return seen

    assert in_a_thread(work) <= {"returned", "stopped"}


def test_waiting_counts_less_than_working() -> None:
    def work() -> tuple[float, float]:
        waiting = ThreadTime()
        time.sleep(0.1)
        waited = waiting.counted_s(0.04)
        working, until = ThreadTime(), time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        return waited, working.counted_s(0.1)

    waited, worked = in_a_thread(work)
    assert 0.02 <= waited < 0.1
    assert worked >= 0.1


def test_a_call_is_not_charged_for_what_came_before_it() -> None:
    """Although the CPU time of the thread is not asked again when it begins soon after another one."""

    def work() -> tuple[float, float]:
        spent, until = ThreadTime(), time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        spent.restart(60.0)
        return spent.cpu_s(), spent.wall_s()

    used, passed = in_a_thread(work)
    assert used <= passed


@pytest.mark.req("LIM-07")
def test_a_rule_that_waits_is_stopped_too() -> None:
    def wait() -> None:
        for _ in range(60_000):
            time.sleep(0.001)

    def work() -> str:
        try:
            run(ThreadLimit(), 0.05, wait)
        except RuleTimeout:
            return "stopped"
        return "returned"

    assert in_a_thread(work) == "stopped"


def two_limits_and_a_fork() -> None:
    """The process has one timer: each limit that runs a rule takes it over, in a forked process too."""
    first, second = AlarmLimit(), AlarmLimit()
    for limit in (first, second, first):
        assert run(limit, 0.5, int) == 0
        with pytest.raises(RuleTimeout):
            run(limit, 0.02, lambda: time.sleep(30))
        assert run(limit, 60.0, int) == 0  # the timer runs on
    child = os.fork()
    if child == 0:
        with pytest.raises(RuleTimeout):
            run(first, 0.05, lambda: time.sleep(30))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run(first, 0.001, int)  # and is stopped before the process ends


@pytest.mark.req("LIM-07")
def test_every_limit_of_a_process_works_and_none_ends_it() -> None:
    code = "from tests.model.test_rule_timeout import two_limits_and_a_fork as work; work()"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
