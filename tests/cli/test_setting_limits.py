"""Limits that depend on each other are refused with their numbers."""

from __future__ import annotations

import pytest

from unisono.cli.settings import ConfigError, load
from unisono.config import Settings
from unisono.node.open_log import store_timeouts
from unisono.store.postgres.timeouts import Timeouts


def test_limits_towards_the_shared_log_contain_each_other() -> None:
    assert store_timeouts(Settings()) == Timeouts(), "one set of defaults"
    assert store_timeouts(Settings(store_answer_timeout_s=16, store_peer_timeout_s=3)) == Timeouts(
        answer_s=16, peer_s=3
    )
    for name, value, said in (
        (
            "store_answer_timeout_s",
            15.0,
            "store_answer_timeout_s must be longer than store_statement_timeout_s",
        ),
        (
            "store_statement_timeout_s",
            9.0,
            "store_statement_timeout_s must be longer than store_lock_timeout_s",
        ),
        ("store_group_timeout_s", 11.0, "store_lock_timeout_s must be longer than store_group_timeout_s"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(None, {}, {name: value})


@pytest.mark.req("LIM-05", "LIM-07")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_batch_size": 201}, r"max_in_flight_drafts \(200\) must be at least max_batch_size \(201\)"),
        (
            {"max_queue_events": 50},
            r"max_queue_events \(50\) must be at least max_batch_size \(100\): .* rate_limited",
        ),
        (
            {"max_message_bytes": 2 << 20, "max_queue_bytes": 1 << 20, "max_send_buffer_bytes": 1 << 23},
            r"max_queue_bytes \(1048576\) must be at least max_message_bytes \(2097152\)",
        ),
        (
            {"max_message_bytes": 4 << 20},
            r"max_send_buffer_bytes \(4194304\) must be at least \d+: twice the largest .* 4194304",
        ),
        (
            {"store": "postgresql://h/d", "rule_timeout_s": 2.0},
            r"rule_timeout_s \(2\) must be at most a quarter of store_group_timeout_s \(5\)",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_limits_that_cannot_work_together_are_refused_with_the_numbers(
    given: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load(None, {}, given)


def test_limits_may_be_raised_together() -> None:
    raised = {"max_message_bytes": 16 << 20, "max_send_buffer_bytes": 40 << 20, "max_batch_size": 1_000}
    assert load(None, {}, {**raised, "max_in_flight_drafts": 1_000}).max_message_bytes == 16 << 20
