"""A commit that loses the race is planned again, a bounded number of times."""

from __future__ import annotations

import pytest

from unisono.lake.commit_retry import CONFLICTS_MAX, retry_on_conflict
from unisono.lake.errors import CommitConflict, LakeUnusable


class Racing:
    """Loses to other commits `losses` times."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.attempts = 0

    def commit(self) -> int:
        self.attempts += 1
        if self.attempts <= self.losses:
            raise CommitConflict(f"attempt {self.attempts}")
        return self.attempts


@pytest.mark.parametrize("losses", [0, 1, CONFLICTS_MAX])
def test_it_is_tried_until_no_other_commit_comes_first(losses: int) -> None:
    assert retry_on_conflict(Racing(losses).commit) == losses + 1


def test_it_gives_up_with_the_last_conflict() -> None:
    racing = Racing(10 * CONFLICTS_MAX)
    with pytest.raises(CommitConflict, match=f"attempt {CONFLICTS_MAX + 1}$"):
        retry_on_conflict(racing.commit)


def test_any_other_error_is_raised_at_once() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise LakeUnusable("damaged")

    with pytest.raises(LakeUnusable):
        retry_on_conflict(fail)
    assert len(calls) == 1
